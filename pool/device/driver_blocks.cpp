// The books of blocks that the driver serves itself: see driver_blocks.hpp.
#include "pool/device/driver_blocks.hpp"

#include <utility>

namespace cupool::device {

using heap::Extent;
using observe::EventKind;

void DriverBlocks::add(DeviceState& device, Node&& block, std::uint16_t thread, std::uint64_t stream) {
  const Extent& extent = block.mapped().extent;
  if (const Node before = take(extent.address); !before.empty()) lose(device, before.mapped().extent);  // it was freed without our hearing of it
  insert(std::move(block));
  device.has_driver_blocks.store(true, std::memory_order_relaxed);
  device.counters().allocations.add();
  device.counters().driver_served.add();
  device.counters().regions_created.add();
  enter(device, extent, thread, stream);
}

DriverBlocks::Node DriverBlocks::begin_free(DeviceState& device, std::uint64_t address, std::uint16_t thread, std::uint64_t stream) {
  Node block = take(address);
  if (block.empty()) return block;
  leave(device, block.mapped().extent, thread, stream);
  device.counters().frees.add();
  device.leaving_bytes += block.mapped().extent.bytes;
  return block;
}

void DriverBlocks::end_free(DeviceState& device, Node&& block, bool is_freed, std::uint64_t stream) {
  Extent& extent = block.mapped().extent;
  const std::uint64_t bytes = extent.bytes;
  device.leaving_bytes -= bytes;
  if (!is_freed) device.counters().frees.take_back();
  if (is_freed || !insert(std::move(block))) {
    device.limit.refund(bytes);
    device.counters().regions_released.add();
    device.counters().driver_served.add(is_freed ? 1 : 0);
  } else {
    extent.allocated_ticks = ticks();
    enter(device, extent, observe::kPoolItself, stream);
  }
}

void DriverBlocks::forget(DeviceState& device, std::uint64_t address) {
  if (const Node block = take(address); !block.empty()) lose(device, block.mapped().extent);
}

void DriverBlocks::forget(DeviceState& device, CUcontext context, std::uint64_t before) {
  const auto is_gone = [&](const Block& block) { return block.context == context && block.serial <= before; };
  for (const auto& [address, block] : blocks_)
    if (is_gone(block)) lose(device, block.extent);
  std::erase_if(blocks_, [&](const auto& one) {
    if (!is_gone(one.second)) return false;
    uncount(one.second);
    return true;
  });
}

/// False: another block has its address by now.
bool DriverBlocks::insert(Node&& block) {
  const std::uint64_t bytes = block.mapped().extent.bytes;
  const std::uint64_t rounding = rounding_of(block.mapped());
  const std::uint64_t requested = block.mapped().extent.requested_bytes;
  block.key() = block.mapped().extent.address;
  if (!blocks_.insert(std::move(block)).inserted) return false;
  bytes_ += bytes;
  rounding_bytes_ += rounding;
  asked_bytes_ += requested;
  return true;
}

/// Removes the block at `address`; empty where there is none.
DriverBlocks::Node DriverBlocks::take(std::uint64_t address) {
  Node block = blocks_.extract(address);
  if (!block.empty()) uncount(block.mapped());
  return block;
}

void DriverBlocks::uncount(const Block& block) {
  bytes_ -= block.extent.bytes;
  rounding_bytes_ -= rounding_of(block);
  asked_bytes_ -= block.extent.requested_bytes;
}

/// Counts a block: at its allocation, or because the driver refused to free it.
void DriverBlocks::enter(DeviceState& device, const Extent& extent, std::uint16_t thread, std::uint64_t stream) {
  device.add_driver_served(static_cast<std::int64_t>(extent.bytes));
  device.note_region(EventKind::region_create, extent.address, extent.bytes);
  device.count_live(extent, 1);
  if (magazines_.are_several()) magazines_.keep_promises(device);
  magazines_.look_for_peak(device);
  device.note(EventKind::allocate, extent.allocated_ticks, extent, thread, stream);
}

/// Uncounts a block: before the driver's free of it, or because it is gone without one.
void DriverBlocks::leave(DeviceState& device, const Extent& extent, std::uint16_t thread, std::uint64_t stream) {
  if (magazines_.is_peak_new()) figures_.sample_peak(device);
  device.note_freed(extent, thread, stream);
  device.count_live(extent, -1);
  device.add_driver_served(-static_cast<std::int64_t>(extent.bytes));
  device.note_region(EventKind::region_release, extent.address, extent.bytes);
}

void DriverBlocks::lose(DeviceState& device, const Extent& extent) {
  leave(device, extent, 0, 0);
  device.counters().ended_blocks.add();
  device.limit.refund(extent.bytes);
}

}  // namespace cupool::device
