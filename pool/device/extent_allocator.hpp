// ExtentAllocator: the common part of allocators whose blocks are extents of one ExtentHeap. Derived classes say where memory comes from and goes to.
// Thread rule: as DeviceAllocator.
#pragma once

#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_allocator.hpp"
#include "pool/heap/extent_heap.hpp"

namespace cupool::device {

class ExtentAllocator : public DeviceAllocator {
 public:
  heap::Extent* allocate(DeviceState& device, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) override;
  std::uint64_t fit_bytes([[maybe_unused]] DeviceState& device, std::uint64_t bytes) const CUPOOL_REQUIRES(device.lock) override {
    const heap::Extent* hole = heap_.fit(bytes).hole;
    return hole != nullptr ? hole->bytes : 0;
  }
  heap::Extent* rehome(heap::Extent* block, std::uint8_t keeper) override { return heap_.rehome(block, keeper); }
  void defer(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) override;
  heap::Extent* join(heap::Extent* one, heap::Extent* other) override;
  void recycle(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) override;
  void recycle_in_lane(DeviceState& device, heap::Extent* extent, std::uint32_t lane) CUPOOL_REQUIRES(device.lock) override;
  std::uint32_t add_lane() override { return heap_.add_lane(); }
  void remove_lane(std::uint32_t lane) override { heap_.remove_lane(lane); }
  std::uint64_t lane_bytes(std::uint32_t lane) const override { return heap_.lane_bytes(lane); }
  bool gather(std::uint32_t lane, std::uint64_t bytes) override { return heap_.gather(lane, bytes); }
  void drain_lane(std::uint32_t lane, Batch& batch) override;
  heap::Extent* set_aside(std::uint64_t address, std::uint64_t bytes) override;
  heap::Extent* find(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) override;
  heap::Extent* find_containing(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) override;

 protected:
  ExtentAllocator() = default;
  ExtentAllocator(const heap::FitPolicy& policy, unsigned zones, heap::WholeBytes whole_bytes) : heap_(policy, zones, whole_bytes) {}
  heap::ExtentHeap heap_;
};

}  // namespace cupool::device
