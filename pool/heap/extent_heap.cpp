// ExtentHeap: carve, coalesce, find. See extent_heap.hpp.
//
// Order inside each operation: everything that can throw first, then the links, then bins and counters.
#include "pool/heap/extent_heap.hpp"

#include <algorithm>

#include "pool/core/bytes.hpp"

namespace cupool::heap {

ExtentHeap::ExtentHeap() : ExtentHeap(FitPolicy{}) {}
ExtentHeap::ExtentHeap(const FitPolicy& policy) : policy_(policy) {}
ExtentHeap::~ExtentHeap() = default;

Region* ExtentHeap::add_region(std::uint64_t address, std::uint64_t bytes, void* owner) {
  auto record = std::make_unique<RegionRecord>(address, bytes, owner);
  Extent* hole = arena_.take();
  hole->address = address;
  hole->bytes = bytes;
  hole->region = record.get();
  record->first = hole;
  record->pages.insert(hole);
  Region* region = nullptr;
  try {
    region = regions_.insert(std::move(record));
  } catch (...) {
    arena_.give_back(hole);
    throw;
  }
  region_bytes_ += bytes;
  count_free(region, bytes);
  bins_.insert(hole);
  return region;
}

void ExtentHeap::remove_region(Region* region) noexcept { forget_region(region); }

void ExtentHeap::forget_region(Region* region) noexcept {
  for (Extent* extent = region->first; extent != nullptr;) {
    Extent* next = extent->next;
    if (extent->state == ExtentState::free) bins_.remove(extent);
    arena_.give_back(extent);
    extent = next;
  }
  if (region->free_bytes == region->bytes) wholly_free_bytes_ -= region->bytes;
  free_bytes_ -= region->free_bytes;
  region_bytes_ -= region->bytes;
  regions_.erase(static_cast<RegionRecord*>(region));
  arena_.release_if_empty();
}

void ExtentHeap::count_free(Region* region, std::uint64_t bytes) noexcept {
  free_bytes_ += bytes;
  region->free_bytes += bytes;
  if (region->free_bytes == region->bytes) wholly_free_bytes_ += region->bytes;
}

void ExtentHeap::count_taken(Region* region, std::uint64_t bytes) noexcept {
  if (region->free_bytes == region->bytes) wholly_free_bytes_ -= region->bytes;
  region->free_bytes -= bytes;
  free_bytes_ -= bytes;
}

/// Puts `fresh`, whose address and bytes are set, behind `extent` and into the page index.
void ExtentHeap::link_after(Extent* extent, Extent* fresh) noexcept {
  fresh->region = extent->region;
  fresh->previous = extent;
  fresh->next = extent->next;
  if (extent->next != nullptr) extent->next->previous = fresh;
  extent->next = fresh;
  pages(extent->region).insert(fresh);
}

/// The block is the hole's low end; what remains becomes a new hole.
Extent* ExtentHeap::split_low(Extent* hole, std::uint64_t bytes) {
  Extent* rest = arena_.take();
  bins_.remove(hole);
  rest->address = hole->address + bytes;
  rest->bytes = hole->bytes - bytes;
  hole->bytes = bytes;
  rest->next_is_free = hole->next_is_free;  // false: two holes never touch
  link_after(hole, rest);
  if (hole->previous != nullptr) hole->previous->next_is_free = false;
  hole->next_is_free = true;
  bins_.insert(rest);  // rest->next keeps previous_is_free == true: it has a hole before it still
  return hole;
}

/// The block is the hole's high end; the hole stays where it is and shrinks.
Extent* ExtentHeap::split_high(Extent* hole, std::uint64_t bytes) {
  Extent* block = arena_.take();
  bins_.remove(hole);
  hole->bytes -= bytes;
  block->address = hole->address + hole->bytes;
  block->bytes = bytes;
  block->previous_is_free = true;
  link_after(hole, block);
  if (block->next != nullptr) block->next->previous_is_free = false;
  bins_.insert(hole);
  return block;
}

Extent* ExtentHeap::allocate(std::uint64_t bytes) {
  const std::uint64_t need = round_request(bytes);
  if (need == 0) return nullptr;
  Extent* block = bins_.pick(need, policy_.candidates);
  if (block == nullptr) return nullptr;
  if (block->bytes != need) {
    block = need < policy_.high_end_below_bytes ? split_high(block, need) : split_low(block, need);
  } else {
    bins_.remove(block);
    if (block->previous != nullptr) block->previous->next_is_free = false;
    if (block->next != nullptr) block->next->previous_is_free = false;
  }
  count_taken(block->region, need);
  block->bin_previous = nullptr;
  block->bin_next = nullptr;
  block->state = ExtentState::live;
  block->site = 0;
  block->flags = 0;
  block->requested_bytes = 0;
  block->buffer_id = 0;
  block->allocated_ticks = 0;
  return block;
}

/// Both are free and in no bin: the next one dissolves into `extent`.
void ExtentHeap::absorb_next(Extent* extent) noexcept {
  Extent* gone = extent->next;
  pages(extent->region).remove(gone);
  extent->bytes += gone->bytes;
  extent->next = gone->next;
  extent->next_is_free = gone->next_is_free;
  if (gone->next != nullptr) gone->next->previous = extent;
  arena_.give_back(gone);
}

Extent* ExtentHeap::free(Extent* extent) noexcept {
  count_free(extent->region, extent->bytes);
  extent->state = ExtentState::free;
  if (extent->next_is_free) {
    bins_.remove(extent->next);
    absorb_next(extent);
  }
  if (extent->previous_is_free) {
    extent = extent->previous;
    bins_.remove(extent);
    absorb_next(extent);
  }
  if (extent->previous != nullptr) extent->previous->next_is_free = true;
  if (extent->next != nullptr) extent->next->previous_is_free = true;
  bins_.insert(extent);
  return extent;
}

void ExtentHeap::defer(Extent* extent) noexcept {
  extent->state = ExtentState::deferred;
  extent->bin_previous = nullptr;
  extent->bin_next = nullptr;
}

Extent* ExtentHeap::find(std::uint64_t address) const noexcept {
  const RegionRecord* region = regions_.find(address);
  if (region == nullptr) return nullptr;
  Extent* extent = region->pages.find(address);
  return extent != nullptr && extent->state != ExtentState::free ? extent : nullptr;
}

Extent* ExtentHeap::find_containing(std::uint64_t address) const noexcept {
  const RegionRecord* region = regions_.find(address);
  return region != nullptr ? region->pages.find_containing(address) : nullptr;
}

std::uint64_t ExtentHeap::metadata_bytes() const { return sizeof(ExtentHeap) + arena_.metadata_bytes() + regions_.metadata_bytes(); }

ExtentHeap::Projection ExtentHeap::project_deferred_free() const {
  Projection projection{0, 0};
  for_each_region([&](const Region& region) {
    std::uint64_t run_bytes = 0;
    for_each_extent(region, [&](const Extent& extent) {
      run_bytes = extent.state == ExtentState::live ? 0 : run_bytes + extent.bytes;
      projection.largest_free_bytes = std::max(projection.largest_free_bytes, run_bytes);
    });
    if (run_bytes == region.bytes) projection.wholly_free_bytes += region.bytes;
  });
  return projection;
}

}  // namespace cupool::heap
