// ExtentArena's slow path: chunks. See extent_arena.hpp.
#include "pool/heap/extent_arena.hpp"

#include <algorithm>

namespace cupool::heap {

namespace {
// A sixteenth of what exists already, so that unused extents stay a small part of the whole, within bounds that
// keep a small pool small and the longest single growth short (512 extents: 44 KiB, about 10 us).
constexpr std::size_t kFirstChunk_count = 32;
constexpr std::size_t kLargestChunk_count = 512;
}  // namespace

void ExtentArena::grow() {
  const std::size_t count = std::clamp(capacity_ / 16, kFirstChunk_count, kLargestChunk_count);
  if (chunks_.size() == chunks_.capacity()) chunks_.reserve(std::max<std::size_t>(8, chunks_.capacity() * 2));
  chunks_.push_back(std::make_unique<Extent[]>(count));
  Extent* extents = chunks_.back().get();
  for (std::size_t i = count; i-- > 0;) {  // lowest address on top: neighbours in the pool become neighbours here
    extents[i].bin_next = spare_;
    spare_ = &extents[i];
  }
  capacity_ += count;
}

void ExtentArena::release_if_empty() noexcept {
  if (in_use_ != 0) return;
  chunks_ = std::vector<Chunk>();
  spare_ = nullptr;
  capacity_ = 0;
}

}  // namespace cupool::heap
