// Stream-ordered memory. CUDA Driver API 13.0, Stream Ordered Memory Allocator.
//
// The pool serves calls on a stream that does not capture, whatever context is current, if they name a memory pool that we serve (mempool_book.hpp).
// Everything else is the driver's: memory nodes of graphs, pools with special properties, policies that do not pool. So are, on segments, streams of
// contexts that cuCtxDestroy may end: natively memory of pools outlives those, but a segment ends with its context (pool/device/block_life.hpp).
#include "pool/core/bytes.hpp"
#include "pool/device/fence.hpp"
#include "shim/front_door.hpp"
#include "shim/in_context.hpp"

namespace cupool::shim::front_door {
namespace {

/// Does `stream` capture? Every capture begins through us, so that the driver is asked only while there is one; it may have reached this stream by an
/// event. `if_unknown`: the answer where the driver does not say.
bool is_capturing(Process& own, CUstream stream, bool if_unknown) {
  if (!own.pools.capturing()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (own.api.cuStreamIsCapturing == nullptr || own.api.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS) return if_unknown;
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// Is `code`, from cuStreamGetCtx, an error that the free itself would get? Any other one (not permitted, not supported) only means that we are not
/// told.
bool refuses_stream(CUresult code) {
  const bool is_no_stream = code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_INVALID_VALUE;
  return is_no_stream || device::is_context_gone(code) || device::is_of_earlier_work(code);
}

/// Would the driver refuse a free for its stream? Two questions must both fail for that, because one may fail for a reason of its own.
bool is_no_stream(const Process& own, CUstream stream) {
  CUcontext context = nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (own.api.cuStreamGetCtx == nullptr || !refuses_stream(own.api.cuStreamGetCtx(stream, &context))) return false;
  return own.api.cuStreamIsCapturing == nullptr || refuses_stream(own.api.cuStreamIsCapturing(stream, &status));
}

/// A stream of a context that is not current: makes that context current as long as this lives, and names the stream there.
class StreamElsewhere {
 public:
  StreamElsewhere(Process& own, CUstream handle) {
    if (handle != nullptr) context_ = owner_of_stream(own, handle);
    if (context_ == nullptr) return;
    {
      const PoolSet::ContextHold hold(own.pools, context_);  // let go at once: the call may wait for the end of this very context
      if (hold.held()) inside_.emplace(own.api, context_);
    }
    if (inside_ && inside_->ok()) named_ = own.streams.name(context_, handle);
  }
  CUcontext context() const { return context_; }
  const std::optional<StreamBook::Named>& named() const { return named_; }  ///< nullopt: its context could not be made current

 private:
  CUcontext context_ = nullptr;
  std::optional<InContext> inside_;
  std::optional<StreamBook::Named> named_;
};

/// Makes the call with a size that the driver must refuse, to learn whether it would give another reason.
template <class... Args>
CUresult ask_for_impossible(const Real<CUresult(CUdeviceptr*, std::size_t, Args...)>& real, std::size_t bytes, Args... args) {
  CUdeviceptr nothing = 0;
  return real(&nothing, bytes + kImpossible_bytes, args...);
}

/// The pool that cuMemAllocAsync takes from. As a function: its index on `device`, 0: the driver serves it.
struct CurrentMempool {
  std::uint8_t operator()(int device) const { return process().mempools.current(device); }
  std::optional<MempoolBook::Made> made() const { return std::nullopt; }  ///< not needed: a device's current pool has that device's memory
  MempoolBounds bounds(int device) const { return process().mempools.bounds_of_current(device); }
  CUmemoryPool handle(int device) const {
    const Process& own = process();
    CUmemoryPool pool = nullptr;
    return own.api.cuDeviceGetMemPool != nullptr && own.api.cuDeviceGetMemPool(&pool, device) == CUDA_SUCCESS ? pool : nullptr;
  }
};

/// The pool that the program names, which may be another device's than the stream's.
struct NamedMempool {
  CUmemoryPool pool;
  std::uint8_t operator()(int device) const {
    const std::optional<Mempool> mempool = process().mempools.find(pool);
    return mempool && mempool->device == device ? mempool->index : std::uint8_t{0};
  }
  /// nullopt for a pool whose creation was not seen: its memory counts as the stream's device's, because a limit that is exceeded unseen would take
  /// memory from others. Few such pools have host or managed memory, since the calls that make or name those are seen.
  std::optional<MempoolBook::Made> made() const { return process().mempools.facts_of(pool); }
  MempoolBounds bounds(int) const { return process().mempools.bounds(pool); }
  CUmemoryPool handle(int) const { return pool; }
};

/// The driver serves the allocation. Unless the policy (`async`, `platform`) has it so, the report says that it was not pooled; of memory of graphs
/// it always says so.
template <class FindPool, class... Args> CUresult pass_async(const Real<CUresult(CUdeviceptr*, Args...)>& real, FindPool&& find_pool,
                                                             CUdeviceptr* out, std::size_t bytes, CUstream stream, Args... args) {
  Process& own = process();
  const config::Policy policy = own.options->policy;
  const bool is_node = is_capturing(own, stream, true);  // nothing is taken until the graph runs, and then the driver keeps it
  if (is_node) {
    own.saw_graph_memory(real.symbol());
    return real(out, args...);
  }
  const std::optional<MempoolBook::Made> made = find_pool.made();
  const bool is_of_device = !made || made->memory == MempoolMemory::device;
  if (is_of_device && policy != config::Policy::async && policy != config::Policy::platform) own.saw_unpooled(real.symbol());
  own.before_allocation();
  const auto call = [&] { return real(out, args...); };
  const auto ask = [&] { return ask_for_impossible(real, args...); };
  const auto is_of_default_pool = [&](int device) { return policy == config::Policy::async && find_pool(device) == MempoolBook::kDefault; };
  const MempoolFacts mempool{made, std::cref(is_of_default_pool), [&](int device) { return find_pool.bounds(device); },
                             [&](int device) { return find_pool.handle(device); }};
  const CUresult result = serve_by_driver(bytes, real.symbol(), out, stream, mempool, std::cref(call), std::cref(ask));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) *out = 0;  // also where a limit refuses
  return result;
}

/// Allocates on `stream`, which is one of `context`. `find_pool(device)` gives the index of the memory pool, 0: the driver's. False: the driver must
/// serve the call. Always inlined, because a call costs 7 of the 82 ns that an allocation and its free take.
template <class FindPool> [[gnu::always_inline]] inline bool allocate_named(Process& own, FindPool&& find_pool, CUdeviceptr* out, std::size_t bytes,
                                                                            CUcontext context, const StreamBook::Named& stream, const char* symbol,
                                                                            CUresult* result) {
  const std::uint8_t mempool = find_pool(stream.device);
  if (mempool == 0) return false;
  begin_call(own);
  own.before_allocation();
  const Result<CUdeviceptr> block = own.pools.allocate_on(context, bytes, stream.name, mempool, symbol, stream.life);
  if (block.code() == CUDA_ERROR_NOT_SUPPORTED) return false;  // the device has no pool, or its blocks would end with the stream's context
  *result = answer(own, block, out);
  if (*result == CUDA_ERROR_OUT_OF_MEMORY) *out = 0;  // as an H200 does, driver 580
  return true;
}

template <class FindPool> [[gnu::noinline]] bool allocate_elsewhere(Process& own, FindPool&& find_pool, CUdeviceptr* out, std::size_t bytes,
                                                                    CUstream handle, const char* symbol, CUresult* result) {
  const StreamElsewhere elsewhere(own, handle);
  return elsewhere.named() && allocate_named(own, find_pool, out, bytes, elsewhere.context(), *elsewhere.named(), symbol, result);
}

template <class FindPool, class... Args> CUresult allocate_from(const Real<CUresult(CUdeviceptr*, Args...)>& real, FindPool&& find_pool,
                                                                CUdeviceptr* out, std::size_t bytes, CUstream stream, Args... args) {
  Process& own = process();
  const CUstream handle = plain_handle(stream, real.is_per_thread());
  const bool is_special = is_default_stream(handle);
  CUcontext context = nullptr;
  if (out == nullptr || bytes == 0 || ((context = is_special ? current_owner(own) : living_owner(own)) == nullptr && is_special))
    return with_room(real, out, args...);
  if (!own.pools.serves_streams() || is_capturing(own, handle, true)) return pass_async(real, find_pool, out, bytes, handle, args...);
  std::optional<StreamBook::Named> named;
  if (context != nullptr) named = own.streams.name(context, handle);
  CUresult result = CUDA_SUCCESS;
  const bool is_served = named ? allocate_named(own, find_pool, out, bytes, context, *named, real.symbol(), &result)
                               : !is_special && allocate_elsewhere(own, find_pool, out, bytes, handle, real.symbol(), &result);
  return is_served ? result : pass_async(real, find_pool, out, bytes, handle, args...);
}

/// Calls `free_on(context, name)` for a stream of a context that is not current, with that context made current. Where that is not possible, or
/// `handle` is null, it is called with a null context and the name `otherwise`: then the block waits for an epoch that covers every stream.
template <class Free> [[gnu::noinline]] FreeResult in_context_of(Process& own, CUstream handle, const Free& free_on, StreamName otherwise) {
  const StreamElsewhere elsewhere(own, handle);
  return elsewhere.named() ? free_on(elsewhere.context(), elsewhere.named()->name) : free_on(nullptr, otherwise);
}

}  // namespace

CUresult allocate_async(const Real<CUresult(CUdeviceptr*, std::size_t, CUstream)>& real, CUdeviceptr* out, std::size_t bytes, CUstream stream) {
  return allocate_from(real, CurrentMempool{}, out, bytes, stream, bytes, stream);
}

CUresult allocate_async(const Real<CUresult(CUdeviceptr*, std::size_t, CUmemoryPool, CUstream)>& real, CUdeviceptr* out, std::size_t bytes,
                        CUmemoryPool pool, CUstream stream) {
  return allocate_from(real, NamedMempool{pool}, out, bytes, stream, bytes, pool, stream);
}

CUresult free_async(const Real<CUresult(CUdeviceptr, CUstream)>& real, CUdeviceptr address, CUstream stream) {
  Process& own = process();
  const auto free_elsewhere = [&](CUdeviceptr where) { return real(where, stream); };
  const CUstream handle = plain_handle(stream, real.is_per_thread());
  if (!own.pools.owns(address)) {
    // The driver served it and it is in no book of ours (memory of graphs, for example). In a capture this is not a free yet.
    const auto free_foreign = [&] {
      if (!own.pools.capturing()) own.pools.count_foreign_free(address);
    };
    return free_of_driver(address, StreamBook::identity_of(handle), free_elsewhere, free_foreign);
  }
  // In a capture this would become a free node of the graph, which the driver refuses for a plain block.
  if (is_capturing(own, handle, false)) return free_elsewhere(kNowhere);
  begin_call(own);
  const bool is_special = is_default_stream(handle);
  const CUcontext context = is_special ? current_owner(own) : living_owner(own);
  if (context == nullptr && is_special)
    if (const CUresult refused = no_context_error(own); refused != CUDA_SUCCESS) return refused;
  const std::optional<StreamBook::Named> named = context != nullptr ? own.streams.name(context, handle) : std::nullopt;
  // The call needs no current context, but a stream that the driver knows.
  if (!named && !is_special && is_no_stream(own, handle)) return free_elsewhere(kNowhere);
  const auto free_on = [&](CUcontext of_stream, StreamName name) {
    return free_pooled(own, address, [&] { return own.pools.free_on(address, of_stream, name); });
  };
  const FreeResult result =
      named ? free_on(context, named->name) : in_context_of(own, is_special ? nullptr : handle, free_on, {handle, StreamBook::identity_of(handle)});
  return answer_free(result, address, free_elsewhere, named ? named->name.identity : 0);
}

}  // namespace cupool::shim::front_door
