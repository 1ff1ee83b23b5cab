// ExtentArena's slow path: chunks. See extent_arena.hpp.
#include "pool/heap/extent_arena.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>

#include "pool/core/bytes.hpp"

namespace cupool::heap {

namespace {
// A sixteenth of what exists already, so that unused extents stay a small part of the whole.
constexpr std::size_t kFirstChunk_bytes = 4 * kKiB;
constexpr std::size_t kHugePage_bytes = 2 * kMiB;
constexpr std::size_t kPage_bytes = 4 * kKiB;
}  // namespace

void ExtentArena::FreeMemory::operator()(void* memory) const noexcept { std::free(memory); }

void ExtentArena::grow() {
  const std::size_t bytes = std::clamp(align_down(chunk_bytes_ / 16, kPage_bytes), kFirstChunk_bytes, kHugePage_bytes);
  const std::size_t alignment = bytes == kHugePage_bytes ? kHugePage_bytes : alignof(Extent);
  if (chunks_.size() == chunks_.capacity()) chunks_.reserve(std::max<std::size_t>(8, chunks_.capacity() * 2));
  Chunk chunk(std::aligned_alloc(alignment, bytes));
  if (chunk == nullptr) throw std::bad_alloc();
  if (bytes == kHugePage_bytes) (void)::madvise(chunk.get(), bytes, MADV_HUGEPAGE);  // a wish: nothing depends on it
  fresh_ = static_cast<Extent*>(chunk.get());
  fresh_end_ = fresh_ + bytes / sizeof(Extent);
  chunks_.push_back(std::move(chunk));
  chunk_bytes_ += bytes;
}

void ExtentArena::release_if_empty() noexcept {
  if (in_use_ != 0) return;
  chunks_ = std::vector<Chunk>();
  chunk_bytes_ = 0;
  spare_ = fresh_ = fresh_end_ = nullptr;
}

}  // namespace cupool::heap
