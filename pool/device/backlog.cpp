// How much of what was freed may wait for the GPU, and how much of the device stays out of its way. Waiting itself: deferral.cpp.
#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"

namespace cupool::device {

/// On pages: enough was never needed at once for blocks to lie anywhere, and for none of the last allocations pages had to be moved, which is several
/// calls where a wait is one.
bool DevicePool::may_scatter() {
  const observe::Counters& counters = device_.counters();
  if (moved_at_ != 0 && counters.allocations.value.load(std::memory_order_relaxed) < moved_at_ + kLately) return false;
  return device_.spare_bytes() >= (device_.room_bytes() + counters.reserved_bytes.current.load(std::memory_order_relaxed)) / kScatterShare;
}

/// So much of what was freed may wait for the GPU before a free waits: a third of what the program has never needed. Where pages may be
/// scattered, a quarter of what is not live, since most of that is free again before the next peak; and with plenty up to two thirds
/// of what was never needed. Once the steps are known all of that, or where pages may be scattered three quarters of what is not live, but what is kept for a higher
/// peak: coming down from its own a step may free more than was never needed, and has it back before the next one. A job that repeats its steps would wait in each of
/// them, and never outgrow it.
std::uint64_t DevicePool::waiting_share_bytes() {
  const std::uint64_t spare_bytes = device_.spare_bytes();
  const std::uint64_t third_bytes = spare_bytes / kDeferredShare;
  const bool can_move = std::all_of(homes_.begin(), homes_.end(), [](const auto& home) { return home->pooled == nullptr || home->pooled->can_move(); });
  if (unpooled_ || !can_move) return third_bytes;
  const std::uint64_t most_bytes = spare_bytes - std::min(kept_bytes(), spare_bytes);
  const std::uint64_t idle_bytes = may_scatter() ? device_.room_bytes() + device_.not_live_bytes() : 0;
  const std::uint64_t quarter_bytes = idle_bytes / kNotLiveShare;
  if (!knows_its_steps()) return std::max({third_bytes, quarter_bytes, std::min(most_bytes, spare_bytes - third_bytes)});
  const std::uint64_t rest_bytes = idle_bytes - quarter_bytes;
  return std::max({third_bytes, most_bytes, rest_bytes - std::min(kept_bytes(), rest_bytes)});
}

/// Asked by a miss, which need not wait: what waits is a trifle beside what is left; or growing leaves enough, and the job makes steps, or its peak is what it was as
/// many allocations ago as came before it.
/// Else what comes now is scattered over what the program will need, and stays so.
bool DevicePool::may_grow_freely() {
  if (device_.has_plenty(kPlentyShare)) return true;
  if (device_.not_live_bytes() <= device_.room_bytes() / kTrifleShare) return true;
  if (makes_steps()) return device_.room_bytes() >= kept_bytes();
  return device_.repeats_itself() && device_.room_bytes() >= std::max(kept_bytes(), device_.spare_bytes() / kDeferredShare);
}

/// What of the device stays out of the way of a higher peak: half of the last one, or once two more steps have come near that an eighth.
std::uint64_t DevicePool::kept_bytes() { return device_.need_bytes() / (knows_its_steps() ? kKeptShareOfKnown : kKeptShare); }

/// Two steps have come near the peak that one set.
bool DevicePool::knows_its_steps() const { return device_.steps.repeats() >= kKnownRepeats; }

/// Its steps are known; or what lives has come down once, and as much as half of that peak can still be had: the third step is to find all that it needs, and to wait for nothing.
bool DevicePool::makes_steps() { return knows_its_steps() || (device_.steps.has_come_down(device_.need_bytes()) && device_.room_bytes() >= kept_bytes()); }

/// With the free that has just been booked a step of the job has come to its end. What it freed gets an event there, and what is over is free, in each step
/// at the same place.
bool DevicePool::ends_step(bool waits_natively) {
  return waits_natively && device_.steps.below_bytes() != 0 && device_.steps.has_ended(magazines_.live_now(device_).bytes) && !capturing() && may_call_driver();
}

/// The first step has come again: what the next ones need beside what lives is what waits for the GPU, wherever that lies by then. Brought now, none of
/// them calls the driver. A little more where that leaves enough: it lies in other places in each step. Once for each peak, in a free that natively had
/// waited; not where memory is short, or goes back above a threshold.
void DevicePool::make_room_for_steps(ContextPool& home) {
  if (device_.steps.repeats() != 1 || unpooled_ || device_.disabled || device_.services.options.release_threshold_bytes) return;
  const observe::Counters& counters = device_.counters();
  const std::uint64_t need_bytes = device_.need_bytes();
  const std::uint64_t waited_bytes = std::min(counters.deferred_bytes.peak.load(std::memory_order_relaxed), need_bytes / kStepRoomShare);
  const std::uint64_t reserved_bytes = counters.reserved_bytes.current.load(std::memory_order_relaxed);
  const std::uint64_t spare_bytes = device_.room_bytes() - std::min(device_.room_bytes(), need_bytes / kKeptShareOfKnown);
  const std::uint64_t plenty_bytes = device_.room_bytes() - std::min(device_.room_bytes(), need_bytes / kStepPlentyShare);
  const std::uint64_t wanted_bytes = need_bytes + waited_bytes + std::min({need_bytes / kStepMarginShare, waited_bytes, plenty_bytes});
  const std::uint64_t bytes = std::min({wanted_bytes - std::min(wanted_bytes, reserved_bytes), device_.room_bytes() / 2, spare_bytes});
  if (bytes < device_.least_early_bytes() || !DriverFree::is_current(device_)) return;
  ContextRegistry& contexts = device_.services.contexts;
  if (home.context == nullptr || contexts.pin(&home, home.context) != Pin::held) return;  // the lock was let go of
  const Unpinner unpinner(contexts, &home);
  if (home.pooled == nullptr) return;
  Mover mover(moves_);
  try {
    mover.has_more = home.pooled->grow_ahead(device_, home, bytes).ok();
  } catch (const std::bad_alloc&) {  // the free that it is part of is done
  }
}

/// Within the limit and by the driver's word, which is asked for again before it is no, with what its pools may take at once; or in what these keep idle, which is nobody else's.
bool DevicePool::driver_has_room(std::uint64_t bytes) {
  const std::uint64_t need_bytes = bytes + kDriversChunk_bytes;
  if (device_.room_bytes() >= need_bytes || device_.live.outside.mempools.load(std::memory_order_relaxed) >= bytes) return true;
  if (device_.limit.headroom_bytes() < need_bytes || capturing() || !may_call_driver()) return false;
  static_cast<void>(driver_free_.sample(device_));
  return device_.room_bytes() >= need_bytes;
}

/// The driver has much more, and yet gave the pool nothing: it is not memory that is out. Nobody is just bringing it, either.
bool DevicePool::has_room_but_for_us(std::uint64_t bytes) {
  if (unpooled_ || moves_.are_any() || capturing() || !driver_free_.sample(device_)) return false;
  return device_.room_bytes() >= bytes + kDriversChunk_bytes;
}

/// So much may wait for the GPU, or lie with streams, where memory is plenty: with more the pool would consist of it.
std::uint64_t DevicePool::ahead_bytes() {
  return std::max(kLeastAhead_bytes, kAheadOfLive * device_.need_bytes());
}

}  // namespace cupool::device
