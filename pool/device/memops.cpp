// CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: the program sets it on a block; the driver knows it per allocation, which for cuMemAlloc memory is our region.
// For mapped memory the driver has no such attribute (NOT_SUPPORTED on an H100, driver 580): there only the block has it, its pages stay in place,
// and the shim waits after a synchronous copy or memset that touches it (shim/front_door_copies.cpp).
//
// The region's flag is on while any live block of it has the attribute (synchronising too much is correct, too little is not). The calls of one
// device are ordered by memops_lock, so that a late "off" cannot undo a newer "on".
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

void set_flag(Extent& extent, bool on) {
  extent.flags = static_cast<std::uint8_t>(on ? extent.flags | kSyncMemopsFlag : extent.flags & ~kSyncMemopsFlag);
}
}  // namespace

Status DevicePool::set_sync_memops(CUdeviceptr address, bool on) {
  const MutexLock order(device_.memops_lock);
  MutexLock lock(device_.lock);
  Extent* extent = find_containing(address);
  if (extent == nullptr || extent->state != ExtentState::live) return Error{CUDA_ERROR_INVALID_VALUE, "cuPointerSetAttribute"};
  const std::uint64_t buffer_id = extent->buffer_id;
  if (((extent->flags & kSyncMemopsFlag) != 0) == on) return {};
  if (on) info_of(*extent).allocator->pin(device_, *extent);
  if (info_of(*extent).is_paged) {
    set_flag(*extent, on);
    return {};
  }
  if (info_of(*extent).sync_memops_blocks == (on ? 0U : 1U)) {
    const std::uint64_t region = extent->region->address;
    lock.unlock();
    const CUresult code = tell_driver(device_, region, on);
    lock.lock();
    if (code != CUDA_SUCCESS) return Error{code, "cuPointerSetAttribute"};
    extent = find_containing(address);
    if (extent == nullptr || extent->state != ExtentState::live || extent->buffer_id != buffer_id) return {};  // the block was freed meanwhile
  }
  set_flag(*extent, on);
  std::uint32_t& blocks = info_of(*extent).sync_memops_blocks;
  blocks = on ? blocks + 1 : blocks - 1;
  return {};
}

/// The block is being freed: the next block at this address must not inherit the flag.
void DevicePool::drop_sync_memops(Extent& extent) {
  if ((extent.flags & kSyncMemopsFlag) == 0) return;
  set_flag(extent, false);
  RegionInfo& info = info_of(extent);
  if (!info.is_paged && --info.sync_memops_blocks == 0) memops_to_clear_.push_back(extent.region->address);
}

void DevicePool::clear_region_memops() {
  const MutexLock order(device_.memops_lock);
  MutexLock lock(device_.lock);
  while (!memops_to_clear_.empty()) {
    const std::uint64_t address = memops_to_clear_.back();
    memops_to_clear_.pop_back();
    const Extent* extent = find_containing(address);
    const bool clear = extent != nullptr && info_of(*extent).sync_memops_blocks == 0 && may_call_driver();
    if (!clear) continue;
    lock.unlock();
    tell_driver(device_, address, false);  // a failure leaves the region synchronous: slower, and correct
    lock.lock();
  }
}

}  // namespace cupool::device
