// ExtentArena: the host memory of Extents. Chunks, a LIFO list of spare extents, no header per extent.
//
// A spare extent is reused before fresh memory is touched, the newest first, because it is still in the cache. Chunks grow with the
// arena up to 2 MiB, and are then aligned for huge pages: with a million blocks most of the cost is address translation.
// Chunks are freed only all together, when no extent is in use. Thread rule: the device pool's lock, as for the heap.
//
// A thread that keeps blocks in a magazine (a keeper) uses their extents without a lock, and processors prefetch the lines beside the one that they
// need. So each keeper's extents lie in pages of their own: two threads whose extents lay mixed took 1.4 times as long for each block.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "pool/heap/extent.hpp"

namespace cupool::heap {

class ExtentArena {
 public:
  static constexpr std::uint8_t kKeepers = 33;       ///< nobody in particular (0), and one for each magazine of a device
  static constexpr std::uint32_t kMostSpare = 1024;  ///< spare extents that one keeper has for itself (128 KiB); more are anybody's

  /// A default-initialised extent. Throws std::bad_alloc and then has changed nothing.
  Extent* take(std::uint8_t keeper = 0) {
    Stock& stock = stocks_[keeper];
    Extent* extent = stock.spare;
    if (extent != nullptr) {
      stock.spare = extent->bin_next;
      --stock.spare_count;
    } else {
      if (stock.fresh == stock.fresh_end) [[unlikely]]
        return take_from_anybody(keeper);
      extent = stock.fresh++;
    }
    return begin(extent, keeper);
  }

  void give_back(Extent* extent) noexcept {
    if (stocks_[extent->keeper].spare_count >= kMostSpare) extent->keeper = 0;
    Stock& stock = stocks_[extent->keeper];
    extent->bin_next = stock.spare;
    stock.spare = extent;
    ++stock.spare_count;
    --in_use_;
  }

  /// Frees every chunk when no extent is in use; otherwise does nothing.
  void release_if_empty() noexcept;

  std::size_t in_use() const { return in_use_; }
  std::size_t metadata_bytes() const { return chunk_bytes_ + chunks_.capacity() * sizeof(Chunk); }

 private:
  struct Stock {
    Extent* spare = nullptr;
    std::size_t spare_count = 0;
    Extent* fresh = nullptr;  ///< up to fresh_end: never used so far
    Extent* fresh_end = nullptr;
  };
  struct FreeMemory {
    void operator()(void* memory) const noexcept;
  };
  using Chunk = std::unique_ptr<void, FreeMemory>;
  /// Begins the life of an extent in that place.
  Extent* begin(Extent* extent, std::uint8_t keeper) {
    ++in_use_;
    ::new (extent) Extent{};
    extent->keeper = keeper;
    return extent;
  }
  Extent* take_from_anybody(std::uint8_t keeper);
  void grow();

  std::vector<Chunk> chunks_;
  std::size_t chunk_bytes_ = 0;
  std::array<Stock, kKeepers> stocks_ = {};
  std::size_t in_use_ = 0;
};

}  // namespace cupool::heap
