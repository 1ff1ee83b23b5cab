// ExtentArena: where Extents live. Chunks of host memory, a LIFO list of spare extents, no per-extent header.
//
// A spare extent is reused before fresh memory is touched, newest first, because it is still in the cache. Chunks go back only
// all together, when nothing is in use. Thread rule: none of its own; the device pool's lock protects it.
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
    if (spare_ == nullptr) [[unlikely]] grow();
    Extent* extent = spare_;
    spare_ = extent->bin_next;
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
  std::size_t metadata_bytes() const { return capacity_ * sizeof(Extent) + chunks_.capacity() * sizeof(Chunk); }

 private:
  using Chunk = std::unique_ptr<Extent[]>;
  void grow();

  std::vector<Chunk> chunks_;
  Extent* spare_ = nullptr;
  std::size_t in_use_ = 0;
  std::size_t capacity_ = 0;
};

}  // namespace cupool::heap
