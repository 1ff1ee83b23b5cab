// ExtentHeap: lanes, whose holes only one user may take. See extent_heap.hpp.
#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"

namespace cupool::heap {

std::uint32_t ExtentHeap::add_lane() {
  std::size_t index = 0;
  while (index < lanes_.size() && lanes_[index]->in_use) ++index;
  if (index == lanes_.size()) lanes_.push_back(std::make_unique<Lane>());
  lanes_[index]->in_use = true;
  return static_cast<std::uint32_t>(index + 1);
}

void ExtentHeap::remove_lane(std::uint32_t lane) noexcept { lanes_[lane - 1]->in_use = false; }

std::uint64_t ExtentHeap::largest_free_bytes() const noexcept {
  std::uint64_t largest_bytes = 0;
  for (const SizeBins& zone : zones_) largest_bytes = std::max(largest_bytes, zone.largest_bytes());
  for (const auto& lane : lanes_)
    if (lane->bytes > largest_bytes) largest_bytes = std::max(largest_bytes, lane->bins.largest_bytes());
  return largest_bytes;
}

/// Makes a hole of lane 0 one of `lane`, without joining it with its neighbours.
void ExtentHeap::move_to_lane(Extent* hole, std::uint32_t lane) noexcept {
  const auto bytes = static_cast<std::int64_t>(hole->bytes);
  unlist(hole);
  count(hole->region, -bytes, 0);
  hole->lane = lane;
  list(hole);
  count(hole->region, bytes, lane);
}

/// Brings the holes of lane 0 beside `extent` that are no larger than it into `lane`, so that they will join it. A larger one stays everybody's:
/// without it, allocations for no stream would have to grow the pool.
void ExtentHeap::take_neighbours(const Extent& extent, std::uint32_t lane) noexcept {
  const auto is_due = [&](bool is_free, const Extent* hole) { return is_free && hole->lane == 0 && hole->bytes <= extent.bytes; };
  if (is_due(extent.previous_is_free, extent.previous)) {
    Extent* hole = extent.previous;
    move_to_lane(hole, lane);
    if (hole->previous_is_free && hole->previous->lane == lane) join_next(hole->previous);
  }
  if (is_due(extent.next_is_free, extent.next)) {
    move_to_lane(extent.next, lane);
    if (extent.next->next_is_free && extent.next->next->lane == lane) join_next(extent.next);
  }
}

/// Joins a hole with the one behind it, which is of the same lane.
void ExtentHeap::join_next(Extent* hole) noexcept {
  const std::uint64_t before_bytes = hole->bytes;
  absorb_next(hole);  // it has more bytes now, but is still in the bin of its old size
  const std::uint64_t joined_bytes = hole->bytes;
  hole->bytes = before_bytes;
  resize(hole, hole->address, joined_bytes);
}

Extent* ExtentHeap::set_aside(std::uint64_t address, std::uint64_t bytes) {
  Extent* hole = find_containing(address);
  if (hole == nullptr || hole->state != ExtentState::free || address + bytes > hole->address + hole->bytes) return nullptr;
  Extent* part = cut_out(hole, address, bytes);
  part->site = 0;
  part->flags = 0;
  part->requested_bytes = 0;
  defer(part);
  return part;
}

bool ExtentHeap::gather(std::uint32_t lane, std::uint64_t bytes) noexcept {
  const std::uint64_t need = round_request(bytes);
  const auto usable = [lane](bool is_free, const Extent* extent) { return is_free && (extent->lane == 0 || extent->lane == lane); };
  return lanes_[lane - 1]->bins.any_largest_first([&](Extent* hole) {
    Extent* first = hole;
    while (usable(first->previous_is_free, first->previous)) first = first->previous;
    std::uint64_t run_bytes = first->bytes;
    for (const Extent* last = first; usable(last->next_is_free, last->next); last = last->next) run_bytes += last->next->bytes;
    if (run_bytes < need) return false;
    if (first->lane == 0) move_to_lane(first, lane);
    while (usable(first->next_is_free, first->next)) {
      if (first->next->lane == 0) move_to_lane(first->next, lane);
      join_next(first);
    }
    return true;
  });
}

}  // namespace cupool::heap
