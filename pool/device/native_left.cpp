// What a context that ended has left in the driver's pool, under `async`: asked for, and given back. See native_blocks.hpp and orphans.hpp.
#include <utility>

#include "pool/device/context_pool.hpp"
#include "pool/device/native_blocks.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
/// A range that does not begin at the block's address is another block's.
bool is_still_there(DeviceState& device, const ContextPool& by, CUdeviceptr address) {
  const ScopedContext current(device.driver, by.registered.context);
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  return current.status().ok() && device.driver.has_cuMemGetAddressRange_v2() &&
         device.driver.cuMemGetAddressRange_v2(&base, &bytes, address) == CUDA_SUCCESS && base == address;
}
}  // namespace

bool NativeBlocks::is_left(std::uint64_t address) const {
  auto after = left_.upper_bound(address);
  if (after == left_.begin()) return false;
  const Node& node = (--after)->second;
  return !node.may_be_gone && address - node.region.address < node.region.bytes;
}

/// All at once, and the lock is not let go of: once one is given back other threads are served, and the driver may give out what is gone.
void NativeBlocks::ask_for_left(DeviceState& device, const ContextPool& by) {
  for (auto& [address, node] : left_) {
    if (!node.may_be_gone || by.natives.nodes_.contains(address) || !is_still_there(device, by, address)) continue;
    node.may_be_gone = !device.services.owners.add(address, node.region.bytes, device.ordinal);
  }
}

void NativeBlocks::forget_gone(CUdeviceptr address) {
  const auto node = left_.find(address);
  if (node != left_.end() && node->second.may_be_gone) left_.erase(node);
}

/// A refusal is left to the next caller.
void NativeBlocks::free_left(DeviceState& device, ContextPool& by) {
  CUresult code = CUDA_SUCCESS;
  while (!left_.empty() && code == CUDA_SUCCESS) {
    Nodes::node_type node = left_.extract(left_.begin());
    if (node.mapped().may_be_gone) continue;  // better lost than freeing another block
    const std::uint64_t bytes = node.mapped().region.bytes;
    device.services.owners.remove(node.key(), bytes);
    {
      const MutexUnlock unlocked(device.lock);
      code = by.natives.source().free(device, by, node.key());
    }
    if (code == CUDA_SUCCESS) continue;
    // Without host memory for the entry no look-up would find the address.
    if (!device.services.owners.add(node.key(), bytes, device.ordinal)) node.mapped().may_be_gone = true;
    left_.insert(std::move(node));
  }
  by.natives.book_idle(device);
}

}  // namespace cupool::device
