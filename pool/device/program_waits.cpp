// Where the program waits for the GPU, ends a step of its job or is about to capture: what it freed before gets an event there, and what is over
// becomes free.
#include <new>
#include <utility>

#include "pool/device/device_pool.hpp"

namespace cupool::device {

bool DevicePool::much_waits(const Magazine* own) const {
  const std::uint64_t own_bytes = own != nullptr ? own->shard.deferred_bytes.load(std::memory_order_relaxed) : 0;
  return device_.live.counters.deferred_bytes.now() + own_bytes >= device_.least_early_bytes() || may_have_surplus();
}

/// Is more than CUPOOL_RELEASE_THRESHOLD free, and not just what a check after an earlier wait has left?
bool DevicePool::may_have_surplus() const {
  const std::optional<std::uint64_t>& threshold_bytes = device_.services.options.release_threshold_bytes;
  if (!threshold_bytes) return false;
  const std::uint64_t idle_bytes = device_.not_live_bytes();
  return idle_bytes > *threshold_bytes && idle_bytes != surplus_seen_bytes_.load(std::memory_order_relaxed);
}

/// The program has waited for the GPU by a call of its own: most of what it freed before is over. Retired here, each step of a job that repeats
/// itself finds the same blocks free; the moment at which an epoch ends by itself differs from step to step, and then so does what the step needs.
void DevicePool::after_wait(const ContextPool& home, CUcontext asking) {
  const MutexLock lock(device_.lock);
  if (capturing()) return;
  magazines_.visit_own(device_, home, &Magazines::send);
  Error ignored{};  // the program's own call has just reported any error
  if (deferred_.batch_bytes() >= device_.least_early_bytes()) ignored = deferral_.close_epoch(device_, asking, Deferral::Closing::early);
  bool is_more_free = false;
  while (deferral_.retire_oldest(device_, asking, false, &ignored)) is_more_free = true;
  magazines_.visit_own(device_, home, &Magazines::settle);
  orphans_.empty(device_);
  if (is_more_free) figures_.publish(device_);  // the wait was long: should the process be killed now, the live page is up to date
  // At this point the driver's own pools return what exceeds their threshold (CUDA Driver API 13.0, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).
  if (!may_have_surplus()) return;
  stream_frees_.give_back_surplus_of_lanes(device_, asking);
  surplus_seen_bytes_.store(device_.not_live_bytes(), std::memory_order_relaxed);
}

/// Has the free that was just booked ended a step of the job? What the step freed gets an event there, and what is over becomes free, at the same
/// place in each step.
bool DevicePool::ends_step(bool waits_natively) {
  return waits_natively && device_.steps.below_bytes() != 0 && device_.steps.has_ended(magazines_.live_now(device_).bytes) && !capturing() &&
         may_call_driver();
}

/// Brings memory for the steps to come where one ends that has come higher than all before, or as high for the second time: besides what is live they
/// need what waits for the GPU, wherever that lies by then. Brought now, none of them calls the driver. A little more is brought where that leaves
/// enough, since blocks lie in other places in each step. Once for each peak, but in the job's second step; in a free that natively would have waited;
/// not where memory is short, or goes back above a threshold. Nor where a late step ended that took none: those to
/// come need no more, and this would be its one call.
void DevicePool::make_room_for_steps(ContextPool& home) {
  if (device_.steps.repeats() > 1 || unpooled_ || device_.disabled || device_.services.options.release_threshold_bytes) return;
  const bool has_grown = device_.grown_at >= device_.steps.step_began_at();
  if (!has_grown && device_.steps.is_late(device_.live.counters.allocations.count())) return;
  const bool has_been_made = std::exchange(roomy_peak_bytes_, device_.peak_live_bytes()) == device_.peak_live_bytes();
  if (has_been_made && !device_.steps.has_fallen_once_at_most()) return;
  const std::uint64_t bytes = backlog_.step_room_bytes(device_, has_been_made);
  if (bytes < device_.least_early_bytes() || !DriverFree::is_current(device_)) return;
  const PinnedContext pinned(device_.services.contexts, &home, home.context);  // the lock was let go of, so the context may have ended
  if (!pinned || home.pooled == nullptr) return;
  Mover mover(moves_);
  try {
    mover.has_more = home.pooled->grow_ahead(device_, home, bytes).ok();
  } catch (const std::bad_alloc&) {  // the free that this is part of is done
  }
}

/// A capture is about to begin. What was freed before gets its events now: during a capture they can be queried, but none can be recorded.
void DevicePool::before_capture() {
  const MutexLock lock(device_.lock);
  magazines_.close_all(device_);
  stream_frees_.stamp_late(device_);                                                    // of an earlier capture
  static_cast<void>(deferral_.close_epoch(device_, nullptr, Deferral::Closing::late));  // any error is met again by the program's own calls
}

void DevicePool::stamp_late() {
  const MutexLock lock(device_.lock);
  stream_frees_.stamp_late(device_);
  orphans_.empty(device_);
}

}  // namespace cupool::device
