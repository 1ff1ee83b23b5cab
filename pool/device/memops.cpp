// SYNC_MEMOPS: the driver knows it per allocation, which is our region, or each handle under a block on mapped pages (whose pages then
// stay); the program set it on a block.
//
// The allocation's flag is on while any live block of it has it (synchronising too much is correct, too little is not). The
// calls of one device are ordered by memops_lock, so that a late "off" cannot undo a newer "on".
#include <vector>

#include "pool/device/device_pool.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;

namespace {
CUresult tell_driver(const DeviceState& device, std::uint64_t address, bool on) {
  if (!device.driver.has_cuPointerSetAttribute()) return CUDA_ERROR_NOT_SUPPORTED;
  const unsigned int value = on ? 1 : 0;
  return device.driver.cuPointerSetAttribute(static_cast<const void*>(&value), CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, static_cast<CUdeviceptr>(address));
}
/// The allocations of the driver's that the block lies in. Throws std::bad_alloc.
std::vector<std::uint64_t> allocations_under(const Extent& extent) {
  std::vector<std::uint64_t> found;
  const DeviceAllocator& allocator = *info_of(extent).allocator;
  for (std::uint64_t address = extent.address; address < extent.address + extent.bytes;) {
    const DeviceAllocator::Span span = allocator.allocation_at(extent, address);
    found.push_back(span.begin);
    address = span.end;
  }
  return found;
}
}  // namespace

/// How many live blocks in that allocation have the flag. Throws std::bad_alloc when it is a new one.
std::uint32_t& DevicePool::memops_blocks(const Extent& extent, std::uint64_t allocation) {
  RegionInfo& info = info_of(extent);
  return info.is_paged ? paged_memops_[allocation] : info.sync_memops_blocks;
}

Status DevicePool::set_sync_memops(CUdeviceptr address, bool on) {
  const MutexLock order(device_.memops_lock);
  MutexLock lock(device_.lock);
  Extent* extent = find_containing(address);
  if (extent == nullptr || extent->state != ExtentState::live) return Error{CUDA_ERROR_INVALID_VALUE, "cuPointerSetAttribute"};
  const std::uint64_t buffer_id = extent->buffer_id;
  const bool was_on = (extent->flags & kSyncMemopsFlag) != 0;
  if (was_on == on) return {};
  if (on) info_of(*extent).allocator->pin(device_, *extent);
  std::vector<std::uint64_t> changing;
  const std::vector<std::uint64_t> allocations = allocations_under(*extent);
  for (const std::uint64_t allocation : allocations)
    if (memops_blocks(*extent, allocation) == (on ? 0U : 1U)) changing.push_back(allocation);
  if (!changing.empty()) {
    lock.unlock();
    CUresult code = CUDA_SUCCESS;
    for (const std::uint64_t allocation : changing)
      if (code == CUDA_SUCCESS) code = tell_driver(device_, allocation, on);
    lock.lock();
    if (code != CUDA_SUCCESS) return Error{code, "cuPointerSetAttribute"};  // what was told already synchronises: slower, and correct
  }
  extent = find_containing(address);
  if (extent == nullptr || extent->state != ExtentState::live || extent->buffer_id != buffer_id) return {};  // freed meanwhile
  extent->flags = static_cast<std::uint8_t>(on ? extent->flags | kSyncMemopsFlag : extent->flags & ~kSyncMemopsFlag);
  for (const std::uint64_t allocation : allocations) {  // pinned, or its region's: the same as before
    std::uint32_t& blocks = memops_blocks(*extent, allocation);
    blocks = on ? blocks + 1 : blocks - 1;
  }
  return {};
}

/// The block is being freed: its successor at this address must not inherit the flag.
void DevicePool::drop_sync_memops(Extent& extent) {
  if ((extent.flags & kSyncMemopsFlag) == 0) return;
  extent.flags = static_cast<std::uint8_t>(extent.flags & ~kSyncMemopsFlag);
  for (const std::uint64_t allocation : allocations_under(extent))
    if (--memops_blocks(extent, allocation) == 0) memops_to_clear_.push_back(allocation);
}

void DevicePool::forget_sync_memops(const Extent& extent) {
  if (!info_of(extent).is_paged || extent.state != ExtentState::live || (extent.flags & kSyncMemopsFlag) == 0) return;
  const DeviceAllocator& allocator = *info_of(extent).allocator;
  for (std::uint64_t address = extent.address; address < extent.address + extent.bytes;) {  // without memory: the end of a context is booked whatever is out
    const DeviceAllocator::Span span = allocator.allocation_at(extent, address);
    paged_memops_.erase(span.begin);
    address = span.end;
  }
}

void DevicePool::clear_region_memops() {
  const MutexLock order(device_.memops_lock);
  MutexLock lock(device_.lock);
  while (!memops_to_clear_.empty()) {
    const std::uint64_t address = memops_to_clear_.back();
    memops_to_clear_.pop_back();
    const Extent* extent = find_containing(address);
    const bool clear = extent != nullptr && memops_blocks(*extent, address) == 0 && may_call_driver();
    if (!clear) continue;
    if (info_of(*extent).is_paged) paged_memops_.erase(address);
    lock.unlock();
    tell_driver(device_, address, false);  // a failure leaves the allocation synchronous: slower, and correct
    lock.lock();
  }
}

}  // namespace cupool::device
