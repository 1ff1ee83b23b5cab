// ExtentHeap: where blocks lie inside regions. Geometry only: addresses are numbers, there is no device behind them.
//
// O(1): two-level bitmap bins over free extents (TLSF), host-side boundary tags (neighbour links), coalescing
// inside a region, never across regions even where two touch. Owns every Extent; extents come from an arena and are recycled.
// Host memory: 88 bytes per extent (+ 6% arena slack), 9.2 bytes per 64 KiB of region, 1 KiB per page in which more than 8
// extents start, 19 KiB per heap: at most 0.1% of the pool from a mean extent of 108 KiB up.
// When host memory runs out, add_region and allocate throw std::bad_alloc and have changed nothing; nothing else allocates.
// Thread rule: none of its own; the device pool's lock protects it, const members included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "pool/heap/extent.hpp"
#include "pool/heap/extent_arena.hpp"
#include "pool/heap/region_table.hpp"
#include "pool/heap/size_bins.hpp"

namespace cupool::heap {

/// How allocate chooses. The defaults are what the traces said (tests/bench/heap_model.cpp prints the table).
struct FitPolicy {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  unsigned candidates = 2;  ///< holes looked at in one bin; more cost cache misses and saved nothing on any trace
  /// From here up a block is cut from the end of a hole that lies beside the older neighbour, below it from the low end.
  /// Best of 64 KiB ... 16 MiB and `always`: 1.025 x peak on average over 31 jobs, against 1.036 for exact best fit.
  std::uint64_t beside_older_from_bytes = 2 << 20;
};

class ExtentHeap {
 public:
  ExtentHeap();
  explicit ExtentHeap(const FitPolicy& policy);
  ~ExtentHeap();
  ExtentHeap(const ExtentHeap&) = delete;
  ExtentHeap& operator=(const ExtentHeap&) = delete;

  /// Adds [address, address + bytes) as one free extent. Preconditions: 512-aligned, disjoint from every other region.
  /// Throws std::bad_alloc.
  Region* add_region(std::uint64_t address, std::uint64_t bytes, void* owner);
  /// Forgets a wholly free region. Precondition: region->free_bytes == region->bytes.
  void remove_region(Region* region) noexcept;
  /// Forgets a region whatever it holds, calling `on_extent(Extent&)` for each live or deferred extent first, in address
  /// order. `on_extent` may unlink the extent from the owner's lists; it must not call back into the heap.
  template <class F> void abandon_region(Region* region, F&& on_extent);

  /// A block of exactly round(bytes) carved from the best of a few candidates: the tightest, then the lowest
  /// address; nullptr only when no hole fits. State live, owner's fields zero on return. O(1). Throws std::bad_alloc.
  Extent* allocate(std::uint64_t bytes);
  /// live or deferred -> free, coalesced with free neighbours. Returns the resulting hole. O(1).
  /// Precondition: the owner has unlinked a deferred extent from its list.
  Extent* free(Extent* extent) noexcept;
  /// live -> deferred: its bytes stay out of every bin; bin_previous and bin_next are the owner's until free().
  void defer(Extent* extent) noexcept;

  /// The block that begins at `address` (live or deferred), or nullptr. O(1).
  Extent* find(std::uint64_t address) const noexcept;
  /// The extent (any state) that contains `address`, or nullptr when no region does. O(log64 region).
  Extent* find_containing(std::uint64_t address) const noexcept;
  /// The region that contains `address`, or nullptr. O(log regions).
  Region* find_region(std::uint64_t address) const noexcept { return regions_.find(address); }

  std::uint64_t region_bytes() const { return region_bytes_; }
  std::uint64_t free_bytes() const { return free_bytes_; }
  std::uint64_t largest_free_bytes() const { return bins_.largest_bytes(); }  ///< exact
  std::uint64_t wholly_free_bytes() const { return wholly_free_bytes_; }      ///< Σ bytes of regions with nothing in them
  std::uint64_t inactive_split_bytes() const { return free_bytes_ - wholly_free_bytes_; }  ///< free, in regions that hold something
  std::size_t region_count() const { return regions_.size(); }
  std::size_t extent_count() const { return arena_.in_use(); }
  std::uint64_t metadata_bytes() const;         ///< host memory held by this heap. O(regions)
  /// Largest hole if every deferred extent were free, and bytes of regions that would then be wholly free. O(extents).
  struct Projection { std::uint64_t largest_free_bytes; std::uint64_t wholly_free_bytes; };
  Projection project_deferred_free() const;

  /// visit(const Region&), in address order.
  template <class F> void for_each_region(F&& visit) const;
  /// visit(const Extent&), in address order; free extents too.
  template <class F> void for_each_extent(const Region& region, F&& visit) const;
  /// The first broken invariant as a sentence, or an empty string. O(extents).
  std::string check() const;

 private:
  /// What check() adds up over the regions.
  struct Tally { std::uint64_t regions, extents, holes, region_bytes, free_bytes, wholly_free_bytes; };

  static PageIndex& pages(Region* region) { return static_cast<RegionRecord*>(region)->pages; }
  static const PageIndex& pages(const Region* region) { return static_cast<const RegionRecord*>(region)->pages; }
  Extent* split_low(Extent* hole, std::uint64_t bytes);
  Extent* split_high(Extent* hole, std::uint64_t bytes);
  static bool older_is_behind(const Extent& hole) noexcept;
  void absorb_next(Extent* extent) noexcept;
  Extent* absorb_into_previous(Extent* extent) noexcept;
  Extent* absorb_into_next(Extent* extent) noexcept;
  void count_free(Region* region, std::uint64_t bytes) noexcept;
  void count_taken(Region* region, std::uint64_t bytes) noexcept;
  void forget_region(Region* region) noexcept;
  std::string check_region(const Region& region, Tally* tally) const;
  std::string check_links(const Region& region, const Extent& extent) const;
  std::string check_bins(std::uint64_t holes) const;

  FitPolicy policy_;
  std::uint64_t region_bytes_ = 0;
  std::uint64_t free_bytes_ = 0;
  std::uint64_t wholly_free_bytes_ = 0;
  std::uint64_t births_ = 0;
  ExtentArena arena_;
  RegionTable regions_;
  SizeBins bins_;
};

template <class F> void ExtentHeap::abandon_region(Region* region, F&& on_extent) {
  for (Extent* extent = region->first; extent != nullptr;) {
    Extent* next = extent->next;
    if (extent->state != ExtentState::free) on_extent(*extent);
    extent = next;
  }
  forget_region(region);
}

template <class F> void ExtentHeap::for_each_region(F&& visit) const {
  regions_.for_each([&](const RegionRecord& record) { visit(static_cast<const Region&>(record)); });
}

template <class F> void ExtentHeap::for_each_extent(const Region& region, F&& visit) const {
  for (const Extent* extent = region.first; extent != nullptr; extent = extent->next) visit(*extent);
}

}  // namespace cupool::heap
