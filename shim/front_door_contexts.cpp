// Contexts, with whose end their part of the pool ends. CUDA Driver API 13.0 §6.7–6.8 (contexts), §6.35 (green contexts).
#include <array>
#include <functional>
#include <new>
#include <utility>
#include <vector>

#include "pool/device/fence.hpp"
#include "shim/front_door.hpp"

namespace cupool::shim::front_door {
namespace {

/// Whether the context can be made current, which one that is gone cannot: for drivers that lack cuCtxGetApiVersion.
bool can_be_current(const Process& own, CUcontext context) {
  CUcontext popped = nullptr;
  return own.api.cuCtxPushCurrent_v2(context) == CUDA_SUCCESS && own.api.cuCtxPopCurrent_v2(&popped) == CUDA_SUCCESS;
}

/// Whether the context is gone after a call that may have ended it. One that is broken but lives may answer with its error.
bool is_gone(const Process& own, CUcontext context) {
  if (own.api.cuCtxGetApiVersion == nullptr) return !can_be_current(own, context);
  unsigned version = 0;
  const CUresult code = own.api.cuCtxGetApiVersion(context, &version);
  return code != CUDA_SUCCESS && !device::is_of_earlier_work(code);
}

/// May a call that ends something have done so? It may report an error of earlier work and have succeeded all the same; then the caller asks the
/// driver.
bool is_end(CUresult code) { return code == CUDA_SUCCESS || device::is_of_earlier_work(code); }

/// Runs `call`, which may end `context`. If `is_dead()` then, forgets what the context held here and what was exported from it or opened in it.
template <class Call, class IsDead> CUresult end_context(Process& own, CUcontext context, PoolBlocks pool_blocks, Call&& call, IsDead&& is_dead) {
  const SharedBlocks::Moment before = own.shared.mark();
  std::optional<bool> dead;
  // Called by the pool just before it books the end: after that another thread's new context may have the handle (await_end_of). Needs no host
  // memory.
  const auto is_dead_here = [&] {
    dead.emplace(is_dead());
    if (!*dead) return false;
    own.streams.something_ended();
    own.peers.context_ended(context);
    own.graphs.context_ended(context);
    own.vmm.context_ended(context);
    try {
      own.contexts.ended(context);
    } catch (const std::bad_alloc&) {  // threads that still have it current are told by the driver then
    }
    return true;
  };
  const CUresult result = own.pools.end_context(context, std::cref(call), std::cref(is_dead_here), pool_blocks);
  if (dead ? *dead : is_dead_here()) {
    own.shared.context_ended(context, before);
    forget_mapped_arrays();
  } else {
    share_with_survivor(context);
  }
  return result;
}

/// The primary context that a green context of `device` holds. Where we do not know its handle, it is learned by retaining and releasing it. Such a
/// release is not repeated where it fails: it may have taken place, and one reference too few would end the context.
CUcontext learn_primary(Process& own, CUdevice device) {
  CUcontext primary = own.contexts.primary(device);
  if (primary != nullptr && !own.contexts.has_ended(primary)) {
    note_context(primary, device);
    return primary;
  }
  if (own.api.cuDevicePrimaryCtxRetain == nullptr || own.api.cuDevicePrimaryCtxRelease_v2 == nullptr) return nullptr;
  if (own.api.cuDevicePrimaryCtxRetain(&primary, device) != CUDA_SUCCESS) return nullptr;
  own.api.cuDevicePrimaryCtxRelease_v2(device);
  own.contexts.set_primary(device, primary);
  note_context(primary, device);
  return primary;
}

/// The device's primary context, also when it was retained past us (a library that is bound to the driver directly); null when there is none.
CUcontext primary_of(Process& own, CUdevice device) {
  if (CUcontext known = own.contexts.primary(device)) return known;
  unsigned flags = 0;
  int is_active = 0;
  const bool is_told =
      own.api.cuDevicePrimaryCtxGetState != nullptr && own.api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) == CUDA_SUCCESS;
  return is_told && is_active != 0 ? learn_primary(own, device) : nullptr;
}

/// While any stream captures, the contexts that stand for the green contexts `greens()`: captures in them may end with these contexts, without a call
/// that we would see. Empty where host memory is out.
template <class Greens> std::vector<CUcontext> capturing_views(const Process& own, Greens&& greens) {
  std::vector<CUcontext> views;
  if (!own.pools.capturing() || own.api.cuCtxFromGreenCtx == nullptr) return views;
  try {
    for (CUgreenCtx green : greens()) {
      CUcontext view = nullptr;
      if (own.api.cuCtxFromGreenCtx(&view, green) == CUDA_SUCCESS) views.push_back(view);
    }
  } catch (const std::bad_alloc&) {}
  return views;
}

/// Runs `call`, which may end the primary context of `device`.
template <class Call, class IsDead> CUresult end_primary(CUdevice device, Call&& call, IsDead&& is_dead) {
  Process& own = process();
  CUcontext primary = primary_of(own, device);
  if (primary == nullptr) return call();
  const std::vector<CUcontext> views = capturing_views(own, [&] { return own.contexts.greens_of(device); });
  const std::uint64_t captures_before = own.pools.captures_begun();
  bool dead = false;
  const CUresult result = end_context(own, primary, PoolBlocks::go, call, [&] { return dead = is_dead(); });
  if (!dead) return result;
  for (CUcontext view : views) own.pools.forget_captures(view, captures_before);
  own.mempools.device_reset(device);
  return result;
}

/// Books the end of the primary context of `device` after the call that ended it.
void note_dead_primary(CUdevice device) {
  const auto over = [] { return CUDA_SUCCESS; };
  end_primary(device, over, [] { return true; });
}

}  // namespace

bool is_primary_inactive(const Process& own, CUdevice device) {
  if (own.api.cuDevicePrimaryCtxGetState == nullptr) return !can_be_current(own, own.contexts.primary(device));
  unsigned flags = 0;
  int is_active = 0;
  if (own.api.cuDevicePrimaryCtxGetState(device, &flags, &is_active) == CUDA_SUCCESS) return is_active == 0;
  return is_gone(own, own.contexts.primary(device));
}

void note_context(CUcontext context, int device) {
  Process& own = process();
  note_device(device);
  own.contexts.lives(context);
  own.pools.context_seen(context, device, own.contexts.life_in(context, device));
  share_with_new_context(context, device);
  share_driver_pools(own, device, own.peers.devices());
}

CUresult destroy_context(const Real<CUresult(CUcontext)>& real, CUcontext context) {
  if (context == nullptr) return real(context);
  Process& own = process();
  return end_context(
      own, context, PoolBlocks::stay, [&] { return real(context); },
      // The context may have ended although the call tells of earlier work's error (CUDA Driver API 13.0, cuCtxDestroy).
      [&] { return real.result() == CUDA_SUCCESS || (device::is_of_earlier_work(real.result()) && is_gone(own, context)); });
}

CUresult detach_context(const Real<CUresult(CUcontext)>& real, CUcontext context) {
  if (context == nullptr) return real(context);
  Process& own = process();
  const std::optional<int> device = own.pools.device_of(context);
  const bool is_primary = device && own.contexts.life_in(context, *device) == BlockLife::context;
  return end_context(
      own, context, is_primary ? PoolBlocks::go : PoolBlocks::stay, [&] { return real(context); },
      [&] { return is_end(real.result()) && is_gone(own, context); });
}

CUresult retain_primary(const Real<CUresult(CUcontext*, CUdevice)>& real, CUcontext* out, CUdevice device) {
  std::unique_lock turn = process().contexts.primary_turn(device);
  const CUresult result = with_room_in(turn, device, real, out, device);
  if (result != CUDA_SUCCESS || out == nullptr) return result;
  process().contexts.primary_retained(device);
  note_device(device);  // before what may need host memory: copies between devices depend on it for good
  process().contexts.set_primary(device, *out);
  note_context(*out, device);
  return result;
}

CUresult release_primary(const Real<CUresult(CUdevice)>& real, CUdevice device) {
  Process& own = process();
  const std::unique_lock turn = own.contexts.primary_turn(device);
  const auto release = [&] {
    const CUresult result = real(device);
    if (result == CUDA_SUCCESS) own.contexts.primary_released(device);
    return result;
  };
  const auto is_dead = [&] { return is_end(real.result()) && is_primary_inactive(own, device); };
  if (!own.contexts.primary_has_others(device)) return end_primary(device, release, is_dead);
  // The context survives this, and nobody waits: unless somebody has released it past us.
  const CUresult result = release();
  if (is_dead()) note_dead_primary(device);
  return result;
}

CUresult reset_primary(const Real<CUresult(CUdevice)>& real, CUdevice device) {
  Process& own = process();
  const std::unique_lock turn = own.contexts.primary_turn(device);
  own.contexts.primary_reset(device);
  // Reset frees everything in the context, whoever still retains it.
  return end_primary(
      device, [&] { return real(device); },
      [&] { return real.result() == CUDA_SUCCESS || (is_end(real.result()) && is_primary_inactive(own, device)); });
}

CUresult create_green(const Real<CUresult(CUgreenCtx*, CUdevResourceDesc, CUdevice, unsigned)>& real, CUgreenCtx* out, CUdevResourceDesc description,
                      CUdevice device, unsigned flags) {
  Process& own = process();
  std::unique_lock turn = own.contexts.primary_turn(device);
  ContextBook::Greens::node_type place;
  try {
    place = ContextBook::place_for_green();
  } catch (const std::bad_alloc&) {  // what is allocated under one that nobody here knows would be nobody's
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  const CUresult result = with_room_in(turn, device, real, out, description, device, flags);
  if (result != CUDA_SUCCESS || out == nullptr) return result;
  own.contexts.set_green(*out, device, std::move(place));
  learn_primary(own, device);
  return result;
}

CUresult destroy_green(const Real<CUresult(CUgreenCtx)>& real, CUgreenCtx green) {
  Process& own = process();
  const std::optional<int> device = own.contexts.green_device(green);
  if (!device) return real(green);
  const std::unique_lock turn = own.contexts.primary_turn(*device);
  const std::vector<CUcontext> views = capturing_views(own, [green] { return std::array{green}; });
  own.pools.streams_ending(own.contexts.primary(*device));  // their handles must not be used after this
  const std::uint64_t captures_before = own.pools.captures_begun();
  // The program's own reference keeps the primary context, and nobody waits: unless somebody has released it past us.
  const bool survives = own.contexts.primary_is_retained(*device);
  const auto is_dead = [&] { return is_end(real.result()) && is_primary_inactive(own, *device); };
  const auto destroy = [&] { return real(green); };
  const CUresult result = survives ? destroy() : end_primary(*device, destroy, is_dead);
  if (survives && is_dead()) note_dead_primary(*device);
  if (result != CUDA_SUCCESS) return result;
  own.streams.something_ended();  // its streams: the driver refuses them from now on
  own.contexts.forget_green(green, *device);
  for (CUcontext view : views) own.pools.forget_captures(view, captures_before);
  return result;
}

CUresult context_from_green(const Real<CUresult(CUcontext*, CUgreenCtx)>& real, CUcontext* out, CUgreenCtx green) {
  const CUresult result = real(out, green);
  if (result != CUDA_SUCCESS || out == nullptr) return result;
  Process& own = process();
  // Memory belongs to the primary, and outlives the green context (H100 and H200, driver 580).
  if (const std::optional<int> device = own.contexts.green_device(green)) {
    try {
      CUcontext primary = own.contexts.primary(*device);
      if (primary == nullptr) {
        const std::unique_lock turn = own.contexts.primary_turn(*device);
        primary = learn_primary(own, *device);
      }
      if (primary != nullptr) own.contexts.set_alias(*out, primary, green);
    } catch (const std::bad_alloc&) {
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  return result;
}

}  // namespace cupool::shim::front_door
