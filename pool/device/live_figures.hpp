// LiveFigures: Σ over the heaps of a device's contexts, and what the live page is told of them: now and then, and at the peak of what lives.
//
// Of the pieces of free memory the page has figures of a moment not long ago. No driver call.
// Thread rule: the device's lock.
#pragma once

#include <cstdint>

#include "pool/device/context_pool.hpp"
#include "pool/device/device_allocator.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/magazines.hpp"

namespace cupool::device {

/// Of both of a context's allocators.
HeapFigures figures_of(const ContextPool& home, DeviceState& device) CUPOOL_REQUIRES(device.lock);
/// The same, with what lies in streams' lanes as everybody's.
HeapFigures figures_of_all_lanes_of(const ContextPool& home, DeviceState& device, std::uint64_t least_bytes) CUPOOL_REQUIRES(device.lock);

class LiveFigures {
 public:
  LiveFigures(const ContextPools& homes, Magazines& magazines) : homes_(homes), magazines_(magazines) {}

  HeapFigures sum(DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  HeapFigures sum_of_all_lanes(DeviceState& device, std::uint64_t least_bytes) const CUPOOL_REQUIRES(device.lock);
  /// Seldom where there are many large holes of lanes: then the figures cost more than what they are told after.
  void publish(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  void publish(DeviceState& device, const HeapFigures& now) const CUPOOL_REQUIRES(device.lock);
  /// The moment of peak live, looked at just before the first free after it: until then only allocations happened. Closes the magazines.
  void sample_peak(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// Precondition: the magazines are closed, but for those that nobody can close.
  void note_peak(DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  const ContextPools& homes_;
  Magazines& magazines_;
  std::uint64_t publications_to_skip_ = 0;  ///< of the figures in the live page
};

}  // namespace cupool::device
