// ExtentHeap: carve, coalesce, find. See extent_heap.hpp.
//
// Order inside each operation: everything that can throw first, then the links, then bins and counters.
#include "pool/heap/extent_heap.hpp"

#include <algorithm>

#include "pool/core/bytes.hpp"

namespace cupool::heap {

namespace {
bool wants_host_pages(std::uint64_t need, const ZoneOrder& order) {
  return order.on_host_pages && need >= ZoneOrder::kHostAlignedFrom_bytes && is_aligned(need, kHostPage_bytes);
}
}  // namespace

ExtentHeap::ExtentHeap() : ExtentHeap(FitPolicy{}) {}
ExtentHeap::ExtentHeap(const FitPolicy& policy, unsigned zones, WholeBytes whole_bytes_of_hole)
    : policy_(policy), get_whole_bytes_(whole_bytes_of_hole), zones_(zones) {}
ExtentHeap::~ExtentHeap() = default;

/// Enters a region that is one extent of `state`, in no bin yet. Throws std::bad_alloc with nothing changed.
RegionRecord* ExtentHeap::insert_region(std::uint64_t address, std::uint64_t bytes, void* owner, ExtentState state) {
  auto record = std::make_unique<RegionRecord>(address, bytes, owner);
  Extent* whole = arena_.take();
  whole->address = address;
  whole->bytes = bytes;
  whole->region = record.get();
  whole->state = state;
  record->first = whole;
  record->pages.insert(whole);
  RegionRecord* region = nullptr;
  try {
    region = regions_.insert(std::move(record));
  } catch (...) {
    arena_.give_back(whole);
    throw;
  }
  region_bytes_ += bytes;
  return region;
}

Region* ExtentHeap::add_region(std::uint64_t address, std::uint64_t bytes, void* owner) {
  RegionRecord* region = insert_region(address, bytes, owner, ExtentState::free);
  count(region, static_cast<std::int64_t>(bytes), 0);
  list(region->first);
  return region;
}

void ExtentHeap::remove_region(Region* region) noexcept { forget_region(region); }

void ExtentHeap::forget_region(Region* region) noexcept {
  for (Extent* extent = region->first; extent != nullptr;) {
    Extent* next = extent->next;
    if (extent->state == ExtentState::free) {
      unlist(extent);
      count(region, -static_cast<std::int64_t>(extent->bytes), extent->lane);
    }
    arena_.give_back(extent);
    extent = next;
  }
  region_bytes_ -= region->bytes;
  regions_.erase(static_cast<RegionRecord*>(region));
  arena_.release_if_empty();
}

/// Puts a hole into the bin of its size.
void ExtentHeap::list(Extent* hole) noexcept {
  bins_of(hole->region, hole->lane).insert(hole);
  if (get_whole_bytes_ == nullptr || hole->lane != 0) return;
  hole->whole_bytes = whole_bytes_of(*hole);
  whole_bytes_ += hole->whole_bytes;
}

void ExtentHeap::unlist(Extent* hole) noexcept {
  bins_of(hole->region, hole->lane).remove(hole);
  if (get_whole_bytes_ != nullptr && hole->lane == 0) whole_bytes_ -= hole->whole_bytes;
}

/// Makes a listed hole [address, address + bytes), and lists it in the bin of its new size.
void ExtentHeap::resize(Extent* hole, std::uint64_t address, std::uint64_t bytes) noexcept {
  const std::uint64_t page_bytes = policy_.page_bytes;
  const bool is_counted = get_whole_bytes_ != nullptr && hole->lane == 0;
  const bool has_other_pages = is_counted && (align_up(hole->address, page_bytes) != align_up(address, page_bytes) ||
                                              align_down(hole->address + hole->bytes, page_bytes) != align_down(address + bytes, page_bytes));
  hole->address = address;
  bins_of(hole->region, hole->lane).resize(hole, bytes);
  if (!has_other_pages) return;
  whole_bytes_ -= hole->whole_bytes;
  hole->whole_bytes = whole_bytes_of(*hole);
  whole_bytes_ += hole->whole_bytes;
}

/// `free_bytes` more (or fewer, if negative) of the region are free in `lane`: changes every sum that knows of it.
void ExtentHeap::count(Region* region, std::int64_t free_bytes, std::uint32_t lane) noexcept {
  const auto bytes = static_cast<std::uint64_t>(free_bytes);  // modulo 2^64, as the sums are
  if (is_wholly_free(*region)) wholly_free_bytes_ -= region->bytes;
  if (region->free_bytes == region->bytes) blockless_bytes_ -= region->bytes;
  free_bytes_ += bytes;
  region->free_bytes += bytes;
  if (lane != 0) {
    region->lane_bytes += bytes;
    lanes_[lane - 1]->bytes += bytes;
  }
  if (is_wholly_free(*region)) wholly_free_bytes_ += region->bytes;
  if (region->free_bytes == region->bytes) blockless_bytes_ += region->bytes;
}

/// Is the older of the hole's two neighbours the one behind it? The younger one will probably be freed first (lifetimes in training and inference
/// nest), and then what is left of the hole should lie beside it and join it. So a block is cut from the hole's end beside the older neighbour.
/// (Small blocks stay at the low end: FitPolicy::beside_older_from_bytes.) A deferred neighbour is as good as free and counts as the youngest. The
/// region's edge and addresses without memory stay for ever and count as the oldest.
bool ExtentHeap::older_is_behind(const Extent& hole) noexcept {
  if (hole.previous == nullptr) return false;
  if (hole.next == nullptr) return true;
  const auto birth = [](const Extent* extent) -> std::uint64_t {
    if (extent->state == ExtentState::live) return extent->birth;
    return extent->state == ExtentState::absent ? 0 : ~std::uint64_t{0};
  };
  return birth(hole.next) < birth(hole.previous);
}

/// Cuts the low end of the hole off as a new extent, which it returns; the hole begins behind it.
Extent* ExtentHeap::split_low(Extent* hole, std::uint64_t bytes, std::uint8_t keeper) {
  Extent* block = arena_.take(keeper);
  block->address = hole->address;
  block->bytes = bytes;
  block->region = hole->region;
  block->previous = hole->previous;
  block->next = hole;
  block->next_is_free = true;
  block->previous_is_free = hole->previous_is_free;
  hole->previous_is_free = false;
  if (hole->previous != nullptr) {
    hole->previous->next = block;
    hole->previous->next_is_free = false;
  } else {
    hole->region->first = block;
  }
  pages(hole->region).replace(hole, block);
  hole->previous = block;
  resize(hole, hole->address + bytes, hole->bytes - bytes);
  pages(hole->region).insert(hole);
  return block;
}

/// Cuts the high end of the hole off as a new extent, which it returns; the hole ends before it.
Extent* ExtentHeap::split_high(Extent* hole, std::uint64_t bytes, std::uint8_t keeper) {
  Extent* block = arena_.take(keeper);
  block->address = hole->address + hole->bytes - bytes;
  block->bytes = bytes;
  block->region = hole->region;
  block->previous = hole;
  block->next = hole->next;
  block->previous_is_free = true;
  block->next_is_free = hole->next_is_free;
  hole->next_is_free = false;
  if (hole->next != nullptr) {
    hole->next->previous = block;
    hole->next->previous_is_free = false;
  }
  hole->next = block;
  pages(hole->region).insert(block);
  resize(hole, hole->address, hole->bytes - bytes);
  return block;
}

/// Puts the record `fresh` in the place of `extent`, which is in no bin and goes back to the arena. Returns `fresh`.
Extent* ExtentHeap::move(Extent* extent, Extent* fresh) noexcept {
  const std::uint8_t keeper = fresh->keeper;
  *fresh = *extent;
  fresh->keeper = keeper;
  if (fresh->previous != nullptr) fresh->previous->next = fresh;
  else fresh->region->first = fresh;
  if (fresh->next != nullptr) fresh->next->previous = fresh;
  pages(fresh->region).replace(extent, fresh);
  extent->state = ExtentState::free;
  arena_.give_back(extent);
  return fresh;
}

Extent* ExtentHeap::rehome(Extent* block, std::uint8_t keeper) { return block->keeper == keeper ? block : move(block, arena_.take(keeper)); }

Extent* ExtentHeap::pick(std::uint64_t need, const ZoneOrder& order) const noexcept {
  Extent* hole = nullptr;
  for (unsigned zone = order.first + 1; hole == nullptr && zone-- > order.last;) hole = zones_[zone].pick(need, policy_.candidates);
  for (unsigned zone = order.first + 1; order.above && hole == nullptr && zone < zones_.size(); ++zone)
    hole = zones_[zone].pick(need, policy_.candidates);
  return hole;
}

/// Takes an end of the hole, or all of it, out of the bins and sums. Precondition: [address, address + bytes) is such a part.
Extent* ExtentHeap::cut_off(Extent* hole, std::uint64_t address, std::uint64_t bytes, std::uint8_t keeper) {
  const std::uint32_t lane = hole->lane;
  Extent* block = hole;
  if (hole->bytes != bytes) {
    block = address != hole->address ? split_high(hole, bytes, keeper) : split_low(hole, bytes, keeper);
  } else {
    Extent* own = keeper != 0 && hole->keeper != keeper ? arena_.take(keeper) : nullptr;
    unlist(hole);
    if (own != nullptr) block = move(hole, own);
    note_to_neighbours(*block, false);
  }
  count(block->region, -static_cast<std::int64_t>(bytes), lane);
  return block;
}

/// Where in the hole a block of `need` bytes is to begin. Precondition: it fits.
std::uint64_t ExtentHeap::begin_in(const Extent& hole, std::uint64_t need, const ZoneOrder& order) const noexcept {
  if (hole.bytes == need) return hole.address;
  if (const std::uint64_t gap_bytes = gap_before(hole, need, order); gap_bytes != 0) return hole.address + gap_bytes;
  if (const std::optional<std::uint64_t> address = begin_on_page(hole, need, order)) return *address;
  const std::uint64_t lowest = hole.address;
  const std::uint64_t highest = hole.address + hole.bytes - need;
  const bool at_high_end = need >= policy_.beside_older_from_bytes && older_is_behind(hole);
  if (wants_host_pages(need, order)) {
    const std::uint64_t aligned = at_high_end ? align_down(highest, kHostPage_bytes) : align_up(lowest, kHostPage_bytes);
    if (aligned >= lowest && aligned <= highest) return aligned;
  }
  return at_high_end ? highest : lowest;
}

/// Where a block of whole pages begins on one. nullopt: it is no such block, the hole has no room for that, or what would stay free before it is too
/// much.
std::optional<std::uint64_t> ExtentHeap::begin_on_page(const Extent& hole, std::uint64_t need, const ZoneOrder& order) const noexcept {
  if (!is_of_whole_pages(need)) return std::nullopt;
  const std::uint64_t begin_bytes = hole.address - hole.region->address;
  const std::uint64_t gap_bytes = align_up(begin_bytes, policy_.page_bytes) - begin_bytes;
  const bool is_worth_it = order.begins_on_pages || gap_bytes <= need / ZoneOrder::kGapShare;
  if (!is_worth_it || gap_bytes + need > hole.bytes) return std::nullopt;
  return hole.address + gap_bytes;
}

/// What stays free of the hole before the block, so that it does not begin on the page of a smaller one (FitPolicy::small_below_bytes).
std::uint64_t ExtentHeap::gap_before(const Extent& hole, std::uint64_t need, const ZoneOrder& order) const noexcept {
  if (need < policy_.small_below_bytes) return 0;  // before the neighbour is read, which may be in no cache
  const Extent* before = hole.previous;
  const bool is_behind_block = before != nullptr && !hole.previous_is_free && before->state != ExtentState::absent;
  if (!is_behind_block) return 0;
  const std::uint64_t begin_bytes = hole.address - hole.region->address;
  std::uint64_t gap_bytes = 0;
  for (unsigned level = 0; level < order.page_levels; ++level) {
    const unsigned shift = level * FitPolicy::kPageLevelBits;
    const std::uint64_t small_below_bytes = policy_.small_below_bytes << shift;
    if (need < small_below_bytes || before->bytes >= small_below_bytes) continue;
    const std::uint64_t end_bytes = align_up(begin_bytes, policy_.page_bytes << shift);
    const bool is_wide = (level == 0 && !order.above) || hole.bytes >= policy_.wide_bytes << shift;
    if (is_wide && end_bytes - begin_bytes + need <= hole.bytes) gap_bytes = end_bytes - begin_bytes;
  }
  return gap_bytes;
}

Extent* ExtentHeap::allocate(std::uint64_t bytes, std::uint32_t lane, std::uint8_t keeper, const ZoneOrder& order) {
  const std::uint64_t need = round_request(bytes);
  if (need == 0) return nullptr;
  Extent* block = lane == 0 ? nullptr : lanes_[lane - 1]->bins.pick(need, policy_.candidates);
  if (block == nullptr ||
      (!order.lane_first && block->bytes - need > need / kLooseShare)) {  // a tighter hole of everybody's is better than a loose one of the lane
    Extent* shared = pick(need, order);
    if (block == nullptr || (shared != nullptr && shared->bytes < block->bytes)) {
      block = shared;
      lane = 0;
    }
  }
  if (block == nullptr) return nullptr;
  std::uint64_t address = begin_in(*block, need, order);
  if (!order.above && lane == 0 && wants_host_pages(need, order) && !is_aligned(address, kHostPage_bytes)) {
    if (Extent* wider = pick(need + kHostPage_bytes - kBlockAlignment_bytes, order); wider != nullptr) {
      block = wider;
      address = begin_in(*block, need, order);
    }
  }
  const bool is_at_end = address == block->address || address + need == block->address + block->bytes;
  block = is_at_end ? cut_off(block, address, need, keeper) : cut_out(block, address, need, keeper);
  block->birth = ++births_;
  block->state = ExtentState::live;
  block->site = 0;
  block->flags = 0;
  block->requested_bytes = 0;
  block->buffer_id = 0;
  block->allocated_ticks = 0;
  return block;
}

ExtentHeap::Fit ExtentHeap::fit(std::uint64_t bytes, const ZoneOrder& order) const noexcept {
  const std::uint64_t need = round_request(bytes);
  const Extent* hole = pick(need, order);
  if (hole == nullptr) return {nullptr, 0};
  return {hole, begin_in(*hole, need, order)};
}

/// `extent` takes in the hole behind it. Where `extent` is in a bin, the caller lists it anew under its new size.
void ExtentHeap::absorb_next(Extent* extent) noexcept {
  unlist(extent->next);
  join(extent);
}

void ExtentHeap::join(Extent* extent) noexcept {
  Extent* gone = extent->next;
  pages(extent->region).remove(gone);
  extent->bytes += gone->bytes;
  extent->next = gone->next;
  extent->next_is_free = gone->next_is_free;
  if (gone->next != nullptr) gone->next->previous = extent;
  arena_.give_back(gone);
}

/// The hole before `extent`, which is in no bin, takes it in. Returns the hole.
Extent* ExtentHeap::absorb_into_previous(Extent* extent) noexcept {
  Extent* hole = extent->previous;
  pages(extent->region).remove(extent);
  hole->next = extent->next;
  hole->next_is_free = extent->next_is_free;
  if (extent->next != nullptr) {
    extent->next->previous = hole;
    extent->next->previous_is_free = true;
  }
  resize(hole, hole->address, hole->bytes + extent->bytes);
  arena_.give_back(extent);
  return hole;
}

/// The hole behind `extent`, which is in no bin, takes it in. Returns the hole.
Extent* ExtentHeap::absorb_into_next(Extent* extent) noexcept {
  Extent* hole = extent->next;
  pages(extent->region).remove(hole);
  pages(extent->region).replace(extent, hole);
  hole->previous = extent->previous;
  hole->previous_is_free = extent->previous_is_free;
  if (extent->previous != nullptr) {
    extent->previous->next = hole;
    extent->previous->next_is_free = true;
  } else {
    extent->region->first = hole;
  }
  resize(hole, extent->address, hole->bytes + extent->bytes);
  arena_.give_back(extent);
  return hole;
}

Extent* ExtentHeap::free(Extent* extent, std::uint32_t lane) noexcept {
  count(extent->region, static_cast<std::int64_t>(extent->bytes), lane);
  if (lane != 0) take_neighbours(*extent, lane);
  const bool joins_next = extent->next_is_free && extent->next->lane == lane;
  if (extent->previous_is_free && extent->previous->lane == lane) {
    if (joins_next) absorb_next(extent);
    return absorb_into_previous(extent);
  }
  if (joins_next) return absorb_into_next(extent);
  extent->state = ExtentState::free;
  extent->lane = lane;
  note_to_neighbours(*extent, true);
  list(extent);
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
  const bool is_block = extent != nullptr && (extent->state == ExtentState::live || extent->state == ExtentState::deferred);
  return is_block ? extent : nullptr;
}

Extent* ExtentHeap::find_containing(std::uint64_t address) const noexcept {
  const RegionRecord* region = regions_.find(address);
  return region != nullptr ? region->pages.find_containing(address) : nullptr;
}

std::uint64_t ExtentHeap::metadata_bytes() const { return sizeof(ExtentHeap) + arena_.metadata_bytes() + regions_.metadata_bytes(); }

}  // namespace cupool::heap
