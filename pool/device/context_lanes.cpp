// The lanes of one context's streams: see context_lanes.hpp.
#include "pool/device/context_lanes.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "pool/core/bytes.hpp"

namespace cupool::device::lanes {

using heap::Extent;
using observe::EventKind;

namespace {
constexpr std::uint64_t kFreeForAllShare = 8;  ///< is_plenty(): this part of everything is free for everybody

/// Takes the bytes of a stamp out of their lane and makes them a deferred block of it. False where host memory is out: the bytes stay in the lane,
/// and the stamp has none any more.
bool set_aside(DeviceState& device, ContextPool& home, StreamLanes::Stamped::iterator stamped) CUPOOL_REQUIRES(device.lock) {
  Extent* extent = nullptr;
  try {
    extent = home.pooled->set_aside(stamped->address, stamped->bytes);
  } catch (const std::bad_alloc&) {}
  home.streams.leave_lane(stamped);
  if (extent == nullptr) return false;
  stamped->extent = extent;
  device.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
  return true;
}

/// The lane is about to be drained: sets aside what has an event of its own, since that needs no later one.
void set_stamped_aside(DeviceState& device, ContextPool& home, std::uint32_t lane) CUPOOL_REQUIRES(device.lock) {
  if (!home.streams.has_stamps_in_lanes()) return;
  StreamLanes::Stamped& list = home.streams.stamped();
  for (auto next = list.begin(); next != list.end();) {
    const auto stamped = next++;
    if (!stamped->is_in_lane() || stamped->lane != lane || set_aside(device, home, stamped) || stamped->busy) continue;
    stamped->fence.clear(device.services.contexts);
    list.erase(stamped);
  }
}
}  // namespace

std::uint32_t lane_for(DeviceState& device, ContextPool& home, StreamName stream, Batch& waiting) {
  if (const std::uint32_t lane = home.streams.find(stream.identity)) return lane;
  if (home.streams.is_full()) {
    const StreamLanes::Entry oldest = home.streams.oldest();
    const bool must_be_empty = !device.services.has_context_events();
    if (oldest.busy || (must_be_empty && home.pooled->lane_bytes(oldest.lane) != 0)) return 0;
    drain(device, home, oldest.lane, waiting);
    home.streams.remove(oldest.identity);
    home.pooled->remove_lane(oldest.lane);
  }
  std::uint32_t lane = 0;
  try {
    lane = home.pooled->add_lane();
    home.streams.add(stream, lane);
    device.services.has_lanes.store(true, std::memory_order_relaxed);
    return lane;
  } catch (const std::bad_alloc&) {
    if (lane != 0) home.pooled->remove_lane(lane);
    return 0;
  }
}

void drain(DeviceState& device, ContextPool& home, std::uint32_t lane, Batch& waiting) {
  set_stamped_aside(device, home, lane);
  const auto bytes = static_cast<std::int64_t>(home.pooled->lane_bytes(lane));
  if (bytes == 0) return;
  home.pooled->drain_lane(lane, waiting);
  device.counters().deferred_bytes.add(bytes);
  device.counters().lanes_drained.add();
}

void return_holes(DeviceState& device, ContextPool& home, std::uint32_t lane, const Batch& holes) {
  device.counters().deferred_bytes.add(-static_cast<std::int64_t>(holes.bytes));
  for (Extent* extent = holes.first; extent != nullptr;) home.pooled->recycle_in_lane(device, std::exchange(extent, extent->bin_next), lane);
}

void complete(DeviceState& device, ContextPool& home, Extent* extent, std::uint32_t lane, std::uint64_t freed_by, bool is_marked) {
  device.counters().deferred_bytes.add(-static_cast<std::int64_t>(extent->bytes));
  if ((extent->flags & kFreedInOrderFlag) == 0) device.note(EventKind::free_completed, ticks(), *extent, 0, freed_by);
  home.streams.note_fill(lane, extent->bytes, is_marked);
  home.pooled->recycle_in_lane(device, extent, lane);
}

bool keep_stamped(DeviceState& device, ContextPool& home, StreamLanes::Stamped::iterator stamped, StreamName stream, Batch& waiting) {
  Extent* extent = stamped->extent;
  const std::uint32_t lane = lane_for(device, home, stream, waiting);
  if (lane == 0) return false;
  try {
    home.streams.follow_into_lane(stamped, lane);
  } catch (const std::bad_alloc&) {
    return false;
  }
  complete(device, home, extent, lane, stamped->identity, true);
  return true;
}

bool take_own_stamped(DeviceState& device, ContextPool& home, StreamName stream, Batch& waiting) {
  StreamLanes::Stamped& list = home.streams.stamped();
  bool is_more = false;
  for (auto stamped = list.begin(); stamped != list.end(); ++stamped)
    if (stamped->identity == stream.identity && stamped->extent != nullptr && !stamped->busy && keep_stamped(device, home, stamped, stream, waiting))
      is_more = true;
  return is_more;
}

void end_stamped(DeviceState& device, ContextPool& home, StreamLanes::Stamped::iterator stamped, std::uint32_t lane) {
  if (stamped->is_in_lane()) set_aside(device, home, stamped);
  Extent* extent = stamped->extent;
  const std::uint64_t stamped_identity = stamped->identity;
  stamped->fence.clear(device.services.contexts);
  home.streams.stamped().erase(stamped);
  if (extent != nullptr) complete(device, home, extent, lane, stamped_identity);
}

bool is_plenty(DeviceState& device, const ContextPool& home, std::uint64_t kept_bytes, std::uint64_t bytes) {
  const std::uint64_t room_bytes = device.room_bytes();
  if (room_bytes >= bytes) return true;
  const observe::Counters& counters = device.counters();
  const std::uint64_t reserved_bytes = counters.reserved_bytes.now();
  std::uint64_t others_bytes = counters.live_bytes.now() + counters.deferred_bytes.now() + kept_bytes;
  for (const StreamLanes::Entry& entry : home.streams.entries()) others_bytes += home.pooled->lane_bytes(entry.lane);
  const std::uint64_t free_bytes = saturating_sub(reserved_bytes, others_bytes);
  return free_bytes >= std::max(bytes, (room_bytes + reserved_bytes) / kFreeForAllShare);
}

std::string check_stamps(DeviceState& device, ContextPool& home) {
  for (const StampedFree& one : home.streams.stamped()) {
    if (!one.is_in_lane()) continue;
    const Extent* hole = home.pooled->find_containing(device, one.address);
    const bool is_free = hole != nullptr && hole->state == heap::ExtentState::free && hole->lane == one.lane;
    if (!is_free || one.address + one.bytes > hole->address + hole->bytes) return "a stamp speaks for bytes that are not free in its lane";
  }
  return home.streams.check();
}

}  // namespace cupool::device::lanes
