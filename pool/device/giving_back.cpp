// Returning memory to the driver: see giving_back.hpp.
#include "pool/device/giving_back.hpp"

#include <algorithm>
#include <new>

#include "pool/device/fence.hpp"
#include "pool/device/freeing_in_order.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

bool GivingBack::release_would_do(DeviceState& device, std::uint64_t bytes) {
  std::uint64_t free_bytes = 0;
  for (const auto& home : homes_) {
    if (!home->is_in_use() || !may_give_back(device, *home)) continue;
    if (home->pooled != nullptr && !home->pooled->is_stalled(device)) free_bytes += home->pooled->figures(device).wholly_free_bytes;
    free_bytes += home->natives.waiting_bytes();  // blocks that were freed during a capture
  }
  if (free_bytes == 0) return false;
  const std::uint64_t headroom_bytes = device.limit.headroom_bytes();
  if (headroom_bytes < bytes && bytes - headroom_bytes > free_bytes) return false;
  const std::optional<std::uint64_t> driver_free_bytes = driver_free_.sample(device);
  return !driver_free_bytes || *driver_free_bytes >= bytes || bytes - *driver_free_bytes <= free_bytes;
}

std::uint64_t GivingBack::late_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& home : homes_) bytes += home->late_given_bytes - home->late_arrived_bytes;
  return bytes;
}

bool GivingBack::await_late(DeviceState& device) {
  bool is_more = false;
  for (std::size_t i = 0; i < homes_.size(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    const CUcontext context = home.context;
    const CUstream stream = home.release_stream.load(std::memory_order_acquire);
    const std::uint64_t late_given_bytes = home.late_given_bytes;
    if (late_given_bytes == home.late_arrived_bytes || stream == nullptr || !device.services.may_call_driver()) continue;
    const PinnedContext pinned(device.services.contexts, &home, context);
    if (!pinned) continue;
    bool is_back = false;
    {
      const MutexUnlock unlocked(device.lock);
      const RelaxedCaptureMode relaxed(device.driver);
      const ScopedContext current(device.driver, context);
      is_back = current.status().ok() && in_order::await(device, home, stream);
    }
    if (!is_back || home.context != context) continue;
    home.late_arrived_bytes = std::max(home.late_arrived_bytes, late_given_bytes);  // another thread may have waited for more
    is_more = true;
  }
  if (is_more) static_cast<void>(driver_free_.sample(device));
  return is_more;
}

bool GivingBack::may_release(DeviceState& device) { return all_release_in_order(device) || is_quiet(device); }

bool GivingBack::all_release_in_order(const DeviceState& device) const {
  return !unpooled_ && std::all_of(homes_.begin(), homes_.end(), [&](const auto& home) {
    return home->context == nullptr || home->pooled == nullptr || home->pooled->releases_in_order(device);
  });
}

bool GivingBack::is_quiet(DeviceState& device) {
  if (!in_order::can_look(device)) return true;
  const MutexUnlock unlocked(device.lock);
  return in_order::is_quiet(device);
}

std::uint64_t GivingBack::release(DeviceState& device, ContextPool* first, std::uint64_t wanted_bytes, bool at_most) {
  std::uint64_t released_bytes = orphans_.empty(device, true);
  const auto from = [&](ContextPool& home) CUPOOL_REQUIRES(device.lock) {
    if (released_bytes >= wanted_bytes || !may_give_back(device, home)) return;
    const PinnedContext pinned(device.services.contexts, &home, home.context);
    if (!pinned) return;
    Mover mover(moves_);
    const std::uint64_t before_bytes = released_bytes;
    // Regions would go back by cuMemFree, which waits for all work. Where they go back without waiting, nobody has made sure that no work is running.
    const bool is_seen_to = unpooled_ || !(device.services.gate.capturing() || all_release_in_order(device));
    if (home.natives.has_waiting() && (is_seen_to || is_quiet(device)))
      released_bytes += home.natives.release(device, home, wanted_bytes - released_bytes, at_most);
    if (home.pooled != nullptr && released_bytes < wanted_bytes)
      released_bytes += home.pooled->release(device, home, wanted_bytes - released_bytes, at_most);
    mover.note_given_back(device, released_bytes - before_bytes);
  };
  if (first != nullptr) from(*first);
  for (std::size_t i = 0; i < homes_.size(); ++i) from(*homes_[i]);  // by index: the list may grow while the lock is let go of
  if (released_bytes != 0) figures_.publish(device);
  return released_bytes;
}

void GivingBack::return_unused(DeviceState& device, ContextPool& home) {
  if (home.pooled == nullptr || !home.pooled->has_unused() || !device.services.may_call_driver()) return;
  try {
    Mover mover(moves_);
    const std::uint64_t released_bytes = home.pooled->release_unused(device);
    mover.note_given_back(device, released_bytes);
    if (released_bytes != 0) figures_.publish(device);
  } catch (const std::bad_alloc&) {  // host memory is out: the next refusal tries again
  }
}

void GivingBack::surplus(DeviceState& device, bool may_block) {
  if (device.services.gate.capturing() || !device.services.may_call_driver()) return;
  const std::optional<std::uint64_t>& threshold_bytes = device.services.options.release_threshold_bytes;
  bool natives_wait = false;
  std::uint64_t empty_bytes = 0;
  for (const auto& home : homes_) {
    if (home->context == nullptr) continue;
    natives_wait = natives_wait || home->natives.has_waiting();
    if (threshold_bytes && home->pooled != nullptr) empty_bytes += home->pooled->figures(device).wholly_free_bytes;
  }
  const std::uint64_t surplus_bytes = threshold_bytes && empty_bytes > *threshold_bytes ? empty_bytes - *threshold_bytes : 0;
  if (surplus_bytes == 0 && !natives_wait) return;
  if (!may_block && (!device.services.has_context_events() || !is_quiet(device))) return;
  try {
    release(device, nullptr, surplus_bytes != 0 ? surplus_bytes : 1);
  } catch (const std::bad_alloc&) {  // host memory is out: a later free does it; this free is done
  }
}

}  // namespace cupool::device
