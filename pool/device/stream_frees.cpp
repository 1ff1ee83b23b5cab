// What streams free: see stream_frees.hpp. idle_lanes.cpp has how others get it once the stream's work is over, stamped_frees.cpp what carries an
// event of its own.
#include "pool/device/stream_frees.hpp"

#include <algorithm>
#include <array>

#include "pool/device/context_lanes.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;

FreeOutcome StreamFrees::free_in_lane(DeviceState& device, Extent* extent, ContextPool& home, CUcontext context, StreamName stream,
                                      std::uint16_t thread) {
  home.streams.see(stream.identity);
  home.streams.count_frees(1);
  bool must_stamp = !home.streams.is_alone() && (shortage_.stamps_frees() || !lanes::is_plenty(device, home, magazines_.kept_bytes(), extent->bytes));
  if (!must_stamp && may_be_missed(device, home, stream.identity, extent->bytes)) must_stamp = home.streams.fears_miss();
  shortage_.count_stream_free();
  if (must_stamp && free_stamped(device, extent, home, context, stream, thread, StampedPlace::lane)) return FreeOutcome::freed;
  const std::uint32_t lane = lanes::lane_for(device, home, stream, deferred_.batch());
  if (lane == 0) {
    const bool needs_event = !device.services.has_context_events();
    if (!needs_event || !free_stamped(device, extent, home, context, stream, thread, StampedPlace::aside)) deferral_.defer(device, extent, thread);
    return FreeOutcome::freed;
  }
  device.count_free(*extent);
  device.note_freed(*extent, thread, stream.identity);
  home.streams.note_fill(lane, extent->bytes);
  home.pooled->recycle_in_lane(device, extent, lane);
  hand_over(device, home, stream.identity);
  if (device.services.options.release_threshold_bytes && (++lane_frees_ & 63) == 0) give_back_surplus_of_lanes(device, context);
  return FreeOutcome::freed;
}

void StreamFrees::make_place_for_lane(DeviceState& device, CUcontext context, StreamName stream) {
  if (device.services.has_context_events()) [[likely]]
    return;
  const auto found = std::find_if(homes_.begin(), homes_.end(), [context](const auto& home) { return home->context == context; });
  if (found == homes_.end()) return;
  ContextPool* const home = found->get();
  if (home->pooled == nullptr || !home->streams.is_full() || home->streams.entry(stream.identity) != nullptr) return;
  drain_stream(device, *home, home->streams.oldest().identity, true);
}

/// An event on the legacy stream would make blocking streams wait for each other: such a stream uses an event of the whole context where there is
/// one. That event also covers a thread's own default stream, which is blocking.
bool StreamFrees::needs_context_event(const DeviceState& device, const StreamLanes::Entry& entry) {
  return (entry.handle == nullptr || entry.handle == CU_STREAM_LEGACY) && device.services.has_context_events();
}

/// The holes of the lane become an epoch, with an event of the lane's stream, or of its whole context where it must be; `looks`: the event is also
/// polled at once. Returns nullptr, with nothing changed, when host memory is out. Preconditions: the context is pinned, and no thread is busy with
/// the lane.
Epoch* StreamFrees::record_lane(DeviceState& device, ContextPool& home, StreamLanes::Entry& entry, Batch& holes, bool looks, FenceResult* result) {
  Epoch* const epoch = deferred_.close(holes);
  if (epoch == nullptr) return nullptr;
  *result = {FenceAnswer::impossible, {}};
  const bool is_of_context = needs_context_event(device, entry);
  const CUstream handle = entry.handle != nullptr ? entry.handle : CU_STREAM_LEGACY;
  const CUcontext context = home.context;
  const std::uint64_t identity = entry.identity;
  entry.busy = true;
  entry.unmarked_bytes = 0;
  {
    const MutexUnlock unlocked(device.lock);
    if (is_of_context) {
      *result = epoch->fence.record(device, context);
    } else {
      const ScopedContext current(device.driver, context);
      if (current.status().ok()) *result = epoch->fence.record_on(device, home, context, handle);
    }
    if (looks && result->is_done()) *result = epoch->fence.poll(device, context);
  }
  if (StreamLanes::Entry* left = home.streams.entry(identity)) left->busy = false;
  epoch->busy = false;
  return epoch;
}

void StreamFrees::drain_stream(DeviceState& device, ContextPool& home, std::uint64_t identity, bool only_own_events) {
  StreamLanes::Entry* entry = home.streams.entry(identity);
  if (entry == nullptr || home.pooled->lane_bytes(entry->lane) == 0) return;
  // There, what waits without an event would wait for the next plain free.
  only_own_events = only_own_events || !device.services.has_context_events();
  const bool can_record = !needs_context_event(device, *entry) && !entry->busy && device.services.may_call_driver();
  // Otherwise the context could end, and the stream with it.
  const PinnedContext pinned(device.services.contexts, &home, can_record ? home.context : nullptr);
  if (!pinned) {
    if (!only_own_events && !device.services.gate.capturing()) lanes::drain(device, home, entry->lane, deferred_.batch());
    return;
  }
  Batch holes;
  const std::uint32_t lane = entry->lane;
  lanes::drain(device, home, lane, holes);
  if (holes.first == nullptr) return;  // everything in the lane has an event already
  FenceResult result;
  Epoch* const epoch = record_lane(device, home, *entry, holes, false, &result);
  if (epoch == nullptr) return only_own_events ? lanes::return_holes(device, home, lane, holes) : deferred_.batch().prepend(holes);
  if (result.answer != FenceAnswer::done && (only_own_events || device.services.gate.capturing()))
    return lanes::return_holes(device, home, lane, deferred_.finish(epoch));
  if (result.answer != FenceAnswer::done) return deferred_.reopen(epoch);
  epoch->set_lane(home, identity);
}

bool StreamFrees::take_own(DeviceState& device, ContextPool& home, StreamName stream, std::uint64_t wanted_bytes) {
  make_place_for_lane(device, home.context, stream);
  const bool had_stamped = lanes::take_own_stamped(device, home, stream, deferred_.batch());
  const bool had_unstamped = take_own_unstamped(device, home, stream);
  return take_own_epochs(device, home, stream, wanted_bytes) || had_stamped || had_unstamped;
}

/// What was drained from the stream's own lane needs no event for that stream: it goes back into the lane. True when there was any. In a stream that
/// feeds others this is not done for a request that is small beside it: they would never get what it hands over.
bool StreamFrees::take_own_epochs(DeviceState& device, ContextPool& home, StreamName stream, std::uint64_t wanted_bytes) {
  constexpr std::uint64_t kTrifleOfLane = 16;
  const StreamLanes::Entry* const entry = home.streams.entry(stream.identity);
  const bool is_for_others = entry != nullptr && home.streams.is_for_others(*entry);
  bool is_more = false;
  for (Epoch* next = deferred_.oldest(); next != nullptr;) {
    Epoch* const epoch = next;
    next = epoch->next;
    if (epoch->stream != stream.identity || epoch->home != &home || !epoch->recorded || epoch->busy) continue;
    if (is_for_others && wanted_bytes < epoch->batch.bytes / kTrifleOfLane) continue;
    const std::uint32_t lane = lanes::lane_for(device, home, stream, deferred_.batch());
    if (lane == 0) return is_more;
    epoch->fence.clear(device.services.contexts);
    const Batch holes = deferred_.finish(epoch);
    lanes::return_holes(device, home, lane, holes);
    is_more = is_more || holes.first != nullptr;
  }
  return is_more;
}

void StreamFrees::drain_streams(DeviceState& device, ContextPool& home, bool only_own_events,
                                bool (*is_due)(const StreamLanes& streams, const StreamLanes::Entry& entry)) {
  std::array<std::uint64_t, StreamLanes::kMostLanes> identities{};
  std::size_t count = 0;
  for (const StreamLanes::Entry& entry : home.streams.entries())
    if (is_due(home.streams, entry)) identities[count++] = entry.identity;
  for (std::size_t i = 0; i < count && home.context != nullptr; ++i) drain_stream(device, home, identities[i], only_own_events);
}

static bool is_any_lane(const StreamLanes&, const StreamLanes::Entry&) { return true; }
static bool is_stale_lane(const StreamLanes& streams, const StreamLanes::Entry& entry) { return streams.is_stale(entry); }

void StreamFrees::drain_stale_lanes(DeviceState& device, ContextPool& home) {
  if (home.pooled == nullptr) return;
  const std::uint64_t drained = device.counters().lanes_drained.count();
  std::uint64_t kept_bytes = 0;
  for (const StreamLanes::Entry& entry : home.streams.entries()) kept_bytes += home.pooled->lane_bytes(entry.lane);
  const bool is_too_much = kept_bytes > backlog_.ahead_bytes(device) && !device.services.gate.capturing();
  drain_streams(device, home, false, is_too_much ? &is_any_lane : &is_stale_lane);
  if (device.counters().lanes_drained.count() != drained) static_cast<void>(deferral_.close_epoch(device, home.context, Deferral::Closing::late));
}

bool StreamFrees::has_lanes() const {
  for (const auto& home : homes_) {
    if (home->context == nullptr || home->pooled == nullptr) continue;
    for (const StreamLanes::Entry& entry : home->streams.entries())
      if (home->pooled->lane_bytes(entry.lane) != 0) return true;
  }
  return false;
}

void StreamFrees::drain_lanes(DeviceState& device, bool only_own_events) {
  for (std::size_t i = 0; i < homes_.size(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    if (home.context == nullptr || home.pooled == nullptr) continue;
    drain_streams(device, home, only_own_events, &is_any_lane);
  }
}

void StreamFrees::forget_stamps_of(ContextPool& home, std::uint64_t identity) {
  for (StampedFree& stamped : home.streams.stamped())
    if (stamped.identity == identity) stamped.identity = 0;
}

void StreamFrees::retire_all(DeviceState& device, CUcontext asking, bool may_wait) {
  Error ignored{};  // an error of an older epoch is reported by the call that meets it
  while (deferral_.retire_oldest(device, asking, may_wait, &ignored)) {}
  while (retire_any_stamped(device, asking, &ignored)) {}
}

void StreamFrees::give_back_surplus_of_lanes(DeviceState& device, CUcontext asking) {
  if (figures_.sum(device).free_bytes > *device.services.options.release_threshold_bytes) {
    drain_lanes(device);
    static_cast<void>(deferral_.close_epoch(device, asking, Deferral::Closing::late));
  }
  retire_all(device, asking, false);
  giving_back_.surplus(device, false);
}

}  // namespace cupool::device
