// Stamped frees: what a stream frees with an event of that free. See stream_lanes.hpp.
//
// While memory is short the bytes are their own stream's at once, in its lane, and whoever else gets them has waited for the event: the device for
// another stream (steal), nobody for all others, who get them once a look says that it is over (retire_stamped). A free that falls into somebody's
// capture leaves its block set aside, so that it is used again only where no other hole will do: the graph may name it.
#include <algorithm>
#include <array>

#include "pool/device/device_pool.hpp"

namespace cupool::device {

using heap::Extent;
using observe::EventKind;

/// The free with an event of its own, recorded on a stream of `context`. False when none could be recorded: nothing has happened then.
bool DevicePool::free_stamped(Extent* extent, ContextPool& home, CUcontext context, StreamName stream, std::uint16_t thread, StampedPlace place) {
  ContextPool* const of_stream = home.context == context ? &home : device_.services.contexts.find(context);
  if (of_stream == nullptr) return false;
  StreamLanes::Stamped& list = home.streams.stamped();
  if (list.size() >= StreamLanes::kMostStamped && !home.streams.forget_stamp(extent->bytes, device_.services.contexts)) return false;
  StreamLanes::Stamped::iterator stamped;
  try {
    stamped = list.emplace(list.end());
  } catch (const std::bad_alloc&) {
    return false;
  }
  stamped->identity = stream.identity;
  stamped->busy = true;
  device_.count_free(*extent);
  device_.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
  device_.note(EventKind::free_requested, ticks(), *extent, thread, stream.identity);
  home.pooled->defer(device_, extent);
  stamped->extent = extent;
  FenceResult result;
  {
    const MutexUnlock unlocked(device_.lock);
    result = stamped->fence.record_on(device_, *of_stream, context, stream.handle);
  }
  stamped->busy = false;
  if (result.answer == FenceAnswer::done && stamped->extent != nullptr) {
    if (place == StampedPlace::lane) keep_in_lane(home, stamped, stream);
    return true;
  }
  Extent* const left = stamped->extent;
  stamped->fence.clear(device_.services.contexts);
  list.erase(stamped);
  if (left == nullptr) return true;
  // Where no event covers a context it would wait for the next plain free.
  const bool may_wait = place == StampedPlace::aside || !device_.services.cannot_record.load(std::memory_order_relaxed);
  const std::uint32_t lane = may_wait ? 0 : lane_for(home, stream);
  if (lane != 0) complete_in_lane(home, left, lane, stream.identity);
  else deferred_.push(left);
  return true;
}

/// A block that waited is free, for the users of `lane`; `is_marked`: it keeps its event, for others.
void DevicePool::complete_in_lane(ContextPool& home, Extent* extent, std::uint32_t lane, std::uint64_t freed_by, bool is_marked) {
  device_.counters().deferred_bytes.add(-static_cast<std::int64_t>(extent->bytes));
  if ((extent->flags & kUsedAgainFlag) == 0) device_.note(EventKind::free_completed, ticks(), *extent, 0, freed_by);
  home.streams.note_fill(lane, extent->bytes, is_marked);
  home.pooled->recycle_in_lane(device_, extent, lane);
}

/// The stamped block is its own stream's again; false: there is no lane for it, it stays aside.
bool DevicePool::keep_in_lane(ContextPool& home, StreamLanes::Stamped::iterator stamped, StreamName stream) {
  Extent* extent = stamped->extent;
  const std::uint32_t lane = lane_for(home, stream);
  if (lane == 0) return false;
  try {
    home.streams.follow_into_lane(stamped, lane);
  } catch (const std::bad_alloc&) {
    return false;
  }
  complete_in_lane(home, extent, lane, stamped->identity, true);
  return true;
}

/// The bytes of a stamp out of their lane, as a deferred block; false, with the stamp left, where host memory is out.
bool DevicePool::set_aside(ContextPool& home, StreamLanes::Stamped::iterator stamped) {
  Extent* extent = nullptr;
  try {
    extent = home.pooled->set_aside(stamped->address, stamped->bytes);
  } catch (const std::bad_alloc&) {
  }
  home.streams.leave_lane(stamped);
  if (extent == nullptr) return false;
  stamped->extent = extent;
  device_.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
  return true;
}

/// The lane is about to be drained: what has an event of its own needs no later one.
void DevicePool::set_stamped_aside(ContextPool& home, std::uint32_t lane) {
  if (!home.streams.has_stamps_in_lanes()) return;
  StreamLanes::Stamped& list = home.streams.stamped();
  for (auto next = list.begin(); next != list.end();) {
    const auto stamped = next++;
    if (!stamped->is_in_lane() || stamped->lane != lane || set_aside(home, stamped) || stamped->busy) continue;
    stamped->fence.clear(device_.services.contexts);
    list.erase(stamped);
  }
}

/// The stamped bytes are free, for the users of `lane`.
void DevicePool::end_stamped(ContextPool& home, StreamLanes::Stamped::iterator stamped, std::uint32_t lane) {
  if (stamped->is_in_lane()) set_aside(home, stamped);
  Extent* extent = stamped->extent;
  const std::uint64_t stamped_identity = stamped->identity;
  stamped->fence.clear(device_.services.contexts);
  home.streams.stamped().erase(stamped);
  if (extent != nullptr) complete_in_lane(home, extent, lane, stamped_identity);
}

/// Looks at the oldest stamped free of each stream, and makes the first whose event is over everybody's: true. But for what `identity` has in its
/// own lane anyway.
bool DevicePool::retire_stamped(ContextPool& home, CUcontext asking, std::uint64_t identity, Error* error) {
  StreamLanes::Stamped& list = home.streams.stamped();
  std::array<std::uint64_t, kMostLooks> looked_at{};
  for (std::size_t looks = 0; looks < kMostLooks && may_call_driver(); ++looks) {
    const auto seen_end = looked_at.begin() + static_cast<std::ptrdiff_t>(looks);
    const auto stamped = std::find_if(list.begin(), list.end(), [&](const StampedFree& one) {
      return !one.busy && !(one.is_in_lane() && one.identity == identity) && std::find(looked_at.begin(), seen_end, one.identity) == seen_end;
    });
    if (stamped == list.end()) return false;
    looked_at[looks] = stamped->identity;
    stamped->busy = true;
    FenceResult result;
    {
      const MutexUnlock unlocked(device_.lock);
      result = stamped->fence.poll(device_, asking);
    }
    stamped->busy = false;
    if (stamped->free_bytes() == 0 || result.answer == FenceAnswer::done) {
      end_stamped(home, stamped, 0);
      return true;
    }
    if (result.error.code == CUDA_SUCCESS) continue;
    *error = result.error;
    return false;
  }
  return false;
}

/// The same for all contexts of the device: what one of them gives back the driver has for another.
bool DevicePool::retire_any_stamped(CUcontext asking, Error* error) {
  for (std::size_t i = 0; i < homes_.size(); ++i)  // by index: the list may grow while the lock is let go of
    if (retire_stamped(*homes_[i], asking, 0, error)) return true;
  return false;
}

bool DevicePool::has_stamped() {
  return std::any_of(homes_.begin(), homes_.end(), [](const auto& home) { return !home->streams.stamped().empty(); });
}

/// What the stream itself freed and is set aside needs no event for it: back into its lane, with the event for others. True when there was any.
bool DevicePool::take_own_stamped(ContextPool& home, StreamName stream) {
  StreamLanes::Stamped& list = home.streams.stamped();
  bool is_more = false;
  for (auto stamped = list.begin(); stamped != list.end(); ++stamped)
    if (stamped->identity == stream.identity && stamped->extent != nullptr && !stamped->busy && keep_in_lane(home, stamped, stream)) is_more = true;
  return is_more;
}

/// A block for a stream out of what stamped frees hold: its own at once, another stream's behind the event of that free.
Result<Extent*> DevicePool::steal(Attempt& attempt) {
  ContextPool& home = *attempt.home;
  StreamLanes::Stamped& list = home.streams.stamped();
  const StreamName stream = attempt.request.stream;
  if (list.empty()) return nullptr;
  make_place_for_lane(attempt.context, stream);
  attempt.request.lane = lane_for(home, stream);
  if (attempt.request.lane == 0) return nullptr;
  const auto is_theirs = [stream](const StampedFree& one) {
    return !one.busy && one.free_bytes() != 0 && !(one.is_in_lane() && one.identity == stream.identity);
  };
  for (;;) {
    Extent* extent = home.pooled->allocate(device_, attempt.request);
    if (extent == nullptr && home.pooled->gather(attempt.request.lane, attempt.request.bytes)) extent = home.pooled->allocate(device_, attempt.request);
    if (extent != nullptr) return extent;
    // The tightest that is enough alone; else the oldest, whose event is the likeliest to be over.
    auto best = list.end();
    for (auto stamped = list.begin(); stamped != list.end(); ++stamped) {
      if (!is_theirs(*stamped) || stamped->free_bytes() < attempt.request.bytes) continue;
      if (best == list.end() || stamped->free_bytes() < best->free_bytes()) best = stamped;
    }
    // Together they must be enough: a stream is not made to wait for others in vain.
    const bool may_be_enough = home.streams.bytes_for(stream.identity) + home.pooled->lane_bytes(attempt.request.lane) >= attempt.request.bytes;
    if (best == list.end() && may_be_enough) best = std::find_if(list.begin(), list.end(), is_theirs);
    if (best == list.end()) return nullptr;
    best->busy = true;
    FenceResult result;
    {
      const MutexUnlock unlocked(device_.lock);
      result = best->fence.wait_on_device(device_, attempt.context, stream.handle);
    }
    const bool is_over = result.error.code == CUDA_SUCCESS && (result.answer == FenceAnswer::done || best->free_bytes() == 0);
    if (is_over) attempt.request.lane = lane_for(home, stream);  // it may have gone to another stream meanwhile; a busy stamp survives that
    best->busy = false;
    if (result.error.code != CUDA_SUCCESS) return result.error;
    if (!is_over || attempt.request.lane == 0) return nullptr;
    end_stamped(home, best, attempt.request.lane);
  }
}

/// The first broken rule as a sentence, or an empty string: a stamp in a lane speaks for bytes of one hole of that lane.
std::string DevicePool::check_stamps(ContextPool& home) {
  for (const StampedFree& one : home.streams.stamped()) {
    if (!one.is_in_lane()) continue;
    const Extent* hole = home.pooled->find_containing(device_, one.address);
    const bool is_free = hole != nullptr && hole->state == heap::ExtentState::free && hole->lane == one.lane;
    if (!is_free || one.address + one.bytes > hole->address + hole->bytes) return "a stamp speaks for bytes that are not free in its lane";
  }
  return home.streams.check();
}

}  // namespace cupool::device
