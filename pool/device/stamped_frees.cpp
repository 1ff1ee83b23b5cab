// Stamped frees: blocks that a stream frees while memory is short, each with an event (stamp) of that free. See stream_lanes.hpp.
//
// Their bytes are their own stream's at once, in its lane. Anybody else must wait for the event first: another stream waits on the device (steal);
// all others get the bytes once a query says that the event is over (retire_stamped), without waiting. A free that falls into another thread's
// capture sets its block aside, to be reused only where no other hole will do, because the graph may name its address.
#include <algorithm>
#include <array>
#include <utility>

#include "pool/device/context_lanes.hpp"
#include "pool/device/stream_frees.hpp"

namespace cupool::device {

using heap::Extent;
using observe::EventKind;

bool StreamFrees::free_stamped(DeviceState& device, Extent* extent, ContextPool& home, CUcontext context, StreamName stream, std::uint16_t thread,
                               StampedPlace place) {
  ContextPool* const of_stream = home.context == context ? &home : device.services.contexts.find(context);
  if (of_stream == nullptr) return false;
  StreamLanes::Stamped& list = home.streams.stamped();
  if (list.size() >= StreamLanes::kMostStamped && !home.streams.forget_stamp(extent->bytes, device.services.contexts)) return false;
  StreamLanes::Stamped::iterator stamped;
  try {
    stamped = list.emplace(list.end());
  } catch (const std::bad_alloc&) {
    return false;
  }
  // A default stream has the same handle in every context: that of another context is not the stream that asks here.
  stamped->identity = of_stream == &home || is_handle(stream.identity) ? stream.identity : 0;
  stamped->busy = true;
  device.count_free(*extent);
  device.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
  device.note(EventKind::free_requested, ticks(), *extent, thread, stream.identity);
  home.pooled->defer(device, extent);
  stamped->extent = extent;
  FenceResult result;
  {
    const MutexUnlock unlocked(device.lock);
    result = stamped->fence.record_on(device, *of_stream, context, stream.handle);
  }
  stamped->busy = false;
  if (result.answer == FenceAnswer::done && stamped->extent != nullptr) {
    if (place == StampedPlace::lane) lanes::keep_stamped(device, home, stamped, stream, deferred_.batch());
    return true;
  }
  Extent* const left = stamped->extent;
  stamped->fence.clear(device.services.contexts);
  list.erase(stamped);
  if (left == nullptr) return true;
  // Without events that cover a context this would wait for the next plain free.
  const bool may_wait = place == StampedPlace::aside || device.services.has_context_events();
  const std::uint32_t lane = may_wait ? 0 : lanes::lane_for(device, home, stream, deferred_.batch());
  if (lane != 0) lanes::complete(device, home, left, lane, stream.identity);
  else leave_unstamped(device, left, context, stream);
  return true;
}

bool StreamFrees::retire_stamped(DeviceState& device, ContextPool& home, CUcontext asking, std::uint64_t identity, Error* error) {
  StreamLanes::Stamped& list = home.streams.stamped();
  std::array<std::uint64_t, kMostLooks> looked_at{};
  for (std::size_t looks = 0; looks < kMostLooks && device.services.may_call_driver(); ++looks) {
    const auto seen_end = looked_at.begin() + static_cast<std::ptrdiff_t>(looks);
    const auto stamped = std::find_if(list.begin(), list.end(), [&](const StampedFree& one) {
      return !one.busy && !(one.is_in_lane() && one.identity == identity) && std::find(looked_at.begin(), seen_end, one.identity) == seen_end;
    });
    if (stamped == list.end()) return false;
    looked_at[looks] = stamped->identity;
    stamped->busy = true;
    FenceResult result;
    {
      const MutexUnlock unlocked(device.lock);
      result = stamped->fence.poll(device, asking);
    }
    stamped->busy = false;
    if (stamped->free_bytes() == 0 || result.answer == FenceAnswer::done) {
      lanes::end_stamped(device, home, stamped, 0);
      return true;
    }
    if (result.error.code == CUDA_SUCCESS) continue;
    *error = result.error;
    return false;
  }
  return false;
}

bool StreamFrees::retire_any_stamped(DeviceState& device, CUcontext asking, Error* error) {
  for (std::size_t i = 0; i < homes_.size(); ++i)  // by index: the list may grow while the lock is let go of
    if (retire_stamped(device, *homes_[i], asking, 0, error)) return true;
  return retire_late(device, asking, error);
}

void StreamFrees::leave_pool_blocks(DeviceState& device, ContextPool& home) {
  for (StampedFree& stamped : home.streams.stamped()) {
    if (stamped.extent == nullptr || mempool_of(*stamped.extent) == 0) continue;
    Batch alone;
    alone.push(std::exchange(stamped.extent, nullptr));
    Epoch* const epoch = stamped.busy ? nullptr : deferred_.close(alone);
    if (epoch == nullptr) {  // a thread has the event in its hands, or host memory is out: any later epoch will do
      deferred_.batch().prepend(alone);
      continue;
    }
    epoch->fence = std::exchange(stamped.fence, Fence{});
    epoch->recorded_ns = device.services.clock.now_ns();
    epoch->recorded = true;
    epoch->busy = false;
  }
}

bool StreamFrees::has_stamped() const {
  return std::any_of(homes_.begin(), homes_.end(), [](const auto& home) { return !home->streams.stamped().empty(); });
}

Result<Extent*> StreamFrees::steal(DeviceState& device, ContextPool& home, CUcontext context, AllocationRequest& request) {
  StreamLanes::Stamped& list = home.streams.stamped();
  const StreamName stream = request.stream;
  if (list.empty()) return nullptr;
  make_place_for_lane(device, context, stream);
  request.lane = lanes::lane_for(device, home, stream, deferred_.batch());
  if (request.lane == 0) return nullptr;
  const auto is_theirs = [stream](const StampedFree& one) {
    return !one.busy && one.free_bytes() != 0 && !(one.is_in_lane() && one.identity == stream.identity);
  };
  for (;;) {
    Extent* extent = home.pooled->allocate(device, request);
    if (extent == nullptr && home.pooled->gather(request.lane, request.bytes)) extent = home.pooled->allocate(device, request);
    if (extent != nullptr) return extent;
    // The tightest fit that is enough alone; else the oldest, whose event is the likeliest to be over.
    auto best = list.end();
    for (auto stamped = list.begin(); stamped != list.end(); ++stamped) {
      if (!is_theirs(*stamped) || stamped->free_bytes() < request.bytes) continue;
      if (best == list.end() || stamped->free_bytes() < best->free_bytes()) best = stamped;
    }
    // Together they must be enough: a stream is not made to wait for others in vain.
    const bool may_be_enough = home.streams.bytes_for(stream.identity) + home.pooled->lane_bytes(request.lane) >= request.bytes;
    if (best == list.end() && may_be_enough) best = std::find_if(list.begin(), list.end(), is_theirs);
    if (best == list.end()) return nullptr;
    best->busy = true;
    FenceResult result;
    {
      const MutexUnlock unlocked(device.lock);
      result = best->fence.wait_on_device(device, context, stream.handle);
    }
    const bool is_over = result.error.code == CUDA_SUCCESS && (result.answer == FenceAnswer::done || best->free_bytes() == 0);
    // The lane may have become another stream's meanwhile; a busy stamp survives that.
    if (is_over) request.lane = lanes::lane_for(device, home, stream, deferred_.batch());
    best->busy = false;
    if (result.error.code != CUDA_SUCCESS) return result.error;
    if (!is_over || request.lane == 0) return nullptr;
    lanes::end_stamped(device, home, best, request.lane);
  }
}

}  // namespace cupool::device
