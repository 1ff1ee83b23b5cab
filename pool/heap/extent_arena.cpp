// ExtentArena's slow path: chunks. See extent_arena.hpp.
#include "pool/heap/extent_arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "pool/core/bytes.hpp"

namespace cupool::heap {

namespace {
constexpr std::size_t kGrowthShare = 16;  ///< the next chunk is this part of what exists, so that unused extents stay a small part of the whole:
constexpr std::size_t kFirstChunk_bytes = 4 * kKiB;
constexpr std::size_t kHugePage_bytes = 2 * kMiB;  ///< and no more than one of these
constexpr std::size_t kExtentsPerPage = kHostPage_bytes / sizeof(Extent);
}  // namespace

void ExtentArena::FreeMemory::operator()(void* memory) const noexcept { std::free(memory); }

/// For a keeper that has no extent left: one of those that are anybody's, where there are many, else the first of a fresh page for this keeper.
/// Nobody in particular (keeper 0) gets any.
Extent* ExtentArena::take_from_anybody(std::uint8_t keeper) {
  Stock& shared = stocks_[0];
  if (keeper == 0 || shared.spare_count > kMostSpare) {
    if (shared.spare == nullptr && shared.fresh == shared.fresh_end) grow();
    if (shared.spare == nullptr) return begin(shared.fresh++, keeper);
    Extent* extent = shared.spare;
    shared.spare = extent->bin_next;
    --shared.spare_count;
    return begin(extent, keeper);
  }
  if (static_cast<std::size_t>(shared.fresh_end - shared.fresh) < kExtentsPerPage) grow();
  Stock& own = stocks_[keeper];
  own.fresh_end = shared.fresh_end;  // chunks end where a page ends
  own.fresh = shared.fresh_end -= kExtentsPerPage;
  return begin(own.fresh++, keeper);
}

void ExtentArena::grow() {
  const std::size_t bytes = std::clamp(align_down(chunk_bytes_ / kGrowthShare, kHostPage_bytes), kFirstChunk_bytes, kHugePage_bytes);
  const std::size_t alignment = bytes == kHugePage_bytes ? kHugePage_bytes : kHostPage_bytes;
  if (chunks_.size() == chunks_.capacity()) chunks_.reserve(std::max<std::size_t>(8, chunks_.capacity() * 2));
  Chunk chunk(std::aligned_alloc(alignment, bytes));
  if (chunk == nullptr) throw std::bad_alloc();
  if (bytes == kHugePage_bytes) (void)::madvise(chunk.get(), bytes, MADV_HUGEPAGE);  // a hint: nothing depends on it
  Stock& shared = stocks_[0];
  while (shared.fresh != shared.fresh_end) {  // less than a page is left: too little for a keeper
    Extent* rest = ::new (shared.fresh++) Extent{};
    rest->bin_next = shared.spare;
    shared.spare = rest;
    ++shared.spare_count;
  }
  shared.fresh = static_cast<Extent*>(chunk.get());
  shared.fresh_end = shared.fresh + bytes / sizeof(Extent);
  chunks_.push_back(std::move(chunk));
  chunk_bytes_ += bytes;
}

void ExtentArena::release_if_empty() noexcept {
  if (in_use_ != 0) return;
  chunks_ = std::vector<Chunk>();
  chunk_bytes_ = 0;
  stocks_ = {};
}

}  // namespace cupool::heap
