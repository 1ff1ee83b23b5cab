// DriverBlocks: the books of stream-ordered blocks that the driver serves itself: under the policies `platform` and `async`, from memory pools with
// properties of their own, and on segments in contexts that cuCtxDestroy may end.
// They are counted, listed and reported like any other block, but every call about them, their free included, is answered by the driver alone.
// As with NativeBlocks a block leaves the books before the driver's free, because the driver may give the address to another thread at once.
//
// Thread rule: the device's lock. No driver call.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>

#include "pool/device/device_state.hpp"
#include "pool/device/live_figures.hpp"
#include "pool/device/magazines.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::device {

class DriverBlocks {
 public:
  struct Block {
    heap::Extent extent;
    bool is_of_default_pool = false;
    CUcontext context = nullptr;  ///< the block ends with this context; null: with none
    std::uint64_t serial = 0;     ///< value of PoolServices::driver_blocks_made at its allocation
  };
  using Blocks = std::map<std::uint64_t, Block>;  ///< by address
  using Node = Blocks::node_type;

  DriverBlocks(Magazines& magazines, LiveFigures& figures) : magazines_(magazines), figures_(figures) {}

  /// Allocates the host memory that add() needs for one block. Throws std::bad_alloc.
  static Node place() {
    Blocks one;
    return one.extract(one.try_emplace(0).first);
  }
  /// The driver has served the block, and its bytes are charged to the limit. A block that the books still have at its address was freed without our
  /// hearing of it.
  void add(DeviceState& device, Node&& block, std::uint16_t thread, std::uint64_t stream) CUPOOL_REQUIRES(device.lock);
  /// Call before the driver's free: takes the block out of the books. Empty: there is none at `address`.
  Node begin_free(DeviceState& device, std::uint64_t address, std::uint16_t thread, std::uint64_t stream) CUPOOL_REQUIRES(device.lock);
  /// Call after the driver's free. A block that the driver refused to free is booked again, unless its address is another's by now.
  void end_free(DeviceState& device, Node&& block, bool is_freed, std::uint64_t stream) CUPOOL_REQUIRES(device.lock);
  /// Forgets the block at `address`, if there is one: it is gone without a free.
  void forget(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock);
  /// Forgets the blocks that ended with `context`. Those made after `before` are of a newer context with the same handle. Needs no host memory.
  void forget(DeviceState& device, CUcontext context, std::uint64_t before) CUPOOL_REQUIRES(device.lock);

  bool contains(std::uint64_t address) const { return blocks_.contains(address); }
  std::uint64_t bytes() const { return bytes_; }
  /// What the driver's rounding adds to the blocks of the device's own pool.
  std::uint64_t rounding_bytes() const { return rounding_bytes_; }
  /// What it adds to the blocks of the program's own pools.
  std::uint64_t rounding_elsewhere_bytes() const { return bytes_ - asked_bytes_ - rounding_bytes_; }
  const Blocks& all() const { return blocks_; }

 private:
  static std::uint64_t rounding_of(const Block& block) { return block.is_of_default_pool ? block.extent.bytes - block.extent.requested_bytes : 0; }
  bool insert(Node&& block);
  Node take(std::uint64_t address);
  void uncount(const Block& block);
  void enter(DeviceState& device, const heap::Extent& extent, std::uint16_t thread, std::uint64_t stream) CUPOOL_REQUIRES(device.lock);
  void leave(DeviceState& device, const heap::Extent& extent, std::uint16_t thread, std::uint64_t stream) CUPOOL_REQUIRES(device.lock);
  void lose(DeviceState& device, const heap::Extent& extent) CUPOOL_REQUIRES(device.lock);

  Magazines& magazines_;
  LiveFigures& figures_;
  Blocks blocks_;
  std::uint64_t bytes_ = 0;
  std::uint64_t rounding_bytes_ = 0;
  std::uint64_t asked_bytes_ = 0;
};

}  // namespace cupool::device
