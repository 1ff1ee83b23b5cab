// Before the pool grows: what other streams keep in their lanes becomes free for everybody where its work is over at this moment. The driver's own
// pools reuse a completed free likewise (CUDA Driver API 13.0, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC). The price is one event and one query per
// lane, and none where the program has waited for everything in it.
// Where the stream has work, but frees what it does not take back, the event stays pending: the stream can take back what it needs without it, other
// streams find the rest at a later miss, and from then on its frees are handed over as they come. The same holds for a stream that only frees.
#include <algorithm>
#include <array>

#include "pool/device/context_lanes.hpp"
#include "pool/device/stream_frees.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
constexpr std::uint64_t kLeastHandOver_bytes = 32 * kMiB;
constexpr std::uint64_t kHandOverShare = 64;  ///< a lane that holds this part of the need is worth an event
constexpr std::uint64_t kMissedShare = 4;     ///< a lane is missed when it is this part of what others could have without it
constexpr std::uint64_t kRoomToFeed = 8;      ///< lanes are handed over only while the driver has this part of everything left
}  // namespace

bool StreamFrees::open_idle_lanes(DeviceState& device, ContextPool& home, const AllocationRequest& request) {
  home.streams.note_miss();
  // Stamped frees mean that memory is short: other rungs see to them.
  if (device.services.gate.capturing() || !device.services.may_call_driver() || home.streams.has_stamps_in_lanes()) return false;
  magazines_.visit_own(device, home, &Magazines::return_to_lanes);
  std::array<std::uint64_t, StreamLanes::kMostLanes> identities{};
  std::size_t count = 0;
  for (const StreamLanes::Entry& entry : home.streams.entries())
    if (entry.identity != request.stream.identity && home.pooled->lane_bytes(entry.lane) >= request.bytes / kIdleLaneShare + 1)
      identities[count++] = entry.identity;
  bool is_more = false;
  for (std::size_t i = 0; i < count && home.context != nullptr; ++i)
    is_more = open_lane_if_idle(device, home, identities[i], request.bytes) || is_more;
  return is_more;
}

/// What is in the lane is free for everybody from now on, without a driver call: all work that could touch it is over. Skips what another thread is
/// asking about.
void StreamFrees::open_lane(DeviceState& device, ContextPool& home, std::uint32_t lane) {
  Batch holes;
  lanes::drain(device, home, lane, holes);
  deferral_.retire(device, holes);
}

/// Asks with an event rather than by querying the stream: the event covers what was in the lane before, while other threads go on freeing into it.
/// True: the lane is free for everybody.
bool StreamFrees::open_lane_if_idle(DeviceState& device, ContextPool& home, std::uint64_t identity, std::uint64_t wanted_bytes) {
  StreamLanes::Entry* entry = home.streams.entry(identity);
  if (entry == nullptr || entry->busy || device.services.gate.capturing()) return false;
  const std::uint32_t lane = entry->lane;
  const std::uint64_t lane_bytes = home.pooled->lane_bytes(lane);
  if (lane_bytes == 0) return false;
  if (StreamLanes::is_waited_for(*entry)) {
    open_lane(device, home, lane);
    return true;
  }
  const PinnedContext pinned(device.services.contexts, &home, home.context);
  if (!pinned) return false;
  Batch holes;
  home.pooled->drain_lane(lane, holes);
  device.counters().deferred_bytes.add(static_cast<std::int64_t>(lane_bytes));
  FenceResult result;
  Epoch* const epoch = record_lane(device, home, *entry, holes, true, &result);
  if (epoch == nullptr) {
    lanes::return_holes(device, home, lane, holes);
    return false;
  }
  const bool is_idle = result.is_done();
  const bool is_running = result.is_pending();
  const bool may_stay = lane_bytes >= wanted_bytes && may_feed(device) && device.services.has_context_events();
  StreamLanes::Entry* const left = home.streams.entry(identity);
  if (is_running && may_stay && left != nullptr && StreamLanes::feeds_others(*left, lane_bytes)) {
    epoch->set_lane(home, identity);
    device.counters().lanes_drained.add();
    return false;
  }
  epoch->fence.clear(device.services.contexts);
  const Batch back = deferred_.finish(epoch);
  if (!is_idle) {
    lanes::return_holes(device, home, lane, back);
    return false;
  }
  device.counters().lanes_drained.add();
  deferral_.retire(device, back);
  return true;
}

/// While little memory is left, streams scatter less when each keeps what it has; frees carry events of their own then anyway.
bool StreamFrees::may_feed(DeviceState& device) {
  const std::uint64_t room_bytes = device.room_bytes();
  return room_bytes >= (room_bytes + device.counters().reserved_bytes.now()) / kRoomToFeed;
}

/// What a stream takes from everybody lies in its lane once it is freed. If it took whatever fits a little better although it has more than it needs,
/// its lane would grow with each step of a job, and a stream that always has work gives nothing back. Where little memory is left the better fit
/// counts.
bool StreamFrees::keeps_to_lane(DeviceState& device, ContextPool& home, const AllocationRequest& request) {
  if (request.lane == 0 || !home.streams.are_several()) return false;
  const StreamLanes::Entry* const entry = home.streams.entry(request.stream.identity);
  return entry != nullptr && StreamLanes::has_surplus(*entry, home.pooled->lane_bytes(request.lane)) && may_feed(device);
}

/// Would so much of what the stream frees, counting these `bytes`, lack an event of its own that other streams could run out of memory?
bool StreamFrees::may_be_missed(DeviceState& device, ContextPool& home, std::uint64_t identity, std::uint64_t bytes) {
  if (device.has_plenty(2) || !home.streams.are_several() || !home.pooled->can_move()) return false;
  const StreamLanes::Entry* const entry = home.streams.entry(identity);
  return entry != nullptr && !lanes::is_plenty(device, home, magazines_.kept_bytes(),
                                               kMissedShare * (std::min(home.pooled->lane_bytes(entry->lane), entry->unmarked_bytes) + bytes));
}

/// A stream that frees what others allocate (a consumer behind a producer) keeps it from them until they miss, and then no event is over yet: each
/// time the pool would grow by what the stream is behind. So its lane is drained as it fills, and what is over becomes free for everybody.
void StreamFrees::hand_over(DeviceState& device, ContextPool& home, std::uint64_t identity) {
  if (device.services.gate.capturing()) return;
  const StreamLanes::Entry* const entry = home.streams.entry(identity);
  if (entry == nullptr || !home.streams.is_for_others(*entry) || (entry->feeds && !may_feed(device))) return;
  if (home.pooled->lane_bytes(entry->lane) < std::max(kLeastHandOver_bytes, device.peak_live_bytes() / kHandOverShare)) return;
  const CUcontext context = home.context;
  drain_stream(device, home, identity, false);
  Error ignored{};  // an error is reported by the call that meets it
  for (int looks = 0; looks < 2 && home.context == context && deferral_.retire_oldest(device, context, false, &ignored); ++looks) {}
}

/// The work on these blocks is over: they become free for everybody, except those that another thread is asking about.
void StreamFrees::end_stamps_in(DeviceState& device, ContextPool& home, std::uint32_t lane) {
  StreamLanes::Stamped& list = home.streams.stamped();
  for (auto next = list.begin(); next != list.end();) {
    const auto stamped = next++;
    if (stamped->is_in_lane() && stamped->lane == lane && !stamped->busy) lanes::end_stamped(device, home, stamped, 0);
  }
}

void StreamFrees::open_waited_lanes(DeviceState& device, ContextPool& home, std::uint64_t identity, std::uint64_t fills) {
  retire_waited(device, home, identity, fills);
  if (home.pooled == nullptr) return;
  home.streams.note_waited(identity, fills);
  // Memory is short and nothing runs: what streams keep apart would be cut up by whichever allocates first.
  const bool joins_all = identity == 0 && !may_feed(device);
  if (!joins_all && !home.streams.are_several()) return;         // a single stream has all of it anyway, until another asks
  if (!joins_all && home.streams.has_stamps_in_lanes()) return;  // what was freed has events of its own, which let others have it
  const std::uint64_t least_bytes = joins_all ? 1 : device.least_early_bytes();
  bool is_more = false;
  for (const StreamLanes::Entry& entry : home.streams.entries()) {
    const bool is_meant = identity == 0 || entry.identity == identity;
    if (!is_meant || entry.last_fill > fills || home.pooled->lane_bytes(entry.lane) < least_bytes) continue;
    if (joins_all) end_stamps_in(device, home, entry.lane);
    open_lane(device, home, entry.lane);
    is_more = true;
  }
  if (is_more) figures_.publish(device);
}

}  // namespace cupool::device
