// DriverBlocks: stream-ordered blocks that the driver serves itself (the policies `platform` and `async`, memory pools with properties of their
// own, and on segments contexts that cuCtxDestroy may end).
// They are counted, listed and reported like any other block; to every call the driver alone answers for them, their free included.
//
// Thread rule: the device's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <utility>

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

  /// Host memory for one more: with it add() needs none. Throws std::bad_alloc.
  static Node place() {
    Blocks one;
    return one.extract(one.try_emplace(0).first);
  }
  /// False: its address has another since.
  bool add(Node&& block) {
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
  /// Empty: there is none.
  Node take(std::uint64_t address) {
    Node block = blocks_.extract(address);
    if (block.empty()) return block;
    bytes_ -= block.mapped().extent.bytes;
    rounding_bytes_ -= rounding_of(block.mapped());
    asked_bytes_ -= block.mapped().extent.requested_bytes;
    return block;
  }
  /// Does it go with `context`? What was made after `before` is another context's that has its handle.
  static bool goes_with(const Block& block, CUcontext context, std::uint64_t before) { return block.context == context && block.serial <= before; }
  /// Those that go with `context` are gone. Needs no host memory.
  void forget(CUcontext context, std::uint64_t before) {
    std::erase_if(blocks_, [&](const auto& one) {
      const bool is_gone = goes_with(one.second, context, before);
      bytes_ -= is_gone ? one.second.extent.bytes : 0;
      rounding_bytes_ -= is_gone ? rounding_of(one.second) : 0;
      asked_bytes_ -= is_gone ? one.second.extent.requested_bytes : 0;
      return is_gone;
    });
  }
  bool contains(std::uint64_t address) const { return blocks_.contains(address); }
  std::uint64_t bytes() const { return bytes_; }
  /// Of the device's own pool: what bytes() has more than was asked for.
  std::uint64_t rounding_bytes() const { return rounding_bytes_; }
  /// The same of the others, which are the program's pools'.
  std::uint64_t rounding_elsewhere_bytes() const { return bytes_ - asked_bytes_ - rounding_bytes_; }
  const Blocks& all() const { return blocks_; }

 private:
  static std::uint64_t rounding_of(const Block& block) { return block.is_of_default_pool ? block.extent.bytes - block.extent.requested_bytes : 0; }

  Blocks blocks_;
  std::uint64_t bytes_ = 0;
  std::uint64_t rounding_bytes_ = 0;
  std::uint64_t asked_bytes_ = 0;
};

}  // namespace cupool::device
