// The bodies behind entry_points.def, one function per name in the list's last column: they turn arguments of the ABI into requests to the pool.
//
// Where arguments are bad, there is no current context or an address is not ours, the real driver answers itself. A pooled address never reaches
// the driver as something to free; where the driver must answer for an address of ours that is no live block, it is asked about kNowhere instead.
// Every body runs in a live process under the thread's guard (lifecycle::Inside). Thread-safe. Bodies that are the same for several variants of a
// call are templates, at the end.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <tuple>
#include <type_traits>

#include "shim/newer_api.hpp"
#include "shim/process.hpp"
#include "shim/real.hpp"
#include "shim/thread_end.hpp"

namespace cupool::shim::front_door {

/// An address that the driver cannot know, because it is not canonical.
inline constexpr CUdeviceptr kNowhere = 0xdead'0000'0000'0200;

/// No device has more memory than this: the driver refuses a larger request, and nothing needs to be tried or reserved for it.
inline constexpr std::size_t kMostDevice_bytes = std::size_t{1} << 60;

/// The number of no device: the driver did not tell which it is.
inline constexpr int kNoDevice = MempoolBook::kNoDevice;

/// For a free that cannot be served now (re-entered, exiting, or after an exception of ours). True: the address is ours and the free is noted, so
/// that the driver must not see it.
bool keep_from_driver(CUdeviceptr address);
inline bool keep_from_driver(CUdeviceptr address, CUstream) { return keep_from_driver(address); }

// --- memory (front_door_memory.cpp)
CUresult allocate(const Real<CUresult(CUdeviceptr*, std::size_t)>& real, CUdeviceptr* out, std::size_t bytes);
CUresult allocate_pitch(const Real<CUresult(CUdeviceptr*, std::size_t*, std::size_t, std::size_t, unsigned)>& real, CUdeviceptr* out,
                        std::size_t* pitch_bytes, std::size_t width_bytes, std::size_t height, unsigned element_bytes);
CUresult free_plain(const Real<CUresult(CUdeviceptr)>& real, CUdeviceptr address);

/// What cuCtxGetCurrent says in this thread; nullptr: there is none, or the driver does not answer.
inline CUcontext current_context(const Process& own) {
  CUcontext current = nullptr;
  return own.api.cuCtxGetCurrent(&current) == CUDA_SUCCESS ? current : nullptr;
}
/// The context that would own what this thread allocates now; nullptr: none, and the driver answers itself.
CUcontext current_owner(const Process& own);
/// As current_owner, but for calls that need no current context: one that has ended counts as none, and the driver is not asked whether it has begun
/// again past us.
CUcontext living_owner(const Process& own);
/// True: the device has no primary context now. A handle that was one may still be current, and some calls succeed under it.
bool is_primary_inactive(const Process& own, CUdevice device);
/// What the driver says to a call of this thread that needs a context. CUDA_SUCCESS: there is one, although we could not learn which.
CUresult no_context_error(const Process& own);
/// Before an allocation or free: books the frees that could not be booked when they were made (LateFrees).
void begin_call(Process& own);
/// After an allocation: writes `*out`, or the report of the failure, and pending warnings. Returns what the program is told.
CUresult answer(Process& own, const Result<CUdeviceptr>& block, CUdeviceptr* out);
/// Frees a block by `free_in_pool()`, and retires its export to other processes, if there is one.
template <class FreeInPool> FreeResult free_pooled(Process& own, CUdeviceptr address, FreeInPool&& free_in_pool) {
  const std::uint64_t exported = own.shared.exported_at(address);
  const FreeResult result = free_in_pool();
  if (exported != 0 && result.outcome == FreeOutcome::freed) own.shared.retire(address, exported);
  return result;
}
/// What a free is answered, by what the pool made of it; `free_elsewhere(address)` has the driver answer. `stream`: the identity of the stream that
/// the free names, 0: none.
template <class FreeElsewhere>
CUresult answer_free(const FreeResult& result, CUdeviceptr address, FreeElsewhere&& free_elsewhere, std::uint64_t stream = 0);

// --- stream-ordered memory and memory pools (front_door_streams.cpp, front_door_mempools.cpp)
CUresult allocate_async(const Real<CUresult(CUdeviceptr*, std::size_t, CUstream)>& real, CUdeviceptr* out, std::size_t bytes, CUstream stream);
CUresult allocate_async(const Real<CUresult(CUdeviceptr*, std::size_t, CUmemoryPool, CUstream)>& real, CUdeviceptr* out, std::size_t bytes,
                        CUmemoryPool pool, CUstream stream);
CUresult free_async(const Real<CUresult(CUdeviceptr, CUstream)>& real, CUdeviceptr address, CUstream stream);
CUresult create_mempool(const Real<CUresult(CUmemoryPool*, const CUmemPoolProps*)>& real, CUmemoryPool* out, const CUmemPoolProps* properties);
CUresult destroy_mempool(const Real<CUresult(CUmemoryPool)>& real, CUmemoryPool pool);
CUresult set_mempool(const Real<CUresult(CUdevice, CUmemoryPool)>& real, CUdevice device, CUmemoryPool pool);
CUresult set_mempool(const Real<CUresult(CUmemLocation*, CUmemAllocationType, CUmemoryPool)>& real, CUmemLocation* location, CUmemAllocationType type,
                     CUmemoryPool pool);
CUresult get_mempool(const Real<CUresult(CUmemoryPool*, CUmemLocation*, CUmemAllocationType)>& real, CUmemoryPool* out, CUmemLocation* location,
                     CUmemAllocationType type);
CUresult get_mempool_attribute(const Real<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& real, CUmemoryPool pool, CUmemPool_attribute attribute,
                               void* value);
CUresult set_mempool_attribute(const Real<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& real, CUmemoryPool pool, CUmemPool_attribute attribute,
                               void* value);
CUresult trim_mempool(const Real<CUresult(CUmemoryPool, std::size_t)>& real, CUmemoryPool pool, std::size_t keep_bytes);
CUresult set_mempool_access(const Real<CUresult(CUmemoryPool, const CUmemAccessDesc*, std::size_t)>& real, CUmemoryPool pool,
                            const CUmemAccessDesc* access, std::size_t count);
CUresult export_mempool_pointer(const Real<CUresult(CUmemPoolPtrExportData*, CUdeviceptr)>& real, CUmemPoolPtrExportData* out, CUdeviceptr address);

/// `context` of `device` has begun. Where the program gave devices access to each other's memory pools, the contexts that this concerns are linked.
void share_with_new_context(CUcontext context, int device);
/// The same for a context that a call was to end and that lives on: what another thread shared during the call has left it out.
void share_with_survivor(CUcontext context);

// --- queries (front_door_queries.cpp)
CUresult memory_info(const Real<CUresult(std::size_t*, std::size_t*)>& real, std::size_t* free_bytes, std::size_t* total_bytes);
CUresult device_total(const Real<CUresult(std::size_t*, CUdevice)>& real, std::size_t* bytes, CUdevice device);
CUresult address_range(const Real<CUresult(CUdeviceptr*, std::size_t*, CUdeviceptr)>& real, CUdeviceptr* base, std::size_t* bytes,
                       CUdeviceptr address);
CUresult pointer_attribute(const Real<CUresult(void*, CUpointer_attribute, CUdeviceptr)>& real, void* value, CUpointer_attribute attribute,
                           CUdeviceptr address);
CUresult pointer_attributes(const Real<CUresult(unsigned, CUpointer_attribute*, void**, CUdeviceptr)>& real, unsigned count,
                            CUpointer_attribute* attributes, void** values, CUdeviceptr address);
CUresult set_pointer_attribute(const Real<CUresult(const void*, CUpointer_attribute, CUdeviceptr)>& real, const void* value,
                               CUpointer_attribute attribute, CUdeviceptr address);

// --- memory shared between processes (front_door_ipc.cpp)
CUresult export_memory(const Real<CUresult(CUipcMemHandle*, CUdeviceptr)>& real, CUipcMemHandle* out, CUdeviceptr address);
CUresult open_memory(const Real<CUresult(CUdeviceptr*, CUipcMemHandle, unsigned)>& real, CUdeviceptr* out, CUipcMemHandle raw, unsigned flags);
CUresult close_memory(const Real<CUresult(CUdeviceptr)>& real, CUdeviceptr address);
/// cuPointerSetAttribute on an address that is not pooled.
CUresult set_opened_attribute(const Real<CUresult(const void*, CUpointer_attribute, CUdeviceptr)>& real, const void* value,
                              CUpointer_attribute attribute, CUdeviceptr address);
/// Whose `address` is, blocks included that another process has exported to us. Fills `*block` where it is in a live one.
Ownership find_block(CUdeviceptr address, BlockView* block);
/// `address`, or kNowhere where it lies in a region that is open for a block of another process: the driver must not free or close that.
CUdeviceptr unless_opened(CUdeviceptr address);

// --- contexts of other devices (front_door_peers.cpp)
CUresult enable_peer(const Real<CUresult(CUcontext, unsigned)>& real, CUcontext peer, unsigned flags);
CUresult disable_peer(const Real<CUresult(CUcontext)>& real, CUcontext peer);
/// `device` has come into use: under the policy `async` it and each of `others` get access to the other's default pool.
void share_driver_pools(Process& own, int device, const std::vector<int>& others);

// --- contexts (front_door_contexts.cpp)
CUresult destroy_context(const Real<CUresult(CUcontext)>& real, CUcontext context);
CUresult detach_context(const Real<CUresult(CUcontext)>& real, CUcontext context);
CUresult retain_primary(const Real<CUresult(CUcontext*, CUdevice)>& real, CUcontext* out, CUdevice device);
CUresult release_primary(const Real<CUresult(CUdevice)>& real, CUdevice device);
CUresult reset_primary(const Real<CUresult(CUdevice)>& real, CUdevice device);
CUresult create_green(const Real<CUresult(CUgreenCtx*, CUdevResourceDesc, CUdevice, unsigned)>& real, CUgreenCtx* out, CUdevResourceDesc description,
                      CUdevice device, unsigned flags);
CUresult destroy_green(const Real<CUresult(CUgreenCtx)>& real, CUgreenCtx green);
CUresult context_from_green(const Real<CUresult(CUcontext*, CUgreenCtx)>& real, CUcontext* out, CUgreenCtx green);
/// `context` of `device` lives: registers it with the pool and the books.
void note_context(CUcontext context, int device);

// --- captures and ends of streams (front_door_captures.cpp)
CUresult end_capture(const Real<CUresult(CUstream, CUgraph*)>& real, CUstream stream, CUgraph* out);
CUresult end_capture(const Real<CUresult(CUstream)>& real, CUstream stream);
CUresult wait_for_event(const Real<CUresult(CUstream, CUevent, unsigned)>& real, CUstream stream, CUevent event, unsigned flags);
CUresult destroy_stream(const Real<CUresult(CUstream)>& real, CUstream stream);
/// The context that owns what is allocated on a created stream (no default one); nullptr: the driver does not say.
CUcontext owner_of_stream(const Process& own, CUstream stream);
/// A key that tells streams apart in the capture gate: the handle, or for a default stream a number of its context and, where it has one, its thread.
CUstream stream_key(CUstream stream, bool is_per_thread);

// --- memory outside the pool (front_door_outside.cpp)
CUresult allocate_managed(const Real<CUresult(CUdeviceptr*, std::size_t, unsigned)>& real, CUdeviceptr* out, std::size_t bytes, unsigned flags);
CUresult allocate_host(const Real<CUresult(void**, std::size_t, unsigned)>& real, void** out, std::size_t bytes, unsigned flags);
CUresult allocate_host(const Real<CUresult(void**, std::size_t)>& real, void** out, std::size_t bytes);
CUresult allocate_host(const Real<CUresult(void**, unsigned)>& real, void** out, unsigned bytes);
CUresult free_host(const Real<CUresult(void*)>& real, void* address);
CUresult register_host(const Real<CUresult(void*, std::size_t, unsigned)>& real, void* address, std::size_t bytes, unsigned flags);
CUresult create_array(const Real<CUresult(CUarray*, const CUDA_ARRAY_DESCRIPTOR*)>& real, CUarray* out, const CUDA_ARRAY_DESCRIPTOR* description);
CUresult create_array(const Real<CUresult(CUarray*, const CUDA_ARRAY3D_DESCRIPTOR*)>& real, CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR* description);
CUresult create_array(const Real<CUresult(CUmipmappedArray*, const CUDA_ARRAY3D_DESCRIPTOR*, unsigned)>& real, CUmipmappedArray* out,
                      const CUDA_ARRAY3D_DESCRIPTOR* description, unsigned levels);
CUresult destroy_array(const Real<CUresult(CUarray)>& real, CUarray array);
CUresult destroy_array(const Real<CUresult(CUmipmappedArray)>& real, CUmipmappedArray array);
CUresult create_physical(const Real<CUresult(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long)>& real,
                         CUmemGenericAllocationHandle* out, std::size_t bytes, const CUmemAllocationProp* properties, unsigned long long flags);
CUresult release_physical(const Real<CUresult(CUmemGenericAllocationHandle)>& real, CUmemGenericAllocationHandle handle);
/// What is known of the memory pool that stream-ordered memory is asked from. The functions take the device of the allocation.
struct MempoolFacts {
  std::optional<MempoolBook::Made> made;     ///< nullopt: nothing is known, and its memory counts as the stream's device's
  std::function<bool(int)> is_default;       ///< is it the default pool from which the policy `async` takes plain blocks?
  std::function<MempoolBounds(int)> bounds;  ///< the size that the program has set for it, and how much of that is used
  std::function<CUmemoryPool(int)> handle;   ///< nullptr: the driver does not tell
};

/// Stream-ordered memory that the driver serves itself (PoolSet::allocate_by_driver); its free is free_of_driver's.
/// `call` makes the program's call, `ask` one that the driver must refuse for its size, to learn another reason. `stream`: a plain_handle. The memory
/// ends with the stream's context only where that is the device's primary one.
CUresult serve_by_driver(std::size_t bytes, const char* symbol, CUdeviceptr* out, CUstream stream, const MempoolFacts& mempool,
                         const std::function<CUresult()>& call, const PoolSet::AskDriver& ask);
/// The entry of what the program took from the driver at `address` outside the pool, if anything; for free_outside.
std::optional<PoolSet::OutsideEntry> take_outside(CUdeviceptr address);

/// `call` has the driver free the memory of `entry`, which is booked as gone if that succeeds.
template <class Call> CUresult free_outside(const std::optional<PoolSet::OutsideEntry>& entry, Call&& call) {
  const CUresult result = call();
  if (entry) process().pools.end_take(*entry, result == CUDA_SUCCESS);
  return result;
}

// --- mappings (front_door_mappings.cpp)
CUresult map_physical(const Real<CUresult(CUdeviceptr, std::size_t, std::size_t, CUmemGenericAllocationHandle, unsigned long long)>& real,
                      CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags);
/// The program maps memory into parts of a sparse array, or unmaps some. The driver does so in stream order, but what is unmapped counts as gone at
/// once.
CUresult map_array(const Real<CUresult(CUarrayMapInfo*, unsigned, CUstream)>& real, CUarrayMapInfo* changes, unsigned count, CUstream stream);
/// Books what was mapped into arrays of ended contexts as gone.
void forget_mapped_arrays();
CUresult unmap_physical(const Real<CUresult(CUdeviceptr, std::size_t)>& real, CUdeviceptr address, std::size_t bytes);
CUresult retain_physical(const Real<CUresult(CUmemGenericAllocationHandle*, void*)>& real, CUmemGenericAllocationHandle* out, void* address);
CUresult set_access(const Real<CUresult(CUdeviceptr, std::size_t, const CUmemAccessDesc*, std::size_t)>& real, CUdeviceptr address, std::size_t bytes,
                    const CUmemAccessDesc* access, std::size_t count);
CUresult get_access(const Real<CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr)>& real, unsigned long long* flags,
                    const CUmemLocation* location, CUdeviceptr address);
CUresult free_addresses(const Real<CUresult(CUdeviceptr, std::size_t)>& real, CUdeviceptr address, std::size_t bytes);
/// A descriptor of a range of a block for other devices (dma-buf): the block's pages are not moved from then on.
CUresult range_handle(const Real<CUresult(void*, CUdeviceptr, std::size_t, CUmemRangeHandleType, unsigned long long)>& real, void* out,
                      CUdeviceptr address, std::size_t bytes, CUmemRangeHandleType type, unsigned long long flags);

// --- waits of the program (front_door_memory.cpp)
/// Whose work is over when a call of role `wait` succeeds.
struct Awaited {
  enum class What : std::uint8_t { unknown, stream, context } what = What::unknown;
  CUstream stream = nullptr;
  CUcontext context = nullptr;  ///< null: the current one
};
/// The arguments tell; those of an event do not.
template <class... Args> Awaited awaited_by(Args...) { return {}; }
inline Awaited awaited_by(CUstream stream) { return {Awaited::What::stream, stream, nullptr}; }
inline Awaited awaited_by() { return {Awaited::What::context, nullptr, nullptr}; }
inline Awaited awaited_by(CUcontext context) { return {Awaited::What::context, nullptr, context}; }
/// What had been freed when a wait of the program began. Only that is known to be covered by the wait, not what is freed during it.
struct WaitBegun {
  CUcontext owner = nullptr;
  std::uint64_t identity = 0;         ///< of the stream that is waited for; 0: all streams of the owner
  std::uint64_t lane_fills = 0;       ///< PoolSet::lane_fills(); 0: no lane is covered
  std::uint64_t at_driver = 0;        ///< identity of the stream whose frees at the driver are covered; 0: those on all streams of the owner
  std::uint64_t freed_at_driver = 0;  ///< PoolSet::freed_at_driver(); 0: none is covered
};
/// Takes no lock in a program with one stream.
WaitBegun before_wait(const Awaited& awaited);
/// The program's wait has succeeded: the pool retires what is over.
void after_wait(const WaitBegun& begun = {});

// --- copies (front_door_copies.cpp)
/// Set for good once copies may need help: contexts of two devices live while blocks may lie on mapped pages or in the driver's own pool, or
/// SYNC_MEMOPS was set on a block on mapped pages.
inline constinit std::atomic<bool> g_copies_are_watched{false};
/// Does the driver have the calls that copies between devices are turned into?
inline bool can_copy_to_peers(const DriverApi& api) { return api.cuMemcpyPeer != nullptr && api.cuMemcpyPeerAsync != nullptr; }
inline bool can_copy_shapes_to_peers(const DriverApi& api) { return api.cuMemcpy3DPeer != nullptr && api.cuMemcpy3DPeerAsync != nullptr; }
/// A context of `device` lives: from the second device on copies are watched.
void note_device(int device);
CUresult copy_unified(const Real<CUresult(CUdeviceptr, CUdeviceptr, std::size_t)>& real, CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
CUresult copy_unified(const Real<CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>& real, CUdeviceptr to, CUdeviceptr from,
                      std::size_t bytes, CUstream stream);
CUresult copy_on_devices(const Real<CUresult(CUdeviceptr, CUdeviceptr, std::size_t)>& real, CUdeviceptr to, CUdeviceptr from, std::size_t bytes);
CUresult copy_on_devices(const Real<CUresult(CUdeviceptr, CUdeviceptr, std::size_t, CUstream)>& real, CUdeviceptr to, CUdeviceptr from,
                         std::size_t bytes, CUstream stream);
CUresult copy_to_host(const Real<CUresult(void*, CUdeviceptr, std::size_t)>& real, void* to, CUdeviceptr from, std::size_t bytes);
CUresult copy_to_host(const Real<CUresult(void*, CUdeviceptr, std::size_t, CUstream)>& real, void* to, CUdeviceptr from, std::size_t bytes,
                      CUstream stream);
CUresult copy_from_host(const Real<CUresult(CUdeviceptr, const void*, std::size_t)>& real, CUdeviceptr to, const void* from, std::size_t bytes);
CUresult copy_from_host(const Real<CUresult(CUdeviceptr, const void*, std::size_t, CUstream)>& real, CUdeviceptr to, const void* from,
                        std::size_t bytes, CUstream stream);
CUresult copy_shape(const Real<CUresult(const CUDA_MEMCPY2D*)>& real, const CUDA_MEMCPY2D* shape);
CUresult copy_shape(const Real<CUresult(const CUDA_MEMCPY2D*, CUstream)>& real, const CUDA_MEMCPY2D* shape, CUstream stream);
CUresult copy_shape(const Real<CUresult(const CUDA_MEMCPY3D*)>& real, const CUDA_MEMCPY3D* shape);
CUresult copy_shape(const Real<CUresult(const CUDA_MEMCPY3D*, CUstream)>& real, const CUDA_MEMCPY3D* shape, CUstream stream);
/// Synchronous copies that are always the driver's own; on memory with SYNC_MEMOPS they are waited for.
CUresult copy_to_peer(const Real<CUresult(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, std::size_t)>& real, CUdeviceptr to, CUcontext to_context,
                      CUdeviceptr from, CUcontext from_context, std::size_t bytes);
CUresult copy_to_peer(const Real<CUresult(const CUDA_MEMCPY3D_PEER*)>& real, const CUDA_MEMCPY3D_PEER* shape);
/// After a synchronous call that returned `result`: where one of the addresses lies in a block on mapped pages with SYNC_MEMOPS, which the driver
/// does not know of, waits for the default stream. Returns what the program is told.
CUresult settle(CUresult result, bool is_per_thread, std::initializer_list<CUdeviceptr> touched);
template <class... Shape> CUresult set_memory(const Real<CUresult(CUdeviceptr, Shape...)>& real, CUdeviceptr to, Shape... shape) {
  return settle(real(to, shape...), real.is_per_thread(), {to});
}

// --- lookups (symbol_lookup.cpp)
CUresult look_up(const Real<CUresult(const char*, void**, int, cuuint64_t)>& real, const char* name, void** function, int version, cuuint64_t flags);
CUresult look_up(const Real<CUresult(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*)>& real, const char* name, void** function,
                 int version, cuuint64_t flags, CUdriverProcAddressQueryResult* status);

/// The driver frees what the pool does not serve. `stream`: identity of the stream that the free names, 0: none. `note_foreign` is called if the
/// driver has freed what is in no book of ours.
template <class FreeElsewhere, class NoteForeign = void (*)()> CUresult free_of_driver(
    CUdeviceptr address, std::uint64_t stream, FreeElsewhere&& free_elsewhere, NoteForeign&& note_foreign = [] {}) {
  const auto free_there = [&] { return free_elsewhere(unless_opened(address)); };
  if (const std::optional<CUresult> answer = process().pools.free_by_driver(address, stream, std::cref(free_there))) return *answer;
  const CUresult result = free_outside(take_outside(address), free_there);
  if (result == CUDA_SUCCESS) note_foreign();
  return result;
}

template <class FreeElsewhere>
CUresult answer_free(const FreeResult& result, CUdeviceptr address, FreeElsewhere&& free_elsewhere, std::uint64_t stream) {
  switch (result.outcome) {
    case FreeOutcome::freed: return CUDA_SUCCESS;
    case FreeOutcome::failed: return result.error.code;
    case FreeOutcome::invalid: return free_elsewhere(kNowhere);
    case FreeOutcome::unknown: break;
  }
  return free_of_driver(address, stream, free_elsewhere);
}

// --- one body for every variant of a call
/// Makes `call`, and again as long as it is out of memory and the pool gives some back to the driver, since natively that would have been free.
/// `bytes`: what the call is known to take of `device`, so that the pool first gives back no more than is missing; 0: unknown.
template <class Call> CUresult call_with_room(Call&& call, int device = kNoDevice, std::size_t bytes = 0) {
  PoolSet& pools = process().pools;
  constexpr int kMostTries = 100;  // other threads may go on giving back what others take
  bool has_trimmed = false;        // graph memory is trimmed once: each launch that is refused may leave memory with the driver again
  for (int tries = 1;; ++tries) {
    const std::uint64_t before = pools.times_given_back();
    const CUresult result = call();
    if (result != CUDA_ERROR_OUT_OF_MEMORY || tries == kMostTries) return result;
    if (tries == 1 && device != kNoDevice && pools.make_room_for(device, bytes)) continue;
    if (pools.make_room(before)) continue;
    if (has_trimmed || !pools.trim_graphs()) return result;
    has_trimmed = true;
  }
}

/// Warns the user that the driver has no memory for a call of which nobody knows how much it needs. `device` kNoDevice: the current context's.
void refused_room(const char* symbol, int device = kNoDevice);

/// A call that takes device memory inside the driver (for code, stacks, graphs, contexts): before it is refused, the pool gives back what it keeps
/// for reuse, which natively would have been free.
template <class... Args> CUresult with_room(const Real<CUresult(Args...)>& real, Args... args) {
  const CUresult result = call_with_room([&] { return real(args...); });
  if (result == CUDA_ERROR_OUT_OF_MEMORY) [[unlikely]]
    refused_room(real.symbol());
  return result;
}

/// The same for a call that is made under `turn`, which is let go before the user is warned.
template <class Turn, class... Args> CUresult with_room_in(Turn& turn, int device, const Real<CUresult(Args...)>& real, Args... args) {
  const CUresult result = call_with_room([&] { return real(args...); });
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return result;
  turn.unlock();
  refused_room(real.symbol(), device);
  return result;
}

/// The device that a context is created for: the last argument of its type.
template <class... Rest> int device_among(Rest... rest) {
  int device = kNoDevice;
  [[maybe_unused]] const auto look_at = [&device](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), CUdevice>) device = argument;
  };
  (look_at(rest), ...);
  return device;
}

/// cuCtxCreate in its four forms, and those of graphics libraries.
template <class... Rest> CUresult create_context(const Real<CUresult(CUcontext*, Rest...)>& real, CUcontext* out, Rest... rest) {
  const int device = device_among(rest...);
  const CUresult result = call_with_room([&] { return real(out, rest...); });
  if (result == CUDA_ERROR_OUT_OF_MEMORY) [[unlikely]]
    refused_room(real.symbol(), device);
  if (result != CUDA_SUCCESS || out == nullptr) return result;
  process().pools.await_end_of(*out);
  note_context(*out, device);
  return result;
}

/// The mode of a capture, as its arguments say. The oldest form has no such argument and is global; one into a graphics command list is relaxed.
template <class... Rest> CUstreamCaptureMode mode_of(Rest... rest) {
  CUstreamCaptureMode mode =
      (std::is_same_v<Rest, CUstreamCigCaptureParams*> || ...) ? CU_STREAM_CAPTURE_MODE_RELAXED : CU_STREAM_CAPTURE_MODE_GLOBAL;
  [[maybe_unused]] const auto look_at = [&mode](auto argument) {
    if constexpr (std::is_same_v<decltype(argument), CUstreamCaptureMode>) mode = argument;
  };
  (look_at(rest), ...);
  return mode;
}

template <class... Rest> CUresult begin_capture(const Real<CUresult(CUstream, Rest...)>& real, CUstream stream, Rest... rest) {
  const bool is_threads_own = plain_handle(stream, real.is_per_thread()) == CU_STREAM_PER_THREAD;
  const std::uint64_t thread = is_threads_own ? StreamBook::thread_number() : 0;
  const auto begin = [&] { return real(stream, rest...); };
  const CUresult result = process().pools.begin_capture(stream_key(stream, real.is_per_thread()), std::cref(begin), mode_of(rest...), thread);
  if (result == CUDA_SUCCESS && is_threads_own) thread_end::watch(thread);
  return result;
}

/// Passes a call on that takes device memory which no part of the pool serves: the report names it under data_quality.
template <class... Args> CUresult pass_unpooled(const Real<CUresult(Args...)>& real, Args... args) {
  const CUresult result = real(args...);
  if (result == CUDA_SUCCESS) process().saw_unpooled(real.symbol());
  return result;
}

}  // namespace cupool::shim::front_door
