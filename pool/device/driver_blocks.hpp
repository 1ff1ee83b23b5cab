// DriverBlocks: stream-ordered blocks that the driver serves itself (the policies `platform` and `async`, memory pools with properties of their
// own, and on segments contexts that cuCtxDestroy may end).
// They are counted, listed and reported like any other block; to every call the driver alone answers for them, their free included.
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
    CUcontext context = nullptr;  ///< it dies with this one; null: it is no context's
    std::uint64_t serial = 0;     ///< PoolServices::driver_blocks_made
  };
  using Blocks = std::map<std::uint64_t, Block>;  ///< by address
  using Node = Blocks::node_type;

  DriverBlocks(Magazines& magazines, LiveFigures& figures) : magazines_(magazines), figures_(figures) {}

  /// Host memory for one more: with it add() needs none. Throws std::bad_alloc.
  static Node place() {
    Blocks one;
    return one.extract(one.try_emplace(0).first);
  }
  /// The driver has served it, and its bytes are charged to the limit. Whatever was at its address has ended past us.
  void add(DeviceState& device, Node&& block, std::uint16_t thread, std::uint64_t stream) CUPOOL_REQUIRES(device.lock);
  /// Before the driver's free: out of the books, and held still. Empty: there is none at `address`.
  Node begin_free(DeviceState& device, std::uint64_t address, std::uint16_t thread, std::uint64_t stream) CUPOOL_REQUIRES(device.lock);
  /// After it. What the driver did not take is there again, unless its address has another since.
  void end_free(DeviceState& device, Node&& block, bool is_freed, std::uint16_t thread, std::uint64_t stream) CUPOOL_REQUIRES(device.lock);
  /// It is gone without a free, if there is one.
  void forget(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock);
  /// So are those that go with `context`; what was made after `before` is another context's that has its handle. Needs no host memory.
  void forget(DeviceState& device, CUcontext context, std::uint64_t before) CUPOOL_REQUIRES(device.lock);

  bool contains(std::uint64_t address) const { return blocks_.contains(address); }
  std::uint64_t bytes() const { return bytes_; }
  /// Of the device's own pool: what bytes() has more than was asked for.
  std::uint64_t rounding_bytes() const { return rounding_bytes_; }
  /// The same of the others, which are the program's pools'.
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
