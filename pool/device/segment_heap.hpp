// SegmentHeap: blocks of one context inside regions of device memory, each a cuMemAlloc of its own.
//
// Regions are multiples of 2 MiB that double in size up to a cap and back off when limit or driver refuse; a wholly free
// region can go back. Geometry is heap::ExtentHeap's. Known from XLA's BFC. Serves `grow` and `preallocate`, backing `segments`.
// Thread rule: as DeviceAllocator; the device's lock.
#pragma once

#include <vector>

#include "pool/device/device_allocator.hpp"
#include "pool/heap/extent_heap.hpp"

namespace cupool::device {

/// How large the next region should be. Figures behind the constants: tests/unit/device/growth_model.cpp.
class RegionGrowth {
 public:
  static constexpr std::uint64_t kFirst_bytes = 2 * kMiB;
  static constexpr std::uint64_t kCap_bytes = kGiB;
  /// From here on a request gets a region of its own size: doubling would waste more than it saves in calls.
  static constexpr std::uint64_t kExactFrom_bytes = 512 * kMiB;

  /// At least `need_bytes`, which is a multiple of 2 MiB.
  std::uint64_t plan(std::uint64_t need_bytes) const {
    if (need_bytes >= kExactFrom_bytes || need_bytes >= next_bytes_) return need_bytes;
    return next_bytes_;
  }
  /// A region of `bytes` was made.
  void made(std::uint64_t bytes) {
    if (bytes >= next_bytes_) next_bytes_ = next_bytes_ * 2 < kCap_bytes ? next_bytes_ * 2 : kCap_bytes;
  }

 private:
  std::uint64_t next_bytes_ = kFirst_bytes;
};

class SegmentHeap final : public DeviceAllocator {
 public:
  heap::Extent* allocate(DeviceState& device, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  void defer(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) override;
  void recycle(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) override;
  heap::Extent* find(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) override;
  heap::Extent* find_containing(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) override;
  HeapFigures figures(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  HeapFigures figures_without_deferred(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  void abandon(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) override;
  void append_map(DeviceState& device, const TickConverter& time, observe::DeviceSnapshot& out) const CUPOOL_REQUIRES(device.lock) override;
  std::string check(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  Result<Growth> grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t release(DeviceState& device, ContextPool& home, std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device.lock) override;

  /// One region of exactly `bytes` (a multiple of 2 MiB), charged to the limit. Calls the driver with the lock let go.
  Status take_region(DeviceState& device, ContextPool& home, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);

 private:
  struct Claim { std::uint64_t address = 0; std::uint64_t bytes = 0; };
  void adopt(ContextPool& home, Claim claim);
  std::vector<Claim> claim_free_regions(DeviceState& device, std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device.lock);

  heap::ExtentHeap heap_;
  RegionGrowth growth_;
  bool growing_ = false;  ///< a thread is in cuMemAlloc for this heap; the others wait for what it brings
  Condition grown_;
};

}  // namespace cupool::device
