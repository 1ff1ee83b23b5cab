// How blocks move into and out of the lanes of one context's streams, with the events that some of them carry (StreamLanes has the lists).
//
// What is here makes no driver call and holds the lock throughout; what records events or asks about them is in stream_frees.cpp and
// stamped_frees.cpp. `waiting` is always the batch of deferred frees that takes up what a lane gives up.
// Thread rule: the device's lock. Precondition of all: `home` is of `device`, and has a heap.
#pragma once

#include <cstdint>
#include <string>

#include "pool/device/context_pool.hpp"
#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/stream_lanes.hpp"

namespace cupool::device::lanes {

/// The lane of a stream, made if it has none. Where there are too many, the stream that has not used its lane for longest gives it up, with what lies
/// in it. 0 when host memory is out, or when (without context events) that lane is not empty.
std::uint32_t lane_for(DeviceState& device, ContextPool& home, StreamName stream, Batch& waiting) CUPOOL_REQUIRES(device.lock);
/// Empties a lane: what is free there joins `waiting`, but for what has an event of its own already.
void drain(DeviceState& device, ContextPool& home, std::uint32_t lane, Batch& waiting) CUPOOL_REQUIRES(device.lock);
/// Puts what was drained into its lane again.
void return_holes(DeviceState& device, ContextPool& home, std::uint32_t lane, const Batch& holes) CUPOOL_REQUIRES(device.lock);
/// A block that waited is free, for the users of `lane`. `is_marked`: it keeps its event (stamp), behind which others may use it.
void complete(DeviceState& device, ContextPool& home, heap::Extent* extent, std::uint32_t lane, std::uint64_t freed_by, bool is_marked = false)
    CUPOOL_REQUIRES(device.lock);
/// Puts a stamped block into its own stream's lane, with its stamp. False: there is no lane for it, and it stays set aside.
bool keep_stamped(DeviceState& device, ContextPool& home, StreamLanes::Stamped::iterator stamped, StreamName stream, Batch& waiting)
    CUPOOL_REQUIRES(device.lock);
/// Puts all that the stream itself has freed, and that is set aside, back into its lane: the stream needs no event for it. True when there was any.
bool take_own_stamped(DeviceState& device, ContextPool& home, StreamName stream, Batch& waiting) CUPOOL_REQUIRES(device.lock);
/// A stamp ends: its bytes are free for the users of `lane`.
void end_stamped(DeviceState& device, ContextPool& home, StreamLanes::Stamped::iterator stamped, std::uint32_t lane) CUPOOL_REQUIRES(device.lock);
/// Could another stream have `bytes` without those that are being freed now? Yes if the driver has as much, or if much is free for everybody. If not,
/// it may come to need these very bytes, behind an event. `kept_bytes`: what threads keep in magazines.
bool is_plenty(DeviceState& device, const ContextPool& home, std::uint64_t kept_bytes, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
/// The first broken rule as a sentence, or an empty string: a stamp in a lane speaks for bytes of one hole of that lane.
std::string check_stamps(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);

}  // namespace cupool::device::lanes
