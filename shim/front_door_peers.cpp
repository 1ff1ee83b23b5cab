// Contexts of one device that are given access to another's: it must cover plain blocks on mapped pages, or in the driver's own pool, as well.
// CUDA Driver API 13.0: Peer Context Memory Access, Stream Ordered Memory Allocator (cuMemPoolSetAccess).
#include <new>
#include <vector>

#include "shim/front_door.hpp"

namespace cupool::shim::front_door {
namespace {

/// True under the policy `async`, where plain blocks come from the driver's pool. Other devices reach that by the pool's own list of access, not
/// because contexts are peers, and without it not even by copies, which reach cuMemAlloc memory without access. So once a second device is used, each
/// device gets access to the others' pools. Two devices without a link are refused; between them copies are turned (front_door_copies.cpp).
bool shares_driver_pools(const Process& own) {
  return own.options->policy == config::Policy::async && own.api.cuMemPoolSetAccess != nullptr && own.api.cuDeviceGetDefaultMemPool != nullptr;
}

/// Lets device `from` reach the pool of device `to`. True: it does now, or did before.
bool grant(Process& own, int from, int to) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = from;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  bool is_granted = false;
  for (int attempt = 0; attempt < 2 && !is_granted; ++attempt) {  // tried twice: the first error may be one of earlier work
    CUmemoryPool pool = nullptr;
    is_granted = own.api.cuDeviceGetDefaultMemPool(&pool, to) == CUDA_SUCCESS && own.api.cuMemPoolSetAccess(pool, &access, 1) == CUDA_SUCCESS;
  }
  try {
    if (is_granted) own.peers.grants(from, to);
  } catch (const std::bad_alloc&) {
    return true;  // access is given; it will be asked for again, because it is not booked
  }
  return is_granted || own.peers.is_granted(from, to);
}

/// The device of `context`, which may be unknown to the pool where host memory was out; kNoDevice: the driver does not say.
int device_of(const Process& own, CUcontext context, bool is_current) {
  if (const std::optional<int> known = own.pools.device_of(own.contexts.owner(context))) return *known;
  CUdevice device = kNoDevice;
  CUcontext popped = nullptr;
  // Each call is tried twice, because an error may be one of earlier work: without the device, access that was never given would pass as given.
  const auto ask = [&] { return own.api.cuCtxGetDevice(&device) == CUDA_SUCCESS || own.api.cuCtxGetDevice(&device) == CUDA_SUCCESS; };
  if (is_current) return ask() ? device : kNoDevice;
  if (own.api.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS && own.api.cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return kNoDevice;
  const bool has_answer = ask();
  if (own.api.cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS) own.api.cuCtxPopCurrent_v2(&popped);
  return has_answer ? device : kNoDevice;
}

/// False: `peer` cannot be reached from the current context, because its device's pool cannot.
bool can_reach(Process& own, CUcontext peer) {
  if (!shares_driver_pools(own)) return true;
  const int from = device_of(own, current_owner(own), true);
  const int to = device_of(own, peer, false);
  return from == kNoDevice || to == kNoDevice || from == to || own.peers.is_granted(from, to) || grant(own, from, to);
}

}  // namespace

void share_driver_pools(Process& own, int device, const std::vector<int>& others) {
  if (!shares_driver_pools(own)) return;
  for (const int other : others) {
    if (other == device) continue;
    grant(own, device, other);
    grant(own, other, device);
  }
}

CUresult enable_peer(const Real<CUresult(CUcontext, unsigned)>& real, CUcontext peer, unsigned flags) {
  Process& own = process();
  own.pools.link_devices();  // before the call: from its success on the peer's work may reach our blocks
  const CUresult result = call_with_room([&] {
    const std::unique_lock turn = own.peers.turn();  // inside, because making room may wait for the GPU
    return real(peer, flags);
  });
  if (result == CUDA_SUCCESS && !can_reach(own, peer)) {
    if (own.api.cuCtxDisablePeerAccess != nullptr) own.api.cuCtxDisablePeerAccess(peer);
    return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
  }
  CUdevice device = own.pools.device_of(current_owner(own)).value_or(kNoDevice);
  const auto knows_device = [&] { return device != kNoDevice || own.api.cuCtxGetDevice(&device) == CUDA_SUCCESS; };
  if (result == CUDA_SUCCESS && (knows_device() || knows_device())) {  // asked twice: the first error may be one of earlier work
    const Status shared = own.pools.share_pages(own.contexts.owner(peer), device);
    if (!shared.ok() && own.api.cuCtxDisablePeerAccess != nullptr) own.api.cuCtxDisablePeerAccess(peer);
    if (!shared.ok()) return shared.code();
  }
  if (result != CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED) return result;
  return own.peers.program_enables(current_context(own), peer) ? CUDA_SUCCESS : result;
}

CUresult disable_peer(const Real<CUresult(CUcontext)>& real, CUcontext peer) {
  Process& own = process();
  const CUcontext current = current_context(own);
  if (current == nullptr) return real(peer);
  const std::unique_lock turn = own.peers.turn();
  switch (own.peers.program_disables(current, peer)) {
    case PeerBook::Disable::success: return CUDA_SUCCESS;
    case PeerBook::Disable::not_enabled: return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    case PeerBook::Disable::ask_driver: break;
  }
  return real(peer);
}

}  // namespace cupool::shim::front_door
