// ExtentHeap: where blocks lie inside regions. Geometry only: addresses are numbers, there is no device behind them.
//
// O(1): two-level bitmap bins over free extents (TLSF), host-side boundary tags (neighbour links), coalescing inside a region, and never across
// regions even where two touch. Each hole (free extent) has a lane: holes of lane 0 are everybody's, those of another lane may be used by that lane
// only, until it is drained. Holes coalesce within their lane. Each region has a zone, so that blocks which would be in each other's way can lie
// apart: allocate looks in the zones that it is told. Owns every Extent; extents come from an arena and are recycled.
// Host memory: 128 bytes per extent (+ 6% arena slack), 9.2 bytes per 64 KiB of region, 1 KiB per page in which more than 8
// extents start, 19 KiB per heap and zone: at most 0.1% of the pool from a mean extent of 160 KiB up.
// When host memory runs out, add_region and allocate throw std::bad_alloc and have changed nothing; nothing else allocates.
// Thread rule: none of its own; the device pool's lock protects it, const members included.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent.hpp"
#include "pool/heap/extent_arena.hpp"
#include "pool/heap/region_table.hpp"
#include "pool/heap/size_bins.hpp"

namespace cupool::heap {

/// How allocate chooses a hole and a place in it. The defaults were found by replaying recorded jobs (tests/bench/heap_model.cpp prints the table).
struct FitPolicy {
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  unsigned candidates = 2;  ///< holes that are looked at in one bin; more cost cache misses and saved nothing on any trace
  /// A block of this size or more is cut from that end of the hole which lies beside the older neighbour; a smaller one from the low end.
  /// Best of 64 KiB ... 16 MiB and `always`: 1.025 x peak on average over 31 jobs, against 1.036 for exact best fit.
  std::uint64_t beside_older_from_bytes = 2 << 20;
  /// Where memory goes in pages, a page stays as long as one block lies on it. Two rules keep small blocks from holding the pages of large ones:
  /// (1) A block of `small_below_bytes` or more does not begin on the page of a smaller block that lies right before it, but on the next page, if the
  /// hole has room for that and at least `wide_bytes`; small blocks fill what is left. This is done at several levels: each has all three sizes 2^3
  /// times those of the level before. The first level minds `wide_bytes` only with ZoneOrder::above.
  /// (2) A block of whole pages begins on a page, if the hole has room for that and what stays free before the block is at most a 32nd of it (always,
  /// if ZoneOrder says so). Else a small block that is freed beside it would leave its page behind for good.
  /// Pages are counted from the region's beginning. Without `page_bytes` and `small_below_bytes` neither rule applies.
  std::uint64_t page_bytes = 0;
  std::uint64_t small_below_bytes = kNever;
  std::uint64_t wide_bytes = 0;
  static constexpr unsigned kPageLevelBits = 3;
};

/// How many bytes of a hole of lane 0 lie in units that move only whole (physical handles) and are wholly inside the hole. The answer must depend on
/// nothing but the first and the last whole page (FitPolicy::page_bytes) of the hole, and must not change while the hole stays as it is.
using WholeBytes = std::uint64_t (*)(const Extent& hole);

/// In which zones allocate looks for holes of lane 0, and in what order: in `first`, then in those below it down to `last`, then, with `above`, in
/// those above `first`. And where in a hole a block may begin.
struct ZoneOrder {
  unsigned first = 0;
  unsigned last = 0;
  bool above = false;
  unsigned page_levels = 1;  ///< how many levels of FitPolicy's first rule apply
  /// Blocks of kHostAlignedFrom_bytes or more whose size is a multiple of a host page begin on one, where the chosen hole has room for that. Where it
  /// has not, a wider hole is taken if there is one, but not with `above`.
  bool on_host_pages = false;
  bool begins_on_pages = false;  ///< blocks of whole pages begin on one whatever stays free before them (FitPolicy's second rule)
  bool lane_first = false;       ///< a hole of the lane is taken also where lane 0 has a tighter one
  static constexpr std::uint64_t kHostAlignedFrom_bytes = 2 << 20;
  static constexpr std::uint64_t kGapShare = 32;  ///< FitPolicy's second rule: the part of the block that may stay free before it
};

class ExtentHeap {
 public:
  ExtentHeap();
  /// `zones`: how many there are, numbered from 0. `whole_bytes_of_hole`: what whole_bytes() sums; nullptr: nothing.
  explicit ExtentHeap(const FitPolicy& policy, unsigned zones = 1, WholeBytes whole_bytes_of_hole = nullptr);
  ~ExtentHeap();
  ExtentHeap(const ExtentHeap&) = delete;
  ExtentHeap& operator=(const ExtentHeap&) = delete;

  /// Adds [address, address + bytes) as one free extent. Preconditions: 512-aligned, disjoint from every other region.
  /// Throws std::bad_alloc.
  Region* add_region(std::uint64_t address, std::uint64_t bytes, void* owner);
  /// Adds the range as one absent extent of `zone`: addresses that have no memory yet. Preconditions and exception as add_region's.
  Region* add_empty_region(std::uint64_t address, std::uint64_t bytes, void* owner, unsigned zone = 0);
  /// Forgets a wholly free region. Precondition: is_wholly_free(*region).
  void remove_region(Region* region) noexcept;
  /// Forgets a region whatever it holds. Before that, `on_extent(Extent&)` is called for each live or deferred extent, in address order. It may
  /// unlink the extent from the owner's lists; it must not call back into the heap.
  template <class F> void abandon_region(Region* region, F&& on_extent);

  /// Every live or deferred extent for which `stays(const Extent&)` is false becomes a hole of lane 0, after a call of `on_extent(Extent&)` (see
  /// abandon_region). The holes of all lanes become holes of lane 0 too. O(extents).
  template <class Stays, class F> void reclaim(Stays&& stays, F&& on_extent);

  /// A block of exactly round_request(bytes), cut from the best of a few candidates: the tightest hole, then the one with the lowest address, of
  /// `lane`, or of lane 0 when that has a tighter one (not with `lane_first`). nullptr only when no hole of either fits (of lane 0: in the zones of
  /// `order`). On return its state is live and the owner's fields are zero. `keeper`: whose pages its extent shall lie in (ExtentArena). O(1). Throws
  /// std::bad_alloc.
  Extent* allocate(std::uint64_t bytes, std::uint32_t lane = 0, std::uint8_t keeper = 0, const ZoneOrder& order = {});
  /// The hole of lane 0 that allocate() would choose (nullptr: none fits), and where the block would begin in it. O(1).
  struct Fit {
    const Extent* hole;
    std::uint64_t address;
  };
  Fit fit(std::uint64_t bytes, const ZoneOrder& order = {}) const noexcept;
  /// Gives the block another Extent, in `keeper`'s pages of the arena, which it returns; the one that it had is gone. Throws std::bad_alloc with
  /// nothing changed.
  Extent* rehome(Extent* block, std::uint8_t keeper);
  /// live, deferred or absent -> free in `lane`, coalesced with free neighbours of that lane, and with those of lane 0 that are no larger than it.
  /// Returns the resulting hole. O(1). Precondition: the owner has unlinked a deferred or absent extent from its lists.
  Extent* free(Extent* extent, std::uint32_t lane = 0) noexcept;
  /// live -> deferred: its bytes stay out of every bin; bin_previous and bin_next are the owner's until free().
  void defer(Extent* extent) noexcept;

  // --- absent extents: addresses that stay while their memory comes and goes
  /// Makes [address, address + bytes) of a hole of lane 0 absent; what is left of the hole stays free. Throws std::bad_alloc with nothing changed.
  Extent* take_out(Extent* hole, std::uint64_t address, std::uint64_t bytes);
  /// An absent extent keeps its low `bytes`; the rest becomes the absent extent behind it. Throws std::bad_alloc.
  void cut(Extent* absent, std::uint64_t bytes);
  /// An absent or deferred extent takes in the one behind it, which has the same state.
  void join(Extent* extent) noexcept;
  /// Gives the host memory of the index for [begin, end), as far as that is inside the absent extent, back to the system until something begins
  /// there.
  void give_back_index(const Extent& absent, std::uint64_t begin, std::uint64_t end) noexcept;
  /// Calls visit(Extent*) for the holes of lane 0 of at least `least_bytes`, zone by zone and in each about from large to small, until it answers
  /// true; then returns true. `visit` must change nothing unless it answers true.
  template <class F> bool any_hole_largest_first(std::uint64_t least_bytes, F&& visit) const;
  /// The same, about from small to large.
  template <class F> bool any_hole_smallest_first(std::uint64_t least_bytes, F&& visit) const;

  /// A lane above 0 with no hole in it. Throws std::bad_alloc.
  std::uint32_t add_lane();
  /// Gives the number of a lane back, for the next add_lane(). Precondition: the lane has no hole.
  void remove_lane(std::uint32_t lane) noexcept;
  std::uint64_t lane_bytes(std::uint32_t lane) const noexcept { return lanes_[lane - 1]->bytes; }  ///< Σ its holes
  /// Looks for a run of neighbouring holes of `lane` and lane 0 that has `bytes` together, and joins it into one hole of `lane`. False: there is
  /// none. O(holes of the lane).
  bool gather(std::uint32_t lane, std::uint64_t bytes) noexcept;
  /// Makes [address, address + bytes) of a hole a deferred extent; what is left of the hole stays in its lane. nullptr where that range is not part
  /// of one hole. O(log64 region). Throws std::bad_alloc with nothing changed.
  Extent* set_aside(std::uint64_t address, std::uint64_t bytes);
  /// Makes every hole of `lane` deferred, and calls `on_extent(Extent*)` for each, which may link it. O(holes of the lane).
  template <class F> void drain_lane(std::uint32_t lane, F&& on_extent);

  /// The block that begins at `address` (live or deferred), or nullptr. O(1).
  Extent* find(std::uint64_t address) const noexcept;
  /// The extent (any state) that contains `address`, or nullptr when no region does. O(log64 region).
  Extent* find_containing(std::uint64_t address) const noexcept;
  /// The region that contains `address`, or nullptr. O(log regions).
  Region* find_region(std::uint64_t address) const noexcept { return regions_.find(address); }

  std::uint64_t region_bytes() const { return region_bytes_; }
  std::uint64_t free_bytes() const { return free_bytes_; }
  std::uint64_t largest_free_bytes() const noexcept;  ///< exact; of any lane
  static bool is_wholly_free(const Region& region) { return region.free_bytes == region.bytes && region.lane_bytes == 0; }
  std::uint64_t wholly_free_bytes() const { return wholly_free_bytes_; }                   ///< Σ bytes of regions that are one hole of lane 0
  std::uint64_t inactive_split_bytes() const { return free_bytes_ - wholly_free_bytes_; }  ///< free, in all other regions
  std::uint64_t whole_bytes() const { return whole_bytes_; }                               ///< Σ WholeBytes over the holes of lane 0. O(1)
  std::uint64_t blockless_bytes() const { return blockless_bytes_; }  ///< Σ bytes of regions with nothing but holes in them, of whatever lanes
  Region* first_region() const { return regions_.first(); }           ///< nullptr: none
  std::size_t region_count() const { return regions_.size(); }
  std::size_t extent_count() const { return arena_.in_use(); }
  std::uint64_t metadata_bytes() const;  ///< host memory held by this heap. O(regions)
  /// Calls visit(const Region&), in address order.
  template <class F> void for_each_region(F&& visit) const;
  /// Calls visit(const Extent& first, bytes) for each run of neighbouring holes of whatever lanes in which a lane above 0 has a hole of at least
  /// `least_bytes`. Returns how many holes it looked at: those of lanes above 0 that have half of `least_bytes` or more.
  template <class F> std::uint64_t for_each_lane_run(std::uint64_t least_bytes, F&& visit) const;
  /// Calls visit(const Extent&) for extents of every state, in address order.
  template <class F> void for_each_extent(const Region& region, F&& visit) const;
  /// Is there an extent for which `is_it(const Extent&)` is true? O(extents up to the first one).
  template <class F> bool any_extent(F&& is_it) const;
  /// Calls visit(const Extent& first, bytes) for each run of neighbours that would be one hole if every deferred extent were free, in address order.
  template <class F> void for_each_run(const Region& region, F&& visit) const;
  /// The first broken invariant as a sentence, or an empty string. O(extents).
  std::string check() const;

 private:
  static constexpr std::uint64_t kLooseShare = 8;  ///< a hole of a lane is loose when more than this share of the block would be left of it

  /// What check() adds up over the regions.
  struct Tally {
    std::uint64_t regions, extents, region_bytes, free_bytes, wholly_free_bytes, blockless_bytes, whole_bytes;
    std::vector<std::uint64_t> holes, lane_bytes;  ///< by lane
    std::vector<std::uint64_t> zone_holes;         ///< of lane 0, by zone
  };
  /// One lane above 0.
  struct Lane {
    SizeBins bins;
    std::uint64_t bytes = 0;
    bool in_use = false;
  };

  RegionRecord* insert_region(std::uint64_t address, std::uint64_t bytes, void* owner, ExtentState state);
  static PageIndex& pages(Region* region) { return static_cast<RegionRecord*>(region)->pages; }
  static const PageIndex& pages(const Region* region) { return static_cast<const RegionRecord*>(region)->pages; }
  Extent* move(Extent* extent, Extent* fresh) noexcept;
  Extent* split_low(Extent* hole, std::uint64_t bytes, std::uint8_t keeper = 0);
  Extent* split_high(Extent* hole, std::uint64_t bytes, std::uint8_t keeper = 0);
  static bool older_is_behind(const Extent& hole) noexcept;
  Extent* cut_off(Extent* hole, std::uint64_t address, std::uint64_t bytes, std::uint8_t keeper);
  Extent* cut_out(Extent* hole, std::uint64_t address, std::uint64_t bytes, std::uint8_t keeper = 0);
  static void note_to_neighbours(const Extent& extent, bool is_free) noexcept {
    if (extent.previous != nullptr) extent.previous->next_is_free = is_free;
    if (extent.next != nullptr) extent.next->previous_is_free = is_free;
  }
  std::uint64_t gap_before(const Extent& hole, std::uint64_t need, const ZoneOrder& order) const noexcept;
  std::optional<std::uint64_t> begin_on_page(const Extent& hole, std::uint64_t need, const ZoneOrder& order) const noexcept;
  bool is_of_whole_pages(std::uint64_t need) const { return policy_.page_bytes != 0 && is_aligned(need, policy_.page_bytes); }
  std::uint64_t begin_in(const Extent& hole, std::uint64_t need, const ZoneOrder& order) const noexcept;
  void link_behind(Extent* extent, Extent* rest, std::uint64_t bytes) noexcept;
  void absorb_next(Extent* extent) noexcept;
  Extent* absorb_into_previous(Extent* extent) noexcept;
  Extent* absorb_into_next(Extent* extent) noexcept;
  SizeBins& bins_of(const Region* region, std::uint32_t lane) noexcept { return lane == 0 ? zones_[region->zone] : lanes_[lane - 1]->bins; }
  void list(Extent* hole) noexcept;
  void unlist(Extent* hole) noexcept;
  void resize(Extent* hole, std::uint64_t address, std::uint64_t bytes) noexcept;
  std::uint64_t whole_bytes_of(const Extent& hole) const noexcept { return hole.bytes >= policy_.page_bytes ? get_whole_bytes_(hole) : 0; }
  Extent* pick(std::uint64_t need, const ZoneOrder& order) const noexcept;
  void count(Region* region, std::int64_t free_bytes, std::uint32_t lane) noexcept;
  void take_neighbours(const Extent& extent, std::uint32_t lane) noexcept;
  void join_next(Extent* hole) noexcept;
  void move_to_lane(Extent* hole, std::uint32_t lane) noexcept;
  void forget_region(Region* region) noexcept;
  std::string check_region(const Region& region, Tally* tally) const;
  std::string check_links(const Region& region, const Extent& extent) const;
  std::string check_bins(const SizeBins& bins, std::uint32_t lane, std::uint64_t holes) const;

  FitPolicy policy_;
  WholeBytes get_whole_bytes_ = nullptr;
  std::uint64_t whole_bytes_ = 0;
  std::uint64_t region_bytes_ = 0;
  std::uint64_t free_bytes_ = 0;
  std::uint64_t wholly_free_bytes_ = 0;
  std::uint64_t blockless_bytes_ = 0;
  std::uint64_t births_ = 0;
  ExtentArena arena_;
  RegionTable regions_;
  std::vector<SizeBins> zones_;               ///< of lane 0, by zone
  std::vector<std::unique_ptr<Lane>> lanes_;  ///< lane n is at n - 1
};

template <class F> void ExtentHeap::abandon_region(Region* region, F&& on_extent) {
  for (Extent* extent = region->first; extent != nullptr;) {
    Extent* next = extent->next;
    if (extent->state == ExtentState::live || extent->state == ExtentState::deferred) on_extent(*extent);
    extent = next;
  }
  forget_region(region);
}

template <class F> void ExtentHeap::drain_lane(std::uint32_t lane, F&& on_extent) {
  SizeBins& bins = lanes_[lane - 1]->bins;
  while (Extent* hole = bins.one_of_largest()) {
    bins.remove(hole);
    count(hole->region, -static_cast<std::int64_t>(hole->bytes), lane);
    note_to_neighbours(*hole, false);
    hole->site = 0;
    hole->requested_bytes = 0;
    defer(hole);
    on_extent(hole);
  }
}

template <class F> bool ExtentHeap::any_hole_largest_first(std::uint64_t least_bytes, F&& visit) const {
  for (const SizeBins& zone : zones_) {
    bool is_found = false;
    zone.any_largest_first([&](Extent* hole) {
      is_found = hole->bytes >= least_bytes && visit(hole);
      return is_found || hole->bytes < least_bytes / 2;  // bins come from large to small: no hole after this one is large enough
    });
    if (is_found) return true;
  }
  return false;
}

template <class F> bool ExtentHeap::any_hole_smallest_first(std::uint64_t least_bytes, F&& visit) const {
  for (const SizeBins& zone : zones_)
    if (zone.any_smallest_first(least_bytes, [&](Extent* hole) { return hole->bytes >= least_bytes && visit(hole); })) return true;
  return false;
}

template <class F> std::uint64_t ExtentHeap::for_each_lane_run(std::uint64_t least_bytes, F&& visit) const {
  std::uint64_t looks = 0;
  const auto begins_search = [least_bytes](const Extent* hole) { return hole->lane != 0 && hole->bytes >= least_bytes; };
  for (const auto& lane : lanes_) {
    if (lane->bytes == 0 || lane->bytes < least_bytes) continue;
    lane->bins.any_largest_first([&](const Extent* hole) {
      ++looks;
      if (!begins_search(hole)) return hole->bytes < least_bytes / 2;  // bins come from large to small: no hole after this one is large enough
      const Extent* first = hole;
      while (first->previous_is_free) {
        first = first->previous;
        if (begins_search(first)) return false;  // the run is visited for that hole, once
      }
      std::uint64_t bytes = first->bytes;
      for (const Extent* last = first; last->next_is_free; last = last->next) bytes += last->next->bytes;
      visit(static_cast<const Extent&>(*first), bytes);
      return false;
    });
  }
  return looks;
}

template <class Stays, class F> void ExtentHeap::reclaim(Stays&& stays, F&& on_extent) {
  for (std::uint32_t lane = 1; lane <= lanes_.size(); ++lane) drain_lane(lane, [this](Extent* hole) { free(hole); });
  regions_.for_each([&](const RegionRecord& record) {
    for (Extent* extent = record.first; extent != nullptr; extent = extent->next) {
      const bool is_block = extent->state == ExtentState::live || extent->state == ExtentState::deferred;
      if (!is_block || stays(*extent)) continue;
      on_extent(*extent);
      extent = free(extent);
    }
  });
}

template <class F> void ExtentHeap::for_each_region(F&& visit) const {
  regions_.for_each([&](const RegionRecord& record) { visit(static_cast<const Region&>(record)); });
}

template <class F> void ExtentHeap::for_each_extent(const Region& region, F&& visit) const {
  for (const Extent* extent = region.first; extent != nullptr; extent = extent->next) visit(*extent);
}

template <class F> bool ExtentHeap::any_extent(F&& is_it) const {
  bool found = false;
  for_each_region([&](const Region& region) {
    for (const Extent* extent = region.first; extent != nullptr && !found; extent = extent->next) found = is_it(*extent);
  });
  return found;
}

template <class F> void ExtentHeap::for_each_run(const Region& region, F&& visit) const {
  const Extent* first = nullptr;
  std::uint64_t bytes = 0;
  for (const Extent* extent = region.first; extent != nullptr; extent = extent->next) {
    const bool is_open = extent->state != ExtentState::live && extent->state != ExtentState::absent;
    if (is_open && first == nullptr) first = extent;
    if (is_open) bytes += extent->bytes;
    if (first == nullptr || (is_open && extent->next != nullptr)) continue;
    visit(*first, bytes);
    first = nullptr;
    bytes = 0;
  }
}

}  // namespace cupool::heap
