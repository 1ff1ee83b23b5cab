// Stream-ordered memory and memory pools. CUDA Driver API 13.0, Stream Ordered Memory Allocator.
//
// Served from the pool are calls on a stream that does not capture, whatever context is current, out of a memory pool that we serve
// (mempool_book.hpp). Everything else is the driver's: graph memory nodes, pools with special properties, policies that do not pool, and on segments,
// which go with their context, streams of contexts that cuCtxDestroy may end: natively that leaves memory of pools (pool/device/block_life.hpp).
#include <algorithm>
#include <array>
#include <cstring>

#include "pool/core/bytes.hpp"
#include "pool/device/fence.hpp"
#include "shim/front_door.hpp"

namespace cupool::shim::front_door {
namespace {

/// Does `stream` capture? A capture reaches other streams by event waits, but begins through us: without any, nobody is asked.
/// `if_unknown`: when something captures and the driver does not say what.
bool is_capturing(Process& own, CUstream stream, bool if_unknown) {
  if (!own.pools.capturing()) return false;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (own.api.cuStreamIsCapturing == nullptr || own.api.cuStreamIsCapturing(stream, &status) != CUDA_SUCCESS) return if_unknown;
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/// An answer of cuStreamGetCtx that the free would get as well; any other (not permitted, not supported) only keeps the stream's context from us.
bool refuses_stream(CUresult code) {
  const bool is_no_stream = code == CUDA_ERROR_INVALID_HANDLE || code == CUDA_ERROR_INVALID_VALUE;
  return is_no_stream || device::is_context_gone(code) || device::is_of_earlier_work(code);
}

/// Would the free be refused for its stream? Two questions must agree: one that fails for a reason of its own is no reason to hand a pooled
/// block's free to the driver.
bool is_no_stream(const Process& own, CUstream stream) {
  CUcontext context = nullptr;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  if (own.api.cuStreamGetCtx == nullptr || !refuses_stream(own.api.cuStreamGetCtx(stream, &context))) return false;
  return own.api.cuStreamIsCapturing == nullptr || refuses_stream(own.api.cuStreamIsCapturing(stream, &status));
}

/// A context that is current for a scope.
class InContext {
 public:
  InContext(const DriverApi& api, CUcontext context) : api_(api), is_inside_(api.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS) {}
  ~InContext() {
    CUcontext popped = nullptr;
    if (is_inside_ && api_.cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS) api_.cuCtxPopCurrent_v2(&popped);  // as in ScopedContext
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  bool ok() const { return is_inside_; }

 private:
  const DriverApi& api_;
  bool is_inside_;
};

/// A stream of another context than the current one, by its name there; that context is current as long as this lives.
class StreamElsewhere {
 public:
  StreamElsewhere(Process& own, CUstream handle) {
    if (handle == nullptr || own.api.cuStreamGetCtx == nullptr || own.api.cuStreamGetCtx(handle, &context_) != CUDA_SUCCESS) return;
    context_ = own.contexts.owner(context_);
    {
      const PoolSet::ContextHold hold(own.pools, context_);  // not for longer: the call may have to wait for the end of this very context
      if (hold.held()) inside_.emplace(own.api, context_);
    }
    if (inside_ && inside_->ok()) named_ = own.streams.name(own.api, own.contexts, own.pools, context_, handle);
  }
  CUcontext context() const { return context_; }
  const std::optional<StreamBook::Named>& named() const { return named_; }  ///< empty: its context cannot be had, and the other one is current

 private:
  CUcontext context_ = nullptr;
  std::optional<InContext> inside_;
  std::optional<StreamBook::Named> named_;
};

/// The call with a size that the driver must refuse.
template <class... Args>
CUresult ask_for_impossible(const Real<CUresult(CUdeviceptr*, std::size_t, Args...)>& real, std::size_t bytes, Args... args) {
  CUdeviceptr nothing = 0;
  return real(&nothing, bytes + kImpossible_bytes, args...);
}

/// The pool that a device's cuMemAllocAsync takes from: the index on `device`, 0 for the driver's.
struct CurrentMempool {
  std::uint8_t operator()(int device) const { return process().mempools.current(device); }
  std::optional<int> device() const { return std::nullopt; }  ///< the stream's: a device's current pool is its own
};

/// The one that the program names, which may be of another device than the stream.
struct NamedMempool {
  CUmemoryPool pool;
  std::uint8_t operator()(int device) const {
    const std::optional<Mempool> mempool = process().mempools.find(pool);
    return mempool && mempool->device == device ? mempool->index : std::uint8_t{0};
  }
  std::optional<int> device() const { return process().mempools.device_of(pool); }
};

/// The driver serves it. Under `async` and `platform` that is the policy; else it is said in the report, as the memory of graphs always is.
template <class FindPool, class... Args>
CUresult pass_async(const Real<CUresult(CUdeviceptr*, Args...)>& real, FindPool&& find_pool, CUdeviceptr* out, std::size_t bytes, CUstream stream, Args... args) {
  Process& own = process();
  const config::Policy policy = own.options->policy;
  const bool is_node = is_capturing(own, stream, true);  // nothing is taken until the graph runs, and then the driver keeps it
  if (is_node) {
    own.saw_graph_memory(real.symbol());
    return real(out, args...);
  }
  if (policy != config::Policy::async && policy != config::Policy::platform) own.saw_unpooled(real.symbol());
  own.before_allocation();
  const auto call = [&] { return real(out, args...); };
  const auto ask = [&] { return ask_for_impossible(real, args...); };
  const auto is_of_default_pool = [&](int device) { return policy == config::Policy::async && find_pool(device) == MempoolBook::kDefault; };
  const CUresult result = serve_by_driver(bytes, real.symbol(), out, stream, find_pool.device(), std::cref(is_of_default_pool), std::cref(call), std::cref(ask));
  if (result == CUDA_ERROR_OUT_OF_MEMORY) *out = 0;  // also where a limit refuses
  return result;
}

/// `stream` is one of `context`; `find_pool(device)` gives the index of the memory pool, 0 for the driver's. False: the driver is to serve it.
/// Inline also where it is called twice: a call more is 7 ns of 82 a pair.
template <class FindPool>
[[gnu::always_inline]] inline bool allocate_named(Process& own, FindPool&& find_pool, CUdeviceptr* out, std::size_t bytes, CUcontext context,
                                                  const StreamBook::Named& stream, const char* symbol, CUresult* result) {
  const std::uint8_t mempool = find_pool(stream.device);
  if (mempool == 0) return false;
  begin_call(own);
  own.before_allocation();
  const Result<CUdeviceptr> block = own.pools.allocate_on(context, bytes, stream.name, mempool, symbol, stream.life);
  if (block.code() == CUDA_ERROR_NOT_SUPPORTED) return false;  // a device without a pool, or whose pool would go with the stream's context
  *result = answer(own, block, out);
  if (*result == CUDA_ERROR_OUT_OF_MEMORY) *out = 0;  // as an H200 does, driver 580
  return true;
}

template <class FindPool>
[[gnu::noinline]] bool allocate_elsewhere(Process& own, FindPool&& find_pool, CUdeviceptr* out, std::size_t bytes, CUstream handle, const char* symbol,
                                          CUresult* result) {
  const StreamElsewhere elsewhere(own, handle);
  return elsewhere.named() && allocate_named(own, find_pool, out, bytes, elsewhere.context(), *elsewhere.named(), symbol, result);
}

template <class FindPool, class... Args>
CUresult allocate_from(const Real<CUresult(CUdeviceptr*, Args...)>& real, FindPool&& find_pool, CUdeviceptr* out, std::size_t bytes, CUstream stream,
                       Args... args) {
  Process& own = process();
  const CUstream handle = plain_handle(stream, real.is_per_thread());
  const bool is_special = handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  CUcontext context = nullptr;
  if (out == nullptr || bytes == 0 || ((context = is_special ? current_owner(own) : living_owner(own)) == nullptr && is_special)) return with_room(real, out, args...);
  if (!own.pools.serves_streams() || is_capturing(own, handle, true)) return pass_async(real, find_pool, out, bytes, handle, args...);
  std::optional<StreamBook::Named> named;
  if (context != nullptr) named = own.streams.name(own.api, own.contexts, own.pools, context, handle);
  CUresult result = CUDA_SUCCESS;
  const bool is_served = named ? allocate_named(own, find_pool, out, bytes, context, *named, real.symbol(), &result)
                               : !is_special && allocate_elsewhere(own, find_pool, out, bytes, handle, real.symbol(), &result);
  return is_served ? result : pass_async(real, find_pool, out, bytes, handle, args...);
}

/// `free_on(context, name)` for a stream of another context than the current one, which is made current meanwhile. Where that cannot be, or for a
/// null `handle`: with no context, and the name `otherwise`; then the block waits for an epoch that covers every stream.
template <class Free>
[[gnu::noinline]] FreeResult in_context_of(Process& own, CUstream handle, const Free& free_on, StreamName otherwise) {
  const StreamElsewhere elsewhere(own, handle);
  return elsewhere.named() ? free_on(elsewhere.context(), elsewhere.named()->name) : free_on(nullptr, otherwise);
}

/// The stat that `attribute` asks for; null: not one of ours.
std::uint64_t PoolSet::MempoolFigures::*figure_of(CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: return &PoolSet::MempoolFigures::reserved_bytes;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &PoolSet::MempoolFigures::reserved_high_bytes;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &PoolSet::MempoolFigures::used_bytes;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &PoolSet::MempoolFigures::used_high_bytes;
    default: return nullptr;
  }
}

/// Of what `attribute` is the high-water mark; empty: it is none.
std::optional<CUmemPool_attribute> current_of(CUmemPool_attribute attribute) {
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) return CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) return CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
  return std::nullopt;
}

/// The pool behind `handle` when we serve it.
std::optional<Mempool> served(Process& own, CUmemoryPool handle) {
  return own.pools.serves_streams() ? own.mempools.find(handle) : std::nullopt;
}

/// Lets a context reach the blocks of another, as the program asked of the memory pool that they are in.
CUresult link(Process& own, CUcontext from, CUcontext to) {
  if (from == to || own.api.cuCtxEnablePeerAccess == nullptr) return CUDA_SUCCESS;
  const std::unique_lock turn = own.peers.turn();
  const PoolSet::ContextHold from_hold(own.pools, from);
  const PoolSet::ContextHold to_hold(own.pools, to);  // until it is booked: the end of either forgets what is
  if (!from_hold.held() || !to_hold.held()) return CUDA_SUCCESS;
  const InContext inside(own.api, from);
  if (!inside.ok()) return CUDA_SUCCESS;
  // The program's call is none that a capture forbids; this one may be.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  const bool relaxed = own.api.cuThreadExchangeStreamCaptureMode != nullptr && own.api.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  const CUresult result = own.api.cuCtxEnablePeerAccess(to, 0);
  if (relaxed) own.api.cuThreadExchangeStreamCaptureMode(&mode);
  if (result == CUDA_SUCCESS) own.peers.enabled_by_us(from, to);
  if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) own.peers.enabled_by_program(from, to);
  // The driver's own pools need no context for it; in one that is broken or gone nothing runs that could use it.
  const bool is_moot = result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED || device::is_of_earlier_work(result) || device::is_context_gone(result);
  return is_moot ? CUDA_SUCCESS : result;
}

CUresult link_all(Process& own, int device, int peer) {
  for (CUcontext from : own.peers.contexts_of(peer))
    for (CUcontext to : own.peers.contexts_of(device))
      if (const CUresult result = link(own, from, to); result != CUDA_SUCCESS) return result;
  for (CUcontext to : own.peers.contexts_of(device))
    if (const Status shared = own.pools.share_pages(to, peer); !shared.ok()) return shared.code();
  return CUDA_SUCCESS;
}

/// Booked first: a context that another thread creates meanwhile is then linked by that thread.
CUresult share(Process& own, int device, int peer) {
  own.pools.link_devices();
  const bool is_new = !own.peers.is_shared(device, peer);
  if (is_new) own.peers.share(device, peer, true);
  const CUresult result = link_all(own, device, peer);
  if (result != CUDA_SUCCESS && is_new) own.peers.share(device, peer, false);
  return result;
}

constexpr int kMostDevices = 64;  // as many as CUDA shows to a process

/// Is it access that we gave, because plain blocks lie in this pool? Natively another device's copies reach them whatever pools say.
bool is_access_of_plain_blocks(Process& own, CUmemoryPool pool, const CUmemAccessDesc& access) {
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE || own.api.cuDeviceGetDefaultMemPool == nullptr) return false;
  for (int device = 0; device < kMostDevices; ++device) {
    CUmemoryPool standard = nullptr;
    if (own.peers.is_granted(access.location.id, device) && own.api.cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS && standard == pool) return true;
  }
  return false;
}

/// Under `async`: the program's list without what would take access from plain blocks. What is left out is answered with success. A list longer than
/// there are devices is wrong, and the driver need not have read it.
CUresult set_driver_pool_access(Process& own, const Real<CUresult(CUmemoryPool, const CUmemAccessDesc*, std::size_t)>& real, CUmemoryPool pool,
                                const CUmemAccessDesc* access, std::size_t count) {
  if (access == nullptr || count == 0 || count > kMostDevices) return real(pool, access, count);
  std::array<CUmemAccessDesc, kMostDevices> rest;
  const auto takes = [&](const CUmemAccessDesc& one) { return one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && is_access_of_plain_blocks(own, pool, one); };
  const auto end = std::remove_copy_if(access, access + count, rest.begin(), takes);
  return end == rest.begin() ? CUDA_SUCCESS : real(pool, rest.data(), static_cast<std::size_t>(end - rest.begin()));
}

}  // namespace

void share_with_new_context(CUcontext context, int device) {
  Process& own = process();
  own.peers.context_seen(context, device);
  for (const PeerBook::Share& share : own.peers.shares()) {
    if (share.peer == device)
      for (CUcontext to : own.peers.contexts_of(share.device)) link(own, context, to);
    if (share.device != device) continue;
    for (CUcontext from : own.peers.contexts_of(share.peer)) link(own, from, context);
    static_cast<void>(own.pools.share_pages(context, share.peer));  // there is no call of the program's that a refusal could answer
  }
}

void share_with_survivor(CUcontext context) {
  const std::optional<int> device = process().pools.device_of(context);
  try {
    if (device) share_with_new_context(context, *device);
  } catch (const std::bad_alloc&) {  // there is no call of the program's that this could answer
  }
}

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
  if (!own.pools.owns(address)) return free_of_driver(address, StreamBook::identity_of(handle), free_elsewhere);
  // In a capture this would become a graph node, which only memory of the graph or of a pool can have.
  if (is_capturing(own, handle, false)) return free_elsewhere(kNowhere);
  begin_call(own);
  const bool is_special = handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD;
  const CUcontext context = is_special ? current_owner(own) : living_owner(own);
  if (context == nullptr && is_special)
    if (const CUresult refused = no_context_error(own); refused != CUDA_SUCCESS) return refused;
  const std::optional<StreamBook::Named> named = context != nullptr ? own.streams.name(own.api, own.contexts, own.pools, context, handle) : std::nullopt;
  // A stream needs no current context, but the driver must know it.
  if (!named && !is_special && is_no_stream(own, handle)) return free_elsewhere(kNowhere);
  const auto free_on = [&](CUcontext of_stream, StreamName name) { return free_pooled(own, address, [&] { return own.pools.free_on(address, of_stream, name); }); };
  const FreeResult result = named ? free_on(context, named->name) : in_context_of(own, is_special ? nullptr : handle, free_on, {handle, StreamBook::identity_of(handle)});
  return answer_free(result, address, free_elsewhere, named ? named->name.identity : 0);
}

CUresult create_mempool(const Real<CUresult(CUmemoryPool*, const CUmemPoolProps*)>& real, CUmemoryPool* out, const CUmemPoolProps* properties) {
  const CUresult result = with_room(real, out, properties);
  if (result != CUDA_SUCCESS || out == nullptr || properties == nullptr) return result;
  Process& own = process();
  own.mempools.made(*out, *properties);
  const int device = properties->location.id;
  const auto unused = [&](std::uint8_t index) { return own.pools.mempool_figures(device, index).used_bytes == 0; };
  if (!own.pools.serves_streams() || !own.mempools.created(*out, *properties, unused)) return result;
  if (const std::optional<Mempool> mempool = own.mempools.find(*out)) own.pools.reset_mempool_high(device, mempool->index, true, true);
  return result;
}

CUresult destroy_mempool(const Real<CUresult(CUmemoryPool)>& real, CUmemoryPool pool) {
  MempoolBook& mempools = process().mempools;
  const std::optional<Mempool> was = mempools.known(pool);
  const std::optional<int> device = mempools.leave(pool);
  const CUresult result = real(pool);
  if (result == CUDA_SUCCESS) mempools.destroyed(pool, was);
  else mempools.kept(pool, device);
  return result;
}

CUresult set_mempool(const Real<CUresult(CUdevice, CUmemoryPool)>& real, CUdevice device, CUmemoryPool pool) {
  const CUresult result = real(device, pool);
  if (result == CUDA_SUCCESS) process().mempools.set_current(device, pool);
  return result;
}

CUresult set_mempool(const Real<CUresult(CUmemLocation*, CUmemAllocationType, CUmemoryPool)>& real, CUmemLocation* location,
                     CUmemAllocationType type, CUmemoryPool pool) {
  const CUresult result = real(location, type, pool);
  const bool is_device = location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
  if (result == CUDA_SUCCESS && is_device) process().mempools.set_current(location->id, pool);
  return result;
}

CUresult get_mempool_attribute(const Real<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& real, CUmemoryPool pool,
                               CUmemPool_attribute attribute, void* value) {
  const CUresult result = real(pool, attribute, value);
  const auto figure = figure_of(attribute);
  if (result != CUDA_SUCCESS || figure == nullptr || value == nullptr) return result;
  Process& own = process();
  const std::optional<Mempool> mempool = served(own, pool);
  if (!mempool) return result;
  std::uint64_t bytes = 0;  // what the driver served itself
  std::memcpy(&bytes, value, sizeof bytes);
  const PoolSet::MempoolFigures ours = own.pools.mempool_figures(mempool->device, mempool->index);
  const std::optional<CUmemPool_attribute> current = current_of(attribute);
  std::uint64_t now_bytes = bytes;
  if (current && own.api.cuMemPoolGetAttribute != nullptr) {
    // Its high and ours need not be of one moment: what it surely was.
    if (own.api.cuMemPoolGetAttribute(pool, *current, static_cast<void*>(&now_bytes)) != CUDA_SUCCESS) now_bytes = 0;
    bytes = std::max({bytes, ours.*figure, now_bytes + ours.*figure_of(*current)});
  } else {
    bytes += ours.*figure;
  }
  std::memcpy(value, &bytes, sizeof bytes);
  return result;
}

CUresult set_mempool_attribute(const Real<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& real, CUmemoryPool pool,
                               CUmemPool_attribute attribute, void* value) {
  const CUresult result = real(pool, attribute, value);
  const bool is_reserved = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
  const bool is_used = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
  if (result != CUDA_SUCCESS || (!is_reserved && !is_used)) return result;
  Process& own = process();
  if (const std::optional<Mempool> mempool = served(own, pool)) own.pools.reset_mempool_high(mempool->device, mempool->index, is_reserved, is_used);
  return result;
}

CUresult trim_mempool(const Real<CUresult(CUmemoryPool, std::size_t)>& real, CUmemoryPool pool, std::size_t keep_bytes) {
  const CUresult result = real(pool, keep_bytes);
  if (result != CUDA_SUCCESS) return result;
  Process& own = process();
  // What another served pool's blocks were freed from is the default pool's to give.
  // Under `async` plain blocks whose free was put off go into it.
  const bool is_used = own.pools.serves_streams() || own.options->policy == config::Policy::async;
  const std::optional<Mempool> mempool = is_used ? own.mempools.find(pool) : std::nullopt;
  if (mempool && mempool->index == MempoolBook::kDefault) own.pools.trim(mempool->device, keep_bytes);
  return result;
}

CUresult set_mempool_access(const Real<CUresult(CUmemoryPool, const CUmemAccessDesc*, std::size_t)>& real, CUmemoryPool pool,
                            const CUmemAccessDesc* access, std::size_t count) {
  if (process().options->policy == config::Policy::async) return set_driver_pool_access(process(), real, pool, access, count);
  const CUresult result = real(pool, access, count);
  if (result != CUDA_SUCCESS || access == nullptr) return result;
  Process& own = process();
  const std::optional<Mempool> mempool = served(own, pool);
  if (!mempool) return result;
  for (std::size_t i = 0; i < count; ++i) {
    const CUmemAccessDesc& one = access[i];
    if (one.location.type != CU_MEM_LOCATION_TYPE_DEVICE || one.location.id == mempool->device) continue;
    // Access that is taken away again is kept: it is the same regions that other pools' blocks and plain ones lie in.
    if (one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
    if (const CUresult shared = share(own, mempool->device, one.location.id); shared != CUDA_SUCCESS) return shared;
  }
  return result;
}

CUresult export_mempool_pointer(const Real<CUresult(CUmemPoolPtrExportData*, CUdeviceptr)>& real, CUmemPoolPtrExportData* out, CUdeviceptr address) {
  // Only memory of a pool that was made to be exported can be, and those stay the driver's.
  return real(out, process().pools.owns(address) ? kNowhere : address);
}

}  // namespace cupool::shim::front_door
