// SegmentHeap: blocks of one context inside regions of device memory, each a cuMemAlloc of its own. Backing `segments`.
//
// Regions are multiples of 2 MiB that double in size up to a cap, and are halved when the limit or the driver refuses (region_growth.hpp); a wholly
// free region can go back. The geometry is heap::ExtentHeap's. Known from XLA's BFC allocator.
// Thread rule: as DeviceAllocator; the device's lock.
#pragma once

#include <vector>

#include "pool/device/extent_allocator.hpp"
#include "pool/device/region_growth.hpp"

namespace cupool::device {

class SegmentHeap final : public ExtentAllocator {
 public:
  explicit SegmentHeap(std::uint64_t device_total_bytes) : growth_(device_total_bytes) {}
  ~SegmentHeap() override;

  heap::Extent* allocate(DeviceState& device, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t exchange_bytes(DeviceState& device, std::uint64_t bytes) const CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t withheld_bytes(const heap::Extent& extent) const override;
  HeapFigures figures(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  HeapFigures figures_of_all_lanes(DeviceState& device, std::uint64_t least_bytes) const CUPOOL_REQUIRES(device.lock) override;
  HeapFigures survey(DeviceState& device, observe::OomEvidence& evidence) const CUPOOL_REQUIRES(device.lock) override;
  void abandon(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) override;
  void append_map(DeviceState& device, const TickConverter& time, observe::DeviceSnapshot& out) const CUPOOL_REQUIRES(device.lock) override;
  bool releases_in_order(const DeviceState& device) const override { return device.frees_in_order(); }
  std::string check(DeviceState& device) const CUPOOL_REQUIRES(device.lock) override;
  Result<Growth> grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t release(DeviceState& device, ContextPool& home, std::uint64_t wanted_bytes, bool at_most) CUPOOL_REQUIRES(device.lock) override;

  /// Takes one region; or one with nearly all of `bytes` and a small one that small blocks find first, so that the large one stays whole and can go
  /// back.
  Status reserve(DeviceState& device, ContextPool& home, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock) override;

 private:
  Status take_region(DeviceState& device, ContextPool& home, std::uint64_t bytes, bool is_of_one_block = false) CUPOOL_REQUIRES(device.lock);
  struct Claim {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    bool is_of_one_block = false;
  };
  /// Puts a region into the heap. False, with nothing changed, when host memory is out.
  bool adopt(DeviceState& device, ContextPool& home, Claim claim) noexcept CUPOOL_REQUIRES(device.lock);
  static void book_release(DeviceState& device, const Claim& claim, int sign) CUPOOL_REQUIRES(device.lock);
  std::vector<Claim> claim_free_regions(DeviceState& device, std::uint64_t wanted_bytes, bool at_most) CUPOOL_REQUIRES(device.lock);

  RegionGrowth growth_;
  bool growing_ = false;  ///< a thread is in cuMemAlloc for this heap; the others wait for what it brings
  Condition grown_;
};

}  // namespace cupool::device
