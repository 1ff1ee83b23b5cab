// See extent_allocator.hpp.
#include "pool/device/extent_allocator.hpp"

namespace cupool::device {

using heap::Extent;

Extent* ExtentAllocator::allocate(DeviceState& device, const AllocationRequest& request) {
  heap::ZoneOrder order;
  order.on_host_pages = device.services.exports_ranges.load(std::memory_order_relaxed);
  order.lane_first = request.lane_first;
  return heap_.allocate(request.bytes, request.lane, request.keeper, order);
}
void ExtentAllocator::defer(DeviceState&, Extent* extent) { heap_.defer(extent); }
Extent* ExtentAllocator::join(Extent* one, Extent* other) {
  Extent* const first = one->next == other ? one : other;
  if (first->next != one && first->next != other) return nullptr;
  heap_.join(first);
  return first;
}
void ExtentAllocator::recycle(DeviceState&, Extent* extent) { heap_.free(extent); }
void ExtentAllocator::recycle_in_lane(DeviceState&, Extent* extent, std::uint32_t lane) { heap_.free(extent, lane); }
Extent* ExtentAllocator::find(DeviceState&, std::uint64_t address) { return heap_.find(address); }
Extent* ExtentAllocator::find_containing(DeviceState&, std::uint64_t address) { return heap_.find_containing(address); }

void ExtentAllocator::drain_lane(std::uint32_t lane, Batch& batch) {
  heap_.drain_lane(lane, [&batch](Extent* extent) {
    extent->flags = kFreedInOrderFlag;
    extent->allocated_ticks = 0;
    batch.push(extent);
  });
}

Extent* ExtentAllocator::set_aside(std::uint64_t address, std::uint64_t bytes) {
  Extent* extent = heap_.set_aside(address, bytes);
  if (extent == nullptr) return nullptr;
  extent->flags = kFreedInOrderFlag;
  extent->allocated_ticks = 0;
  return extent;
}

}  // namespace cupool::device
