// LiveFigures: sums over the heaps of a device's contexts, and what the live page shows of them: published now and then, and at the peak of live
// bytes.
//
// How free memory is fragmented is therefore known for a recent moment, not for this one. No driver call.
// Thread rule: the device's lock.
#pragma once

#include <cstdint>

#include "pool/device/context_pool.hpp"
#include "pool/device/device_allocator.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/magazines.hpp"

namespace cupool::device {

/// The sum over both allocators of a context.
HeapFigures figures_of(const ContextPool& home, DeviceState& device) CUPOOL_REQUIRES(device.lock);
/// The same, counting what lies in streams' lanes as free for everybody.
HeapFigures figures_of_all_lanes_of(const ContextPool& home, DeviceState& device, std::uint64_t least_bytes) CUPOOL_REQUIRES(device.lock);

class LiveFigures {
 public:
  LiveFigures(const ContextPools& homes, Magazines& magazines) : homes_(homes), magazines_(magazines) {}

  HeapFigures sum(DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  HeapFigures sum_of_all_lanes(DeviceState& device, std::uint64_t least_bytes) const CUPOOL_REQUIRES(device.lock);
  /// Writes the figures to the live page. Skipped at times where lanes have many large holes, since summing them would cost too much.
  void publish(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  void publish(DeviceState& device, const HeapFigures& now) const CUPOOL_REQUIRES(device.lock);
  /// Records the figures at the peak of live bytes: called just before the first free after it, until which only allocations happened. Closes the
  /// magazines.
  void sample_peak(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// As sample_peak(), without closing. Precondition: the magazines are closed, except those that nobody can close.
  void note_peak(DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  const ContextPools& homes_;
  Magazines& magazines_;
  std::uint64_t publications_to_skip_ = 0;  ///< publications still to be skipped
};

}  // namespace cupool::device
