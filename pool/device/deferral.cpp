// The ordinary course of deferred frees: see deferral.hpp.
#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

#include "pool/core/bytes.hpp"
#include "pool/device/deferral.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;
using observe::EventKind;

void Deferral::defer(DeviceState& device, Extent* extent, std::uint16_t thread) {
  device.count_free(*extent);
  device.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
  device.note(EventKind::free_requested, ticks(), *extent, thread);
  extent->flags = static_cast<std::uint8_t>(extent->flags & ~kBeingFreedFlag);  // a native block still has its SYNC_MEMOPS flag
  info_of(*extent).allocator->defer(device, extent);
  deferred_.push(extent);
}

FreeOutcome Deferral::outcome_of(Error late, Error* answer) {
  if (late.code == CUDA_SUCCESS || late.code == CUDA_ERROR_DEINITIALIZED) return FreeOutcome::freed;
  *answer = late;
  return FreeOutcome::failed;
}

void Deferral::retire(DeviceState& device, Batch batch) {
  const std::uint64_t now = ticks();
  const std::uint64_t depot_bytes = magazines_.depot_limit_bytes(device);
  device.counters().deferred_bytes.add(-static_cast<std::int64_t>(batch.bytes));
  for (Parcel* parcel = batch.parcels; parcel != nullptr;) {
    Parcel* next = parcel->next;
    magazines_.deliver(device, parcel, now, depot_bytes);
    parcel = next;
  }
  Extent* run = nullptr;
  for (Extent* extent = batch.first; extent != nullptr;) {
    Extent* next = extent->bin_next;
    if ((extent->flags & kFreedInOrderFlag) == 0) device.note(EventKind::free_completed, now, *extent, 0);
    RegionInfo& info = info_of(*extent);
    if (info.home->is_orphan) [[unlikely]]
      info.home->must_empty = true;
    if (!extent->is_in_table || !magazines_.keep_in_depot(extent, depot_bytes)) run = recycle_as_run(device, run, extent);
    extent = next;
  }
  if (run != nullptr) info_of(*run).allocator->recycle(device, run);
}

/// `extent` joins `run`, a block that is about to be recycled, if it lies beside it; else that one is recycled, and `extent` begins the next run. What
/// was allocated together is often freed together: such blocks become a hole at once instead of one after the other. Returns the run.
Extent* Deferral::recycle_as_run(DeviceState& device, Extent* run, Extent* extent) {
  if (run == nullptr) return extent;
  DeviceAllocator& allocator = *info_of(*run).allocator;
  if (Extent* joined = allocator.join(run, extent)) return joined;
  allocator.recycle(device, run);
  return extent;
}

void Deferral::note_withheld(const Extent& extent) {
  const std::uint64_t before_bytes = deferred_.batch_is_empty() ? 0 : std::max(withheld_bytes_, deferred_.batch_bytes());
  withheld_bytes_ = before_bytes + info_of(extent).allocator->withheld_bytes(extent);
}

/// Is there anything in the open batch, and can it get an event?
bool Deferral::may_close(const DeviceState& device) const {
  const PoolServices& services = device.services;
  return !deferred_.batch_is_empty() && !services.gate.capturing() && services.may_call_driver() && !device.disabled && services.has_context_events();
}

Error Deferral::close_epoch(DeviceState& device, CUcontext asking, Closing closing, Look* look) {
  if (!device.services.gate.capturing()) deferred_.reopen_over_natively();
  if (!may_close(device)) return {};
  Epoch* epoch = deferred_.close();
  if (epoch == nullptr) return {};  // host memory is out: the blocks stay in the open batch
  Epoch* const older = look != nullptr ? deferred_.oldest_to_ask() : nullptr;
  Epoch* const asked = look != nullptr && older == nullptr ? epoch : older;
  if (asked != nullptr) asked->busy = true;
  FenceResult result;
  std::optional<FenceResult> answer;
  {
    const MutexUnlock unlocked(device.lock);
    if (asked == nullptr) result = epoch->fence.record(device, asking);
    else std::tie(result, answer) = epoch->fence.record_and_poll(device, asking, asked->fence);
  }
  if (asked != nullptr) asked->busy = false;
  epoch->busy = false;
  if (answer) *look = {asked, *answer};
  if (result.answer != FenceAnswer::done) {
    deferred_.reopen(epoch);
    if (result.answer == FenceAnswer::unsupported && !device.services.no_context_events.exchange(true))
      device.services.warn("the driver does not support cuCtxRecordEvent: every free synchronises, as CUPOOL_FREE=sync");
    return result.error;
  }
  epoch->recorded = true;
  epoch->recorded_ns = device.services.clock.now_ns();
  epoch->waitable = closing == Closing::inside_free ? asking : nullptr;
  epoch->freed_by = pthread_self();
  if (closing == Closing::inside_free) deferred_.cover_early();
  if (closing == Closing::early) deferred_.note_early(epoch);
  device.counters().epochs_closed.add();
  return result.error;
}

/// For a caller that is short of memory. If the driver turns out not to have events that cover a context, this synchronises instead.
Error Deferral::close_epoch_or_synchronise(DeviceState& device, CUcontext asking) {
  const bool could_record = device.services.has_context_events();
  const Error error = close_epoch(device, asking, Closing::late);
  if (error.code != CUDA_SUCCESS || !could_record || device.services.has_context_events()) return error;
  return device.services.gate.capturing() ? error : synchronise_and_retire(device, asking).error;
}

bool Deferral::may_record(const DeviceState& device) const {
  const bool is_any = !deferred_.batch_is_empty() || deferred_.has_over_natively();
  return is_any && device.services.has_context_events() && !device.services.gate.capturing();
}

bool Deferral::retire_oldest(DeviceState& device, CUcontext asking, bool may_wait, Error* error) {
  Epoch* const oldest = deferred_.oldest_to_ask();
  if (oldest == nullptr || !device.services.may_call_driver()) return false;
  Epoch* own = may_wait && oldest == deferred_.oldest() ? oldest : nullptr;
  while (own != nullptr && !is_own(*own)) own = own->next;
  Epoch* const epoch = own != nullptr ? own : oldest;
  epoch->busy = true;
  FenceResult result;
  {
    const MutexUnlock unlocked(device.lock);
    result = own != nullptr ? own->fence.wait(device, own->waitable, asking) : oldest->fence.poll(device, asking);
  }
  epoch->busy = false;
  if (epoch != oldest && result.is_done()) {
    epoch->waitable = nullptr;  // it is over: nobody has to wait for it any more
    return retire_oldest(device, asking, false, error);
  }
  return retire_if_over(device, epoch, result, error);
}

/// Retires the epoch if `result`, the answer about its fence, says that it is over.
bool Deferral::retire_if_over(DeviceState& device, Epoch* epoch, const FenceResult& result, Error* error) {
  if (result.error.code != CUDA_SUCCESS) *error = result.error;
  if (!result.is_done()) return false;
  epoch->fence.clear(device.services.contexts);
  retire(device, deferred_.finish(epoch));
  orphans_.empty(device);
  return true;
}

bool Deferral::retire_batch_if_idle(DeviceState& device, CUcontext asking, Error* error) {
  if (unpooled_ || !may_close(device)) return false;
  Epoch* epoch = deferred_.close();
  if (epoch == nullptr) return false;
  FenceResult result;
  {
    const MutexUnlock unlocked(device.lock);
    result = epoch->fence.record(device, asking);
    if (result.is_done()) result = epoch->fence.poll(device, asking);
  }
  epoch->fence.clear(device.services.contexts);
  if (result.is_done()) {
    retire(device, deferred_.finish(epoch));
    return true;
  }
  deferred_.reopen(epoch);
  *error = result.error;
  return false;
}

/// Natively each of these frees would have waited. Where too much waits, this one does. It waits for all that came before it when more waits than is
/// to spare, since new blocks would be placed in fresh memory, scattered over it, and stay there; else for as much as leaves the GPU half of what may
/// wait.
/// `may_be_over`: the oldest epoch may be over (nobody has just asked about it in vain).
Error Deferral::catch_up(DeviceState& device, CUcontext asking, bool may_be_over) {
  if (device.counters().deferred_bytes.now() == 0) return {};
  const std::uint64_t ahead_bytes = backlog_.ahead_bytes(device) * (backlog_.makes_steps(device) ? Backlog::kAheadOfSteps : 1);
  const auto is_above = [&](std::uint64_t bytes) { return device.counters().deferred_bytes.now() > bytes; };
  const auto is_too_much = [&]() CUPOOL_REQUIRES(device.lock) { return is_above(ahead_bytes) || is_above(backlog_.waiting_share_bytes(device)); };
  Error error{};
  while (may_be_over && is_too_much()) may_be_over = retire_oldest(device, asking, false, &error);
  if (error.code != CUDA_SUCCESS || !is_too_much()) return error;
  const bool is_scarce = is_above(backlog_.waiting_share_bytes(device));
  await_frees(device, asking, {.left_bytes = is_scarce ? 0 : ahead_bytes / 2, .inside_free = true}, &error);
  return error;
}

bool Deferral::await_frees(DeviceState& device, CUcontext asking, const Awaited& awaited, Error* error) {
  const std::uint64_t all_bytes = device.counters().deferred_bytes.now();
  Epoch* target = nullptr;
  std::uint64_t target_bytes = 0;
  std::uint64_t bytes = 0;
  for (Epoch* epoch = deferred_.oldest(); epoch != nullptr && !(awaited.inside_free && epoch->next == nullptr); epoch = epoch->next) {
    bytes += epoch->batch.bytes;
    const bool is_natives_too = awaited.inside_free && epoch->may_be_awaited() && epoch->waitable == asking;
    if (!is_natives_too && !is_own(*epoch)) continue;
    target = epoch;
    target_bytes = bytes;
    if (all_bytes <= bytes + awaited.left_bytes) break;
  }
  if (target == nullptr || target_bytes < awaited.least_bytes || !device.services.may_call_driver()) return false;
  target->busy = true;
  FenceResult result;
  {
    const MutexUnlock unlocked(device.lock);
    result = target->fence.wait(device, target->waitable, asking);
  }
  target->busy = false;
  deferred_.follow(*target);
  *error = result.error;
  bool has_retired = false;
  while (Epoch* over = deferred_.first_over()) has_retired = retire_if_over(device, over, {FenceAnswer::done, {}}, error);
  // Other contexts' work may keep the newest, and not those before it.
  while (!result.is_done() && error->code == CUDA_SUCCESS && retire_oldest(device, asking, false, error)) has_retired = true;
  return has_retired;
}

/// It may be waited for, and natively its frees would have waited in this very thread.
bool Deferral::is_own(const Epoch& epoch) { return epoch.may_be_awaited() && pthread_equal(epoch.freed_by, pthread_self()) != 0; }

bool Deferral::is_better_on_its_way(DeviceState& device, const ContextPool& home, const AllocationRequest& request) {
  if (deferred_.oldest() == nullptr || request.stream.identity != 0) return false;
  const std::uint64_t room_bytes = device.room_bytes();
  const std::uint64_t everything_bytes = room_bytes + device.counters().reserved_bytes.now();
  const bool knows_its_room = backlog_.knows_its_steps(device) && room_bytes >= backlog_.kept_bytes(device);
  if (knows_its_room || saturating_sub(everything_bytes, device.needed_lately_bytes()) >= everything_bytes / kChoosySpareShare) return false;
  const bool is_last = room_bytes < everything_bytes / kChoosyRoomShare && request.bytes >= kChoosyFrom_bytes &&
                       !(home.pooled->can_move() && backlog_.may_scatter(device));
  const std::uint64_t occupied_bytes = home.pooled->occupies_bytes(device, request.bytes);
  if (!is_last && occupied_bytes == 0) return false;
  const std::uint64_t hole_bytes = is_last ? home.pooled->fit_bytes(device, request.bytes) : 0;
  std::size_t looks = 0;
  for (const Epoch* epoch = deferred_.oldest(); epoch != nullptr; epoch = epoch->next) {
    if (!is_own(*epoch)) continue;
    for (const Extent* extent = epoch->batch.first; extent != nullptr; extent = extent->bin_next) {
      if (++looks > kChoosyLooks) return false;
      if (extent->bytes < request.bytes || info_of(*extent).allocator != home.pooled.get()) continue;  // a block of the driver leaves no hole
      if (is_last && extent->bytes <= hole_bytes - hole_bytes / 4) return true;
      if (occupied_bytes != 0 && home.pooled->occupies_bytes(device, *extent, request.bytes) < occupied_bytes) return true;
    }
  }
  return false;
}

/// One more epoch is over. Of epochs that came to stand in a queue, since the GPU was far behind or something captured, one look for each that is
/// closed would leave as many for ever, with all that threads wait for in them. So others follow, but seldom after one in vain. Returns whether
/// the oldest one may be over.
bool Deferral::look_further(DeviceState& device, CUcontext asking, Error* error) {
  if (deferred_.epoch_count() <= kShortQueue) return true;
  if (looks_left_out_ != 0) {
    --looks_left_out_;
    return true;
  }
  for (std::uint32_t looks = 0; looks < kFurtherLooks && deferred_.epoch_count() > kShortQueue; ++looks) {
    if (retire_oldest(device, asking, false, error)) continue;
    looks_left_out_ = kLooksLeftOut;
    return false;
  }
  return true;
}

Error Deferral::upkeep(DeviceState& device, CUcontext asking, bool inside_free) {
  Look look;
  const std::uint64_t size_bytes = deferred_.oldest() == nullptr ? deferred_.batch_size_bytes() : 0;
  const bool is_contended = deferred_.oldest() != nullptr && deferred_.oldest()->busy;  // by a thread that asks whether it is over
  Error error = close_epoch(device, asking, inside_free ? Closing::inside_free : Closing::late, &look);
  Error query_error{};
  // One look per closed epoch. A thread that finds another one at the oldest epoch leaves its look to the next free.
  if (const Epoch* oldest = deferred_.oldest(); look.epoch == nullptr && oldest != nullptr && oldest->busy) ++looks_owed_;
  bool has_ended =
      look.epoch != nullptr ? retire_if_over(device, look.epoch, look.result, &query_error) : retire_oldest(device, asking, false, &query_error);
  if (look.epoch != nullptr && !(is_contended && has_ended)) backlog_.note_idle(device, has_ended ? size_bytes : 0);
  while (has_ended && (device.services.synchronises() || looks_owed_ != 0)) {
    looks_owed_ -= looks_owed_ != 0 ? 1 : 0;
    has_ended = retire_oldest(device, asking, false, &query_error);
  }
  if (has_ended) has_ended = look_further(device, asking, &query_error);
  if (error.code == CUDA_SUCCESS) error = query_error;
  if (inside_free && error.code == CUDA_SUCCESS) error = catch_up(device, asking, has_ended);
  if (inside_free) giving_back_.surplus(device);
  orphans_.empty(device);
  return error;
}

/// Waits until everything submitted so far is over in every context of this device; with `everywhere`, or once the program has linked devices by peer
/// access, in every context of the process. The lock is not held meanwhile. Work of an unlinked device is not waited for otherwise: a kernel there
/// may be waiting for this very thread, and a native free waits for the work of its block's context alone (seen on an H100, driver 580).
FenceResult Deferral::synchronise_reachable(DeviceState& device, CUcontext asking, bool everywhere) {
  const MutexUnlock unlocked(device.lock);
  const DeviceState* const only = everywhere || device.services.devices_linked.load(std::memory_order_relaxed) ? nullptr : &device;
  if (device.driver.has_cuCtxRecordEvent() && device.driver.has_cuEventSynchronize()) {
    // Not cuCtxSynchronize, which would end a capture that another thread begins meanwhile. Events are recorded under the capture gate.
    Fence fence;
    FenceResult result = fence.record(device, asking, only);
    // The work of a context that is ending cannot be waited for, but the other contexts' is: the program may look at its results. This is tried
    // whatever made the first attempt impossible, since the end may be over by now.
    const bool is_partial = result.answer == FenceAnswer::impossible && result.error.code == CUDA_SUCCESS;
    if (is_partial) result = fence.record(device, asking, only, {}, ContextRegistry::Ending::left_out);
    if (result.is_done()) result = fence.wait(device, nullptr, asking);
    fence.clear(device.services.contexts);
    if (is_partial && result.answer == FenceAnswer::done) result.answer = FenceAnswer::impossible;
    if (result.answer != FenceAnswer::unsupported) return result;
  }
  return synchronise_contexts(device, asking, only);
}

bool Deferral::others_may_touch(DeviceState& device) {
  const PoolServices& services = device.services;
  if (services.devices_linked.load(std::memory_order_relaxed) || !services.has_context_events()) return false;
  return device.services.contexts.has_others(device);
}

FenceResult Deferral::synchronise_and_retire(DeviceState& device, CUcontext asking) {
  if (!device.services.gate.capturing()) deferred_.reopen_over_natively();
  Epoch* earlier = deferred_.batch_is_empty() || others_may_touch(device) ? nullptr : deferred_.close();
  // The blocks of these epochs were freed without events while something captured; the contexts that were current then, whose copies may touch the
  // blocks, are not known.
  const std::uint64_t last_unstamped = deferred_.unstamped().last_number();
  const FenceResult result = synchronise_reachable(device, asking, earlier != nullptr || !deferred_.unstamped().empty());
  if (result.is_done()) retire(device, deferred_.finish_unstamped(last_unstamped));
  if (earlier != nullptr) {
    if (result.is_done()) retire(device, deferred_.finish(earlier));
    else deferred_.reopen(earlier);
  }
  Error ignored{};  // an error of an older epoch is reported by the call that meets it
  while (result.answer == FenceAnswer::done && retire_oldest(device, asking, false, &ignored)) {}
  return result;
}

}  // namespace cupool::device
