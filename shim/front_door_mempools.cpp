// Memory pools: their creation and end, their attributes, and which devices may reach their blocks.
// CUDA Driver API 13.0, Stream Ordered Memory Allocator.
#include <algorithm>
#include <array>
#include <cstring>
#include <new>

#include "pool/device/fence.hpp"
#include "shim/front_door.hpp"
#include "shim/in_context.hpp"
#include "shim/memory_location.hpp"

namespace cupool::shim::front_door {
namespace {

/// The figure that answers `attribute`; nullptr: the driver's answer stands. A served pool never reserves more than it uses: what is idle is
/// everybody's, and cuMemGetInfo calls it free. Programs rely on reserved memory not being free, as it natively is (ComfyUI loads up to free +
/// reserved - used, vLLM leaves total - free - reserved to others).
std::uint64_t PoolSet::MempoolFigures::*figure_of(CUmemPool_attribute attribute) {
  switch (attribute) {
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: return &PoolSet::MempoolFigures::used_bytes;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: return &PoolSet::MempoolFigures::reserved_high_bytes;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: return &PoolSet::MempoolFigures::used_high_bytes;
    default: return nullptr;
  }
}

/// The attribute whose high-water mark `attribute` is; nullopt: it is no mark.
std::optional<CUmemPool_attribute> current_of(CUmemPool_attribute attribute) {
  if (attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) return CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) return CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
  return std::nullopt;
}

/// The pool behind `handle`, if we serve it.
std::optional<Mempool> served(Process& own, CUmemoryPool handle) { return own.pools.serves_streams() ? own.mempools.find(handle) : std::nullopt; }

/// Lets context `from` reach the blocks of context `to`, because the program gave it access to the memory pool that they are in.
CUresult link(Process& own, CUcontext from, CUcontext to) {
  if (from == to || own.api.cuCtxEnablePeerAccess == nullptr) return CUDA_SUCCESS;
  const std::unique_lock turn = own.peers.turn();
  const PoolSet::ContextHold from_hold(own.pools, from);
  const PoolSet::ContextHold to_hold(own.pools, to);  // neither may end before the link is booked, since its end forgets booked links
  if (!from_hold.held() || !to_hold.held()) return CUDA_SUCCESS;
  const InContext inside(own.api, from);
  if (!inside.ok()) return CUDA_SUCCESS;
  // A capture may forbid this call, but does not forbid the program's, which it serves.
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  const bool relaxed = own.api.cuThreadExchangeStreamCaptureMode != nullptr && own.api.cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS;
  const CUresult result = own.api.cuCtxEnablePeerAccess(to, 0);
  if (relaxed) own.api.cuThreadExchangeStreamCaptureMode(&mode);
  if (result == CUDA_SUCCESS) own.peers.enabled_by_us(from, to);
  if (result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) own.peers.enabled_by_program(from, to);
  // Natively access to a pool needs no context, so a context's failure is not the program's: in one that is broken or gone nothing runs anyway.
  const bool is_moot = result == CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED || device::is_of_earlier_work(result) || device::is_context_gone(result);
  return is_moot ? CUDA_SUCCESS : result;
}

/// Lets every context of `peer` reach the blocks of every context of `device`.
CUresult link_all(Process& own, int device, int peer) {
  for (CUcontext from : own.peers.contexts_of(peer))
    for (CUcontext to : own.peers.contexts_of(device))
      if (const CUresult result = link(own, from, to); result != CUDA_SUCCESS) return result;
  for (CUcontext to : own.peers.contexts_of(device))
    if (const Status shared = own.pools.share_pages(to, peer); !shared.ok()) return shared.code();
  return CUDA_SUCCESS;
}

/// Blocks of `device` are for `peer` from now on. Booked before contexts are linked, so that one that another thread creates meanwhile is linked
/// there.
CUresult share(Process& own, int device, int peer) {
  own.pools.link_devices();
  const bool is_new = !own.peers.is_shared(device, peer);
  if (is_new) own.peers.share(device, peer, true);
  const CUresult result = link_all(own, device, peer);
  if (result != CUDA_SUCCESS && is_new) own.peers.share(device, peer, false);
  return result;
}

/// Is this access that we gave ourselves, because plain blocks lie in the pool? Natively copies of another device reach plain blocks, whatever access
/// the program gives to pools.
bool is_access_of_plain_blocks(Process& own, CUmemoryPool pool, const CUmemAccessDesc& access) {
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE || own.api.cuDeviceGetDefaultMemPool == nullptr) return false;
  for (int device = 0; device < int{observe::kMaxDevices}; ++device) {
    CUmemoryPool standard = nullptr;
    if (own.peers.is_granted(access.location.id, device) && own.api.cuDeviceGetDefaultMemPool(&standard, device) == CUDA_SUCCESS && standard == pool)
      return true;
  }
  return false;
}

/// Under the policy `async`: hands the program's list to the driver without the entries that would take access from plain blocks; those are answered
/// with success. A list that is longer than there are devices goes to the driver unread.
CUresult set_driver_pool_access(Process& own, const Real<CUresult(CUmemoryPool, const CUmemAccessDesc*, std::size_t)>& real, CUmemoryPool pool,
                                const CUmemAccessDesc* access, std::size_t count) {
  if (access == nullptr || count == 0 || count > observe::kMaxDevices) return real(pool, access, count);
  std::array<CUmemAccessDesc, observe::kMaxDevices> rest;
  const auto takes = [&](const CUmemAccessDesc& one) {
    return one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE && is_access_of_plain_blocks(own, pool, one);
  };
  const auto end = std::remove_copy_if(access, access + count, rest.begin(), takes);
  return end == rest.begin() ? CUDA_SUCCESS : real(pool, rest.data(), static_cast<std::size_t>(end - rest.begin()));
}

/// Corrects the driver's answer `*bytes` under the policy `async`, where the default pool holds plain blocks as well, which natively no pool does,
/// and where cuMemGetInfo calls its idle memory free.
void leave_plain_blocks_out(Process& own, CUmemoryPool pool, CUmemPool_attribute attribute, std::uint64_t* bytes) {
  const bool is_reserved = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
  if (own.options->policy != config::Policy::async || (!is_reserved && attribute != CU_MEMPOOL_ATTR_USED_MEM_CURRENT)) return;
  const std::optional<Mempool> known = own.mempools.find(pool);
  if (!known || known->index != MempoolBook::kDefault) return;
  std::uint64_t used_bytes = *bytes;
  if (is_reserved && own.api.cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, static_cast<void*>(&used_bytes)) != CUDA_SUCCESS) return;
  *bytes = used_bytes - std::min(used_bytes, own.pools.plain_bytes(known->device));
}

}  // namespace

void share_with_new_context(CUcontext context, int device) {
  Process& own = process();
  own.peers.context_seen(context, device);
  note_device(device);  // of two threads with a device each, the second to come here sees both
  for (const PeerBook::Share& share : own.peers.shares()) {
    if (share.peer == device)
      for (CUcontext to : own.peers.contexts_of(share.device)) link(own, context, to);
    if (share.device != device) continue;
    for (CUcontext from : own.peers.contexts_of(share.peer)) link(own, from, context);
    static_cast<void>(own.pools.share_pages(context, share.peer));  // no call of the program is there to be told of a refusal
  }
}

void share_with_survivor(CUcontext context) {
  const std::optional<int> device = process().pools.device_of(context);
  try {
    if (device) share_with_new_context(context, *device);
  } catch (const std::bad_alloc&) {  // no call of the program is there to be told
  }
}

CUresult create_mempool(const Real<CUresult(CUmemoryPool*, const CUmemPoolProps*)>& real, CUmemoryPool* out, const CUmemPoolProps* properties) {
  const CUresult result = with_room(real, out, properties);
  if (result != CUDA_SUCCESS || out == nullptr || properties == nullptr) return result;
  Process& own = process();
  own.mempools.made(*out, *properties);
  const std::optional<MempoolBook::Made> made = own.mempools.facts_of(*out);
  if (!made || made->device == kNoDevice) return result;
  const int device = made->device;
  own.pools.mempool_made(device, *out);
  const auto unused = [&](std::uint8_t index) { return own.pools.mempool_figures(device, index).used_bytes == 0; };
  if (!own.pools.serves_streams() || !own.mempools.created(*out, *properties, unused)) return result;
  if (const std::optional<Mempool> mempool = own.mempools.find(*out)) own.pools.reset_mempool_high(device, mempool->index);
  return result;
}

CUresult destroy_mempool(const Real<CUresult(CUmemoryPool)>& real, CUmemoryPool pool) {
  MempoolBook& mempools = process().mempools;
  const std::optional<Mempool> was = mempools.known(pool);
  const std::optional<MempoolBook::Made> made = mempools.leave(pool);
  process().pools.mempool_ending(pool);
  const CUresult result = real(pool);
  if (result == CUDA_SUCCESS) mempools.destroyed(pool, was);
  else mempools.kept(pool, made);
  if (result != CUDA_SUCCESS && made && made->device != MempoolBook::kNoDevice) process().pools.mempool_made(made->device, pool);
  process().pools.mempools_changed();
  return result;
}

CUresult set_mempool(const Real<CUresult(CUdevice, CUmemoryPool)>& real, CUdevice device, CUmemoryPool pool) {
  const CUresult result = real(device, pool);
  if (result == CUDA_SUCCESS) process().mempools.set_current(device, pool);
  return result;
}

CUresult set_mempool(const Real<CUresult(CUmemLocation*, CUmemAllocationType, CUmemoryPool)>& real, CUmemLocation* location, CUmemAllocationType type,
                     CUmemoryPool pool) {
  const CUresult result = real(location, type, pool);
  const bool is_device = location != nullptr && location->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED;
  if (result == CUDA_SUCCESS && is_device) process().mempools.set_current(location->id, pool);
  if (result != CUDA_SUCCESS || is_device || location == nullptr) return result;
  // A locality domain may be all of its device: the device's current pool is asked for again.
  if (const std::optional<int> device = device_of(*location)) process().mempools.device_reset(*device);
  return result;
}

CUresult get_mempool(const Real<CUresult(CUmemoryPool*, CUmemLocation*, CUmemAllocationType)>& real, CUmemoryPool* out, CUmemLocation* location,
                     CUmemAllocationType type) {
  const CUresult result = real(out, location, type);
  if (result == CUDA_SUCCESS && out != nullptr && location != nullptr) process().mempools.given(*out, *location, type);
  return result;
}

CUresult get_mempool_attribute(const Real<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& real, CUmemoryPool pool, CUmemPool_attribute attribute,
                               void* value) {
  const CUresult result = real(pool, attribute, value);
  const auto figure = figure_of(attribute);
  if (result != CUDA_SUCCESS || figure == nullptr || value == nullptr) return result;
  Process& own = process();
  const std::optional<Mempool> mempool = served(own, pool);
  std::uint64_t bytes = 0;  // what the driver served itself
  std::memcpy(&bytes, value, sizeof bytes);
  if (!mempool) {
    leave_plain_blocks_out(own, pool, attribute, &bytes);
    std::memcpy(value, &bytes, sizeof bytes);
    return result;
  }
  const PoolSet::MempoolFigures ours = own.pools.mempool_figures(mempool->device, mempool->index);
  const std::optional<CUmemPool_attribute> current = current_of(attribute);
  std::uint64_t now_bytes = bytes;
  if (current && own.api.cuMemPoolGetAttribute != nullptr) {
    // The driver's mark and ours need not be of one moment, so their sum may be too much: the highest sum that certainly was reached.
    if (own.api.cuMemPoolGetAttribute(pool, *current, static_cast<void*>(&now_bytes)) != CUDA_SUCCESS) now_bytes = 0;
    bytes = std::max({bytes, ours.*figure, now_bytes + ours.*figure_of(*current)});
  } else {
    bytes += ours.*figure;
  }
  std::memcpy(value, &bytes, sizeof bytes);
  return result;
}

CUresult set_mempool_attribute(const Real<CUresult(CUmemoryPool, CUmemPool_attribute, void*)>& real, CUmemoryPool pool, CUmemPool_attribute attribute,
                               void* value) {
  const CUresult result = real(pool, attribute, value);
  const bool is_reserved = attribute == CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH;
  const bool is_used = attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH;
  if (result == CUDA_SUCCESS && attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) process().pools.mempools_changed();
  if (result != CUDA_SUCCESS || (!is_reserved && !is_used)) return result;
  Process& own = process();
  if (const std::optional<Mempool> mempool = served(own, pool))
    own.pools.reset_mempool_high(mempool->device, mempool->index, is_used ? MempoolHigh::used : MempoolHigh::reserved);
  return result;
}

CUresult trim_mempool(const Real<CUresult(CUmemoryPool, std::size_t)>& real, CUmemoryPool pool, std::size_t keep_bytes) {
  const CUresult result = real(pool, keep_bytes);
  if (result != CUDA_SUCCESS) return result;
  Process& own = process();
  own.pools.mempools_changed();
  // Memory that any served pool's blocks were freed from is given back by a trim of the default pool. Under `async` that pool also gets the plain
  // blocks whose frees were put off.
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
    // Access is not taken away again: blocks of other pools and plain ones lie in the same regions.
    if (one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) continue;
    try {
      if (const CUresult shared = share(own, mempool->device, one.location.id); shared != CUDA_SUCCESS) return shared;
    } catch (const std::bad_alloc&) {  // the driver's own part has succeeded, and would be the answer
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return result;
}

CUresult export_mempool_pointer(const Real<CUresult(CUmemPoolPtrExportData*, CUdeviceptr)>& real, CUmemPoolPtrExportData* out, CUdeviceptr address) {
  // Memory can be exported only from a pool that was created for it, and such pools are the driver's.
  return real(out, process().pools.owns(address) ? kNowhere : address);
}

}  // namespace cupool::shim::front_door
