// What streams of one context have of its heap, as it moves: blocks go into a lane and out of it, with the events that some of them carry
// (StreamLanes has the lists). Here is what needs no driver call, and the lock is held throughout; what records events or asks about them is in
// stream_frees.cpp and stamped_frees.cpp.
// Thread rule: the device's lock. Precondition of all: `home` is of `device`, and has a heap.
#pragma once

#include <cstdint>
#include <string>

#include "pool/device/context_pool.hpp"
#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/stream_lanes.hpp"

namespace cupool::device::lanes {

/// The lane of a stream, made if it has none; 0 when host memory is out, or (no event covers a context) no lane is empty.
/// `waiting`: joined by what lies in the lane that another stream gives up for it.
std::uint32_t lane_for(DeviceState& device, ContextPool& home, StreamName stream, Batch& waiting) CUPOOL_REQUIRES(device.lock);
/// What is free in the lane waits with `waiting`, but for what has an event of its own already.
void drain(DeviceState& device, ContextPool& home, std::uint32_t lane, Batch& waiting) CUPOOL_REQUIRES(device.lock);
/// What was drained is in its lane again.
void return_holes(DeviceState& device, ContextPool& home, std::uint32_t lane, const Batch& holes) CUPOOL_REQUIRES(device.lock);
/// A block that waited is free, for the users of `lane`; `is_marked`: it keeps its event, for others.
void complete(DeviceState& device, ContextPool& home, heap::Extent* extent, std::uint32_t lane, std::uint64_t freed_by, bool is_marked = false)
    CUPOOL_REQUIRES(device.lock);
/// The stamped block is its own stream's again; false: there is no lane for it, it stays aside.
bool keep_stamped(DeviceState& device, ContextPool& home, StreamLanes::Stamped::iterator stamped, StreamName stream, Batch& waiting)
    CUPOOL_REQUIRES(device.lock);
/// What the stream itself freed and is set aside needs no event for it: back into its lane, with the event for others. True when there was any.
bool take_own_stamped(DeviceState& device, ContextPool& home, StreamName stream, Batch& waiting) CUPOOL_REQUIRES(device.lock);
/// The stamped bytes are free, for the users of `lane`.
void end_stamped(DeviceState& device, ContextPool& home, StreamLanes::Stamped::iterator stamped, std::uint32_t lane) CUPOOL_REQUIRES(device.lock);
/// Could another stream have `bytes` without those that are freed just now? From the driver, or because much is free for everybody. Where memory is
/// short it may need these very bytes, behind an event.
/// `kept_bytes`: what threads keep.
bool is_plenty(DeviceState& device, const ContextPool& home, std::uint64_t kept_bytes, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
/// The first broken rule as a sentence, or an empty string: a stamp in a lane speaks for bytes of one hole of that lane.
std::string check_stamps(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);

}  // namespace cupool::device::lanes
