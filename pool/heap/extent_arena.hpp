// ExtentArena: where Extents live. Chunks of host memory, a LIFO list of spare extents, no per-extent header.
//
// A spare extent is reused before fresh memory is touched, newest first, because it is still in the cache. Chunks grow with the
// arena up to 2 MiB, which are then aligned for huge pages: with a million blocks most of the cost is address translation.
// Chunks go back only all together, when nothing is in use. Thread rule: the device pool's lock, as for the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "pool/heap/extent.hpp"

namespace cupool::heap {

class ExtentArena {
 public:
  /// A default-initialised extent. Throws std::bad_alloc and then has changed nothing.
  Extent* take() {
    Extent* extent = spare_;
    if (extent != nullptr) {
      spare_ = extent->bin_next;
    } else {
      if (fresh_ == fresh_end_) [[unlikely]] grow();
      extent = fresh_++;
    }
    ++in_use_;
    return ::new (extent) Extent{};
  }

  void give_back(Extent* extent) noexcept {
    extent->bin_next = spare_;
    spare_ = extent;
    --in_use_;
  }

  /// Frees every chunk when no extent is in use; otherwise does nothing.
  void release_if_empty() noexcept;

  std::size_t in_use() const { return in_use_; }
  std::size_t metadata_bytes() const { return chunk_bytes_ + chunks_.capacity() * sizeof(Chunk); }

 private:
  struct FreeMemory {
    void operator()(void* memory) const noexcept;
  };
  using Chunk = std::unique_ptr<void, FreeMemory>;
  void grow();

  std::vector<Chunk> chunks_;
  std::size_t chunk_bytes_ = 0;
  Extent* spare_ = nullptr;
  Extent* fresh_ = nullptr;      ///< never used so far, up to fresh_end_
  Extent* fresh_end_ = nullptr;
  std::size_t in_use_ = 0;
};

}  // namespace cupool::heap
