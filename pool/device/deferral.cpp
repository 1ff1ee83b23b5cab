// Between a free and reuse: epochs are closed, queried, waited for and retired here.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;
using observe::EventKind;

void DevicePool::defer(Extent* extent, std::uint16_t thread) {
  device_.count_free(*extent);
  device_.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
  device_.note(EventKind::free_requested, ticks(), *extent, thread);
  extent->flags = static_cast<std::uint8_t>(extent->flags & ~kBeingFreedFlag);  // a native block has its SYNC_MEMOPS still
  info_of(*extent).allocator->defer(device_, extent);
  deferred_.push(extent);
}

/// Of a free whose block is deferred: an error of earlier work is the program's to hear.
FreeOutcome DevicePool::outcome_of(Error late, Error* answer) {
  if (late.code == CUDA_SUCCESS || late.code == CUDA_ERROR_DEINITIALIZED) return FreeOutcome::freed;
  *answer = late;
  return FreeOutcome::failed;
}

void DevicePool::retire(Batch batch) {
  const std::uint64_t now = ticks();
  const std::uint64_t depot_bytes = magazines_.depot_limit_bytes(device_);
  device_.counters().deferred_bytes.add(-static_cast<std::int64_t>(batch.bytes));
  for (Parcel* parcel = batch.parcels; parcel != nullptr;) {
    Parcel* next = parcel->next;
    magazines_.deliver(device_, parcel, now, depot_bytes);
    parcel = next;
  }
  for (Extent* extent = batch.first; extent != nullptr;) {
    Extent* next = extent->bin_next;
    if ((extent->flags & kUsedAgainFlag) == 0) device_.note(EventKind::free_completed, now, *extent, 0);
    RegionInfo& info = info_of(*extent);
    if (!extent->is_in_table || !magazines_.keep_in_depot(extent, depot_bytes)) info.allocator->recycle(device_, extent);
    if (info.home->is_orphan) [[unlikely]] info.home->must_empty = true;
    extent = next;
  }
}

/// Closes the open batch with a fence recorded now.
/// While something captures, or when nothing can be recorded, the batch stays open.
/// With `look`: the driver is asked about the oldest epoch that no other thread is at, on the same way.
Error DevicePool::close_epoch(CUcontext asking, Closing closing, Look* look) {
  if (deferred_.batch_is_empty() || capturing() || !may_call_driver() || device_.disabled) return {};
  if (device_.services.cannot_record.load(std::memory_order_relaxed)) return {};
  Epoch* epoch = deferred_.close();
  if (epoch == nullptr) return {};  // host memory is out: the blocks wait for better times, as where nothing can be recorded
  Epoch* const older = look != nullptr ? deferred_.oldest_to_ask() : nullptr;
  Epoch* const asked = look != nullptr && older == nullptr ? epoch : older;
  if (asked != nullptr) asked->busy = true;
  FenceResult result;
  std::optional<FenceResult> answer;
  {
    const MutexUnlock unlocked(device_.lock);
    if (asked == nullptr) result = epoch->fence.record(device_, asking);
    else std::tie(result, answer) = epoch->fence.record_and_poll(device_, asking, asked->fence);
  }
  if (asked != nullptr) asked->busy = false;
  epoch->busy = false;
  if (answer) *look = {asked, *answer};
  if (result.answer != FenceAnswer::done) {
    deferred_.reopen(epoch);
    if (result.answer == FenceAnswer::unsupported && !device_.services.cannot_record.exchange(true))
      device_.services.warn("the driver does not support cuCtxRecordEvent: every free synchronises, as CUPOOL_FREE=sync");
    return result.error;
  }
  epoch->recorded = true;
  epoch->recorded_ns = device_.services.clock.now_ns();
  epoch->waitable = closing == Closing::inside_free ? asking : nullptr;
  epoch->freed_by = pthread_self();
  if (closing == Closing::inside_free) deferred_.cover_early();
  if (closing == Closing::early) deferred_.note_early(epoch);
  device_.counters().epochs_closed.add();
  return result.error;
}

/// Is there something without an event that may get one, if not at this moment?
bool DevicePool::may_record() { return !deferred_.batch_is_empty() && !device_.services.cannot_record.load(std::memory_order_relaxed) && !capturing(); }

bool DevicePool::much_waits(const Magazine* own) const {
  const std::uint64_t own_bytes = own != nullptr ? own->shard.deferred_bytes.load(std::memory_order_relaxed) : 0;
  return device_.live.counters.deferred_bytes.current.load(std::memory_order_relaxed) + own_bytes >= device_.least_early_bytes() || may_have_surplus();
}

/// More than CUPOOL_RELEASE_THRESHOLD is not live, and it is not what a look after an earlier wait has left.
bool DevicePool::may_have_surplus() const {
  const std::optional<std::uint64_t>& threshold_bytes = device_.services.options.release_threshold_bytes;
  if (!threshold_bytes) return false;
  const std::uint64_t idle_bytes = device_.not_live_bytes();
  return idle_bytes > *threshold_bytes && idle_bytes != surplus_seen_bytes_.load(std::memory_order_relaxed);
}

/// The program has waited for the GPU by a call of its own: most of what it freed before is over. Seen now, each step of a job that repeats itself
/// finds the same blocks free; where an epoch ends by itself differs from step to step, and so does what the step needs.
void DevicePool::after_wait(const ContextPool& home, CUcontext asking) {
  const MutexLock lock(device_.lock);
  if (capturing()) return;
  magazines_.visit_own(device_, home, &Magazines::send);
  Error ignored{};  // the program's own call has just been told of what there was
  if (deferred_.batch_bytes() >= device_.least_early_bytes()) ignored = close_epoch(asking, Closing::early);
  bool is_more_free = false;
  while (retire_oldest(asking, false, &ignored)) is_more_free = true;
  magazines_.visit_own(device_, home, &Magazines::settle);
  orphans_.empty(device_);
  if (is_more_free) figures_.publish(device_);  // the wait was long, and a process that is killed now leaves the page alone
  // Where the driver's own pools give back what is above their threshold (CUDA Driver API 13.0, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD).
  if (!may_have_surplus()) return;
  give_back_surplus_of_lanes(asking);
  surplus_seen_bytes_.store(device_.not_live_bytes(), std::memory_order_relaxed);
}

/// Looks at the oldest epoch that no other thread is at, and retires it when its fence is done: true. A thread that is stopped while it asks about one
/// keeps none but that one. `may_wait`: waits without end where that is safe, which is for the first that this thread closed inside a free, unless
/// another thread is at the oldest of all. Its events cover the work of the older ones. What another thread freed may be waiting for this one.
bool DevicePool::retire_oldest(CUcontext asking, bool may_wait, Error* error) {
  Epoch* const oldest = deferred_.oldest_to_ask();
  if (oldest == nullptr || !may_call_driver()) return false;
  Epoch* own = may_wait && oldest == deferred_.oldest() && (is_own(*oldest) || !deferred_.is_awaited()) ? oldest : nullptr;
  while (own != nullptr && !is_own(*own)) own = own->next;
  Epoch* const epoch = own != nullptr ? own : oldest;
  epoch->busy = true;
  epoch->waiting = own != nullptr;
  FenceResult result;
  {
    const MutexUnlock unlocked(device_.lock);
    result = own != nullptr ? own->fence.wait(device_, own->waitable, asking) : oldest->fence.poll(device_, asking);
  }
  epoch->busy = false;
  epoch->waiting = false;
  if (epoch != oldest && result.error.code == CUDA_SUCCESS && result.answer == FenceAnswer::done) {
    epoch->waitable = nullptr;  // it is over: whoever asks is told at once
    return retire_oldest(asking, false, error);
  }
  return retire_if_over(epoch, result, error);
}

/// What was answered about the epoch.
bool DevicePool::retire_if_over(Epoch* epoch, const FenceResult& result, Error* error) {
  if (result.error.code != CUDA_SUCCESS) *error = result.error;
  if (result.error.code != CUDA_SUCCESS || result.answer != FenceAnswer::done) return false;
  epoch->fence.clear(device_.services.contexts);
  retire(deferred_.finish(epoch));
  orphans_.empty(device_);
  return true;
}

/// What was freed since the last epoch, when nothing runs any more: true. One event and one look; the batch stays as it is when there is work.
bool DevicePool::retire_batch_if_idle(CUcontext asking, Error* error) {
  if (deferred_.batch_is_empty() || capturing() || !may_call_driver() || device_.disabled || unpooled_) return false;
  if (device_.services.cannot_record.load(std::memory_order_relaxed)) return false;
  Epoch* epoch = deferred_.close();
  if (epoch == nullptr) return false;
  FenceResult result;
  {
    const MutexUnlock unlocked(device_.lock);
    result = epoch->fence.record(device_, asking);
    if (result.answer == FenceAnswer::done && result.error.code == CUDA_SUCCESS) result = epoch->fence.poll(device_, asking);
  }
  epoch->fence.clear(device_.services.contexts);
  if (result.answer == FenceAnswer::done && result.error.code == CUDA_SUCCESS) {
    retire(deferred_.finish(epoch));
    return true;
  }
  deferred_.reopen(epoch);
  *error = result.error;
  return false;
}

/// Natively the frees had waited. Where too much waits now, this one does: for all that came before it when that is more than is to spare, since new
/// blocks would be pushed into fresh memory and scattered over it, where they stay; else for as much as leaves the GPU half of what it may have.
/// `may_be_over`: so may the oldest be, which nobody has just looked at in vain.
Error DevicePool::catch_up(CUcontext asking, bool may_be_over) {
  if (device_.counters().deferred_bytes.current.load(std::memory_order_relaxed) == 0) return {};
  const std::uint64_t ahead_bytes = backlog_.ahead_bytes(device_) * (backlog_.makes_steps(device_) ? Backlog::kAheadOfSteps : 1);
  const auto is_above = [this](std::uint64_t bytes) { return device_.counters().deferred_bytes.current.load(std::memory_order_relaxed) > bytes; };
  const auto is_too_much = [&]() CUPOOL_REQUIRES(device_.lock) { return is_above(ahead_bytes) || is_above(backlog_.waiting_share_bytes(device_)); };
  Error error{};
  while (may_be_over && is_too_much()) may_be_over = retire_oldest(asking, false, &error);
  if (error.code != CUDA_SUCCESS || !is_too_much()) return error;
  const bool is_scarce = is_above(backlog_.waiting_share_bytes(device_));
  await_frees(asking, {.left_bytes = is_scarce ? 0 : ahead_bytes / 2, .inside_free = true}, &error);
  return error;
}

/// Waits for one epoch that may be waited for, the newest unless enough is over before: its events cover the work of the older ones, so one call is
/// enough. True when blocks came back. What this thread freed may, since natively it had waited itself; inside a free so may what others freed in the
/// same context, but for the newest of all, which is this very free's. Else another's work may be waiting for this thread.
bool DevicePool::await_frees(CUcontext asking, const Awaited& awaited, Error* error) {
  const std::uint64_t all_bytes = device_.counters().deferred_bytes.current.load(std::memory_order_relaxed);
  Epoch* target = nullptr;
  std::uint64_t target_bytes = 0;
  std::uint64_t bytes = 0;
  std::size_t count = 0;
  std::size_t looks = 0;  // at those that the wait is for
  for (Epoch* epoch = deferred_.oldest(); epoch != nullptr && !(awaited.inside_free && epoch->next == nullptr); epoch = epoch->next) {
    bytes += epoch->batch.bytes;
    ++count;
    const bool is_natives_too = awaited.inside_free && epoch->may_be_awaited() && epoch->waitable == asking;
    if (!is_natives_too && !is_own(*epoch)) continue;
    target = epoch;
    target_bytes = bytes;
    looks = count;
    if (all_bytes <= bytes + awaited.left_bytes) break;
  }
  if (target == nullptr || target_bytes < awaited.least_bytes || !may_call_driver()) return false;
  target->busy = target->waiting = true;
  FenceResult result;
  {
    const MutexUnlock unlocked(device_.lock);
    result = target->fence.wait(device_, target->waitable, asking);
  }
  target->busy = target->waiting = false;
  deferred_.follow(*target);
  *error = result.error;
  bool has_retired = false;
  while (error->code == CUDA_SUCCESS && looks-- != 0 && retire_oldest(asking, false, error)) has_retired = true;
  while (Epoch* over = deferred_.first_over()) {  // behind one that another thread is still asking about
    over->fence.clear(device_.services.contexts);
    retire(deferred_.finish(over));
    has_retired = true;
  }
  return has_retired;
}

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
  const std::uint64_t bytes = backlog_.step_room_bytes(device_);
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

/// It may be waited for, and natively its frees had waited in this very thread.
bool DevicePool::is_own(const Epoch& epoch) { return epoch.may_be_awaited() && pthread_equal(epoch.freed_by, pthread_self()) != 0; }

/// A hole for the block is there, but something that this thread freed is so much better that a wait pays; natively the free of it had waited. Where nothing
/// is left, what fits: what is cut from a larger hole stays in the way of what needs that one, and is not moved again. On pages, earlier, what lies beside
/// blocks that stay: a small block on an empty page keeps all of it, for as long as it lives.
bool DevicePool::is_better_on_its_way(const ContextPool& home, const AllocationRequest& request) {
  if (deferred_.oldest() == nullptr || request.stream.identity != 0) return false;
  const std::uint64_t room_bytes = device_.room_bytes();
  const std::uint64_t everything_bytes = room_bytes + device_.counters().reserved_bytes.current.load(std::memory_order_relaxed);
  if (device_.spare_bytes() >= everything_bytes / kChoosySpareShare || (backlog_.knows_its_steps(device_) && room_bytes >= backlog_.kept_bytes(device_))) return false;
  const bool is_last = room_bytes < everything_bytes / kChoosyRoomShare && request.bytes >= kChoosyFrom_bytes && !(home.pooled->can_move() && backlog_.may_scatter(device_));
  const std::uint64_t occupied_bytes = home.pooled->occupies_bytes(device_, request.bytes);
  if (!is_last && occupied_bytes == 0) return false;
  const std::uint64_t hole_bytes = is_last ? home.pooled->fit_bytes(device_, request.bytes) : 0;
  std::size_t looks = 0;
  for (const Epoch* epoch = deferred_.oldest(); epoch != nullptr; epoch = epoch->next) {
    if (!is_own(*epoch)) continue;
    for (const Extent* extent = epoch->batch.first; extent != nullptr; extent = extent->bin_next) {
      if (++looks > kChoosyLooks) return false;
      if (extent->bytes < request.bytes || info_of(*extent).allocator != home.pooled.get()) continue;  // the driver's own leaves no hole
      if (is_last && extent->bytes <= hole_bytes - hole_bytes / 4) return true;
      if (occupied_bytes != 0 && home.pooled->occupies_bytes(device_, *extent, request.bytes) < occupied_bytes) return true;
    }
  }
  return false;
}

/// What a due free does, and the first operation after a capture: one record per context, one query.
Error DevicePool::upkeep(CUcontext asking, bool inside_free) {
  Look look;
  const std::uint64_t size_bytes = deferred_.oldest() == nullptr ? deferred_.batch_size_bytes() : 0;
  Error error = close_epoch(asking, inside_free ? Closing::inside_free : Closing::late, &look);
  Error query_error{};
  // One look for each epoch that is closed. Who finds another thread at the oldest one leaves the look to the next.
  if (const Epoch* oldest = deferred_.oldest(); look.epoch == nullptr && oldest != nullptr && oldest->busy) ++looks_owed_;
  bool has_ended = look.epoch != nullptr ? retire_if_over(look.epoch, look.result, &query_error) : retire_oldest(asking, false, &query_error);
  if (look.epoch != nullptr) backlog_.note_idle(has_ended ? size_bytes : 0);
  while (has_ended && (device_.services.synchronises() || looks_owed_ != 0)) {
    looks_owed_ -= looks_owed_ != 0 ? 1 : 0;
    has_ended = retire_oldest(asking, false, &query_error);
  }
  if (error.code == CUDA_SUCCESS) error = query_error;
  if (inside_free && error.code == CUDA_SUCCESS) error = catch_up(asking, has_ended);
  if (inside_free) giving_back_.surplus(device_);
  orphans_.empty(device_);
  return error;
}

/// Waits until everything submitted so far is over in every context of this device, and, once the program has linked devices,
/// in every context there is, also `everywhere`. The lock is not held meanwhile. A kernel of an unlinked device may be waiting for this very thread,
/// and natively a free does not wait for it: it waits for the work of its block's context alone (H100, driver 580).
FenceResult DevicePool::synchronise_reachable(CUcontext asking, bool everywhere) {
  const MutexUnlock unlocked(device_.lock);
  const DeviceState* const only = everywhere || device_.services.devices_linked.load(std::memory_order_relaxed) ? nullptr : &device_;
  if (device_.driver.has_cuCtxRecordEvent() && device_.driver.has_cuEventSynchronize()) {
    // Not cuCtxSynchronize: it ends a capture that another thread begins meanwhile. Events are recorded under the gate.
    Fence fence;
    FenceResult result = fence.record(device_, asking, only);
    // While a context ends nobody knows of its work, but the others' is waited for all the same: the program may look at its results. Tried whatever
    // the reason was: asked for it, the end might be over by now.
    const bool is_partial = result.answer == FenceAnswer::impossible && result.error.code == CUDA_SUCCESS;
    if (is_partial) result = fence.record(device_, asking, only, {}, ContextRegistry::Ending::left_out);
    if (result.answer == FenceAnswer::done && result.error.code == CUDA_SUCCESS) result = fence.wait(device_, nullptr, asking);
    fence.clear(device_.services.contexts);
    if (is_partial && result.answer == FenceAnswer::done) result.answer = FenceAnswer::impossible;
    if (result.answer != FenceAnswer::unsupported) return result;
  }
  return synchronise_contexts(device_, asking, only);
}

/// Peer copies need no link between devices, so other devices' work may touch a block although a free does not wait for it. Where
/// the driver has events that cover a context, such a block is deferred until they say that it is over.
bool DevicePool::others_may_touch() {
  const PoolServices& services = device_.services;
  if (services.devices_linked.load(std::memory_order_relaxed) || services.cannot_record.load(std::memory_order_relaxed)) return false;
  return device_.services.contexts.has_others(device_);
}

/// Synchronises, and retires what was freed before that. `done`: everything submitted before the call is over.
FenceResult DevicePool::synchronise_and_retire(CUcontext asking) {
  Epoch* earlier = deferred_.batch_is_empty() || others_may_touch() ? nullptr : deferred_.close();
  // Without events these were freed while something captured, and the contexts that were current then, whose copies may touch them, are not known.
  const FenceResult result = synchronise_reachable(asking, earlier != nullptr);
  if (earlier != nullptr) {
    if (result.answer == FenceAnswer::done && result.error.code == CUDA_SUCCESS) retire(deferred_.finish(earlier));
    else deferred_.reopen(earlier);
  }
  Error ignored{};  // an error of an older epoch is for the call that meets it
  while (result.answer == FenceAnswer::done && retire_oldest(asking, false, &ignored)) {
  }
  return result;
}

}  // namespace cupool::device
