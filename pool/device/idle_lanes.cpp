// Before the pool grows: what other streams keep is everybody's where their work is over at this moment. The driver's own pools reuse a completed
// free likewise (CUDA Driver API 13.0, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC). One event and one look for each lane, none where the program has waited for
// all that is in it. Where the stream has work, but frees more than it allocates, that event stays: the stream takes back what it needs without it, others find the rest at a
// later miss, and from then on it goes to everybody as it comes; so it does from a stream that only frees.
#include <algorithm>
#include <array>

#include "pool/device/context_lanes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
constexpr std::uint64_t kLeastHandOver_bytes = 32 * kMiB;
constexpr std::uint64_t kHandOverShare = 64;  ///< so large a part of the need is an event worth
constexpr std::uint64_t kMissedShare = 4;     ///< such a part of what others could have without it
constexpr std::uint64_t kRoomToFeed = 8;      ///< such a part of everything must be left to the driver
}

/// Lanes that hold a good part of what the request needs. True when anything has become everybody's.
bool DevicePool::open_idle_lanes(ContextPool& home, const AllocationRequest& request) {
  home.streams.note_miss();
  if (capturing() || !may_call_driver() || home.streams.has_stamps_in_lanes()) return false;  // stamped: memory is short, and other rungs see to it
  magazines_.visit_own(device_, home, &Magazines::return_to_lanes);
  std::array<std::uint64_t, StreamLanes::kMostLanes> identities{};
  std::size_t count = 0;
  for (const StreamLanes::Entry& entry : home.streams.entries())
    if (entry.identity != request.stream.identity && !entry.busy && home.pooled->lane_bytes(entry.lane) >= request.bytes / kIdleLaneShare + 1)
      identities[count++] = entry.identity;
  bool is_more = false;
  for (std::size_t i = 0; i < count && home.context != nullptr; ++i) is_more = open_lane_if_idle(home, identities[i], request.bytes) || is_more;
  return is_more;
}

/// Everybody's from now on, without a driver call: all work that could touch it is over.
void DevicePool::open_lane(ContextPool& home, std::uint32_t lane) {
  Batch holes;
  const auto lane_bytes = static_cast<std::int64_t>(home.pooled->lane_bytes(lane));
  home.pooled->drain_lane(lane, holes);
  device_.counters().deferred_bytes.add(lane_bytes);
  device_.counters().lanes_drained.add();
  deferral_.retire(device_, holes);
}

/// An event, not a query of the stream: it covers what was in the lane before, while others go on freeing into it. True: it is everybody's.
bool DevicePool::open_lane_if_idle(ContextPool& home, std::uint64_t identity, std::uint64_t wanted_bytes) {
  StreamLanes::Entry* entry = home.streams.entry(identity);
  if (entry == nullptr || entry->busy || capturing()) return false;
  const std::uint32_t lane = entry->lane;
  const std::uint64_t lane_bytes = home.pooled->lane_bytes(lane);
  if (lane_bytes == 0) return false;
  if (StreamLanes::is_waited_for(*entry)) {
    open_lane(home, lane);
    return true;
  }
  if (device_.services.contexts.pin(&home, home.context) != Pin::held) return false;
  const Unpinner unpinner(device_.services.contexts, &home);
  Batch holes;
  home.pooled->drain_lane(lane, holes);
  device_.counters().deferred_bytes.add(static_cast<std::int64_t>(lane_bytes));
  FenceResult result;
  Epoch* const epoch = record_lane(home, *entry, holes, true, &result);
  if (epoch == nullptr) {
    lanes::return_holes(device_, home, lane, holes);
    return false;
  }
  const bool is_idle = result.answer == FenceAnswer::done && result.error.code == CUDA_SUCCESS;
  const bool is_running = result.answer == FenceAnswer::pending && result.error.code == CUDA_SUCCESS;
  const bool may_stay = lane_bytes >= wanted_bytes && may_feed() && !device_.services.cannot_record.load(std::memory_order_relaxed);
  StreamLanes::Entry* const left = home.streams.entry(identity);
  if (is_running && may_stay && left != nullptr && StreamLanes::feeds_others(*left, lane_bytes)) {
    epoch->set_lane(home, identity);
    device_.counters().lanes_drained.add();
    return false;
  }
  epoch->fence.clear(device_.services.contexts);
  const Batch back = deferred_.finish(epoch);
  if (!is_idle) {
    lanes::return_holes(device_, home, lane, back);
    return false;
  }
  device_.counters().lanes_drained.add();
  deferral_.retire(device_, back);
  return true;
}

/// While little is left, streams scatter less when each keeps what it has; then frees carry events of their own anyway.
bool DevicePool::may_feed() {
  const std::uint64_t room_bytes = device_.room_bytes();
  return room_bytes >= (room_bytes + device_.counters().reserved_bytes.current.load(std::memory_order_relaxed)) / kRoomToFeed;
}

/// Would so much of what the stream frees, with these `bytes`, have no event of its own that other streams could run out of memory for want of it?
bool DevicePool::may_be_missed(ContextPool& home, std::uint64_t identity, std::uint64_t bytes) {
  if (device_.has_plenty(2) || !home.streams.are_several() || !home.pooled->can_move()) return false;
  const StreamLanes::Entry* const entry = home.streams.entry(identity);
  return entry != nullptr && !lanes::is_plenty(device_, home, magazines_.kept_bytes(), kMissedShare * (std::min(home.pooled->lane_bytes(entry->lane), entry->unmarked_bytes) + bytes));
}

/// A stream that frees what others allocate, a consumer behind a producer, keeps it from them until they miss, with no event that is over yet: each time the pool would grow by what the stream is behind.
/// So its lane is drained as it fills, and what is over goes to everybody.
void DevicePool::hand_over(ContextPool& home, std::uint64_t identity) {
  if (capturing()) return;
  const StreamLanes::Entry* const entry = home.streams.entry(identity);
  if (entry == nullptr || !home.streams.is_for_others(*entry) || (entry->feeds && !may_feed())) return;
  if (home.pooled->lane_bytes(entry->lane) < std::max(kLeastHandOver_bytes, device_.need_bytes() / kHandOverShare)) return;
  const CUcontext context = home.context;
  drain_stream(home, identity, false);
  Error ignored{};  // for the call that meets it
  for (int looks = 0; looks < 2 && home.context == context && deferral_.retire_oldest(device_, context, false, &ignored); ++looks) {
  }
}

/// The program has waited for the stream (0: for all of the context) by a call of its own that began after `fills`: what was in the lane then is over, and
/// everybody's from now on, without a driver call. A lane that anything has come into since stays as it is.
void DevicePool::open_waited_lanes(ContextPool& home, std::uint64_t identity, std::uint64_t fills) {
  const MutexLock lock(device_.lock);
  if (home.pooled == nullptr) return;
  home.streams.note_waited(identity, fills);
  if (!home.streams.are_several()) return;  // one stream has all of it anyway, until another asks
  if (home.streams.has_stamps_in_lanes()) return;  // memory is short: what was freed has events of its own, by which others get it
  const std::uint64_t least_bytes = device_.least_early_bytes();
  bool is_more = false;
  for (const StreamLanes::Entry& entry : home.streams.entries()) {
    const bool is_meant = identity == 0 || entry.identity == identity;
    if (!is_meant || entry.busy || entry.last_fill > fills || home.pooled->lane_bytes(entry.lane) < least_bytes) continue;
    open_lane(home, entry.lane);
    is_more = true;
  }
  if (is_more) figures_.publish(device_);
}

}  // namespace cupool::device
