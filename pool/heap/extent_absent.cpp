// ExtentHeap: cutting a part out of a hole, and absent extents, whose addresses stay while their memory comes and goes. See extent_heap.hpp.
#include <algorithm>

#include "pool/heap/extent_heap.hpp"

namespace cupool::heap {

Region* ExtentHeap::add_empty_region(std::uint64_t address, std::uint64_t bytes, void* owner, unsigned zone) {
  Region* region = insert_region(address, bytes, owner, ExtentState::absent);
  region->zone = static_cast<std::uint8_t>(zone);
  return region;
}

/// Takes [address, address + bytes) out of a hole: an extent in no bin and no sum. What is left of the hole stays free in its lane.
Extent* ExtentHeap::cut_out(Extent* hole, std::uint64_t address, std::uint64_t bytes, std::uint8_t keeper) {
  const std::uint32_t lane = hole->lane;
  const std::uint64_t behind_bytes = hole->address + hole->bytes - address - bytes;
  const bool is_inside = address != hole->address && behind_bytes != 0;
  Extent* rest = is_inside ? arena_.take() : nullptr;
  Extent* out = hole;
  try {
    if (address != hole->address) out = split_high(hole, bytes + behind_bytes, keeper);
    else if (behind_bytes != 0) out = split_low(hole, bytes, keeper);
  } catch (...) {
    if (rest != nullptr) arena_.give_back(rest);
    throw;
  }
  if (out == hole) {
    unlist(hole);
    note_to_neighbours(*hole, false);
  }
  count(out->region, -static_cast<std::int64_t>(out->bytes), lane);
  if (rest == nullptr) return out;
  link_behind(out, rest, bytes);
  rest->lane = lane;
  note_to_neighbours(*rest, true);
  count(rest->region, static_cast<std::int64_t>(rest->bytes), lane);
  list(rest);
  return out;
}

Extent* ExtentHeap::take_out(Extent* hole, std::uint64_t address, std::uint64_t bytes) {
  Extent* out = cut_out(hole, address, bytes);
  out->state = ExtentState::absent;
  return out;
}

/// `extent` keeps its low `bytes`; `rest`, a fresh extent, becomes what it had beyond them: of the same state, in no bin.
void ExtentHeap::link_behind(Extent* extent, Extent* rest, std::uint64_t bytes) noexcept {
  rest->address = extent->address + bytes;
  rest->bytes = extent->bytes - bytes;
  rest->region = extent->region;
  rest->state = extent->state;
  rest->previous = extent;
  rest->next = extent->next;
  rest->next_is_free = extent->next_is_free;
  if (rest->next != nullptr) rest->next->previous = rest;
  extent->next = rest;
  extent->next_is_free = false;
  extent->bytes = bytes;
  pages(extent->region).insert(rest);
}

void ExtentHeap::cut(Extent* absent, std::uint64_t bytes) {
  if (absent->bytes != bytes) link_behind(absent, arena_.take(), bytes);
}

void ExtentHeap::give_back_index(const Extent& absent, std::uint64_t begin, std::uint64_t end) noexcept {
  const std::uint64_t from = std::max(absent.address, begin);
  const std::uint64_t to = std::min(absent.address + absent.bytes, end);
  if (from < to) pages(absent.region).give_back(from, to);
}

}  // namespace cupool::heap
