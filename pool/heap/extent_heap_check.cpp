// ExtentHeap::check: every invariant of the heap, each as a sentence that is true when it is broken.
#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"

namespace cupool::heap {

namespace {
bool same_lane(const Extent& hole, const Extent* next) { return next != nullptr && next->state == ExtentState::free && next->lane == hole.lane; }
bool is_free(const Extent* extent) { return extent != nullptr && extent->state == ExtentState::free; }
}  // namespace

std::string ExtentHeap::check_links(const Region& region, const Extent& extent) const {
  if (extent.region != &region) return "an extent names another region than the one that lists it";
  if (extent.bytes == 0) return "an extent is empty";
  if (!is_aligned(extent.bytes, kBlockAlignment_bytes)) return "an extent's size is no multiple of 512 bytes";
  if (extent.next != nullptr && extent.next->previous != &extent) return "an extent's next neighbour does not link back to it";
  if (extent.next != nullptr && extent.next->address != extent.address + extent.bytes)
    return "an extent does not end where its next neighbour begins";
  if (extent.next == nullptr && extent.address + extent.bytes != region.address + region.bytes)
    return "the last extent does not end where its region ends";
  if (extent.state == ExtentState::free && same_lane(extent, extent.next)) return "two neighbouring extents are both free in one lane";
  if (extent.previous_is_free != is_free(extent.previous)) return "an extent is wrong about whether its previous neighbour is free";
  if (extent.next_is_free != is_free(extent.next)) return "an extent is wrong about whether its next neighbour is free";
  if (pages(&region).find(extent.address) != &extent) return "the page index does not find an extent by its base";
  if (pages(&region).find_containing(extent.address) != &extent) return "the page index does not find an extent by its first byte";
  if (pages(&region).find_containing(extent.address + extent.bytes - 1) != &extent) return "the page index does not find an extent by its last byte";
  if (pages(&region).find_containing(extent.address + extent.bytes / 2) != &extent)
    return "the page index does not find an extent by a byte inside it";
  return {};
}

std::string ExtentHeap::check_region(const Region& region, Tally* tally) const {
  if (region.zone >= zones_.size()) return "a region is in a zone that there is not";
  if (region.first == nullptr || region.first->address != region.address) return "a region's first extent does not begin where the region begins";
  if (region.first->previous != nullptr) return "a region's first extent has a previous neighbour";
  std::uint64_t free_bytes = 0;
  std::uint64_t lane_bytes = 0;
  for (const Extent* extent = region.first; extent != nullptr; extent = extent->next) {
    if (std::string broken = check_links(region, *extent); !broken.empty()) return broken;
    ++tally->extents;
    if (extent->state != ExtentState::free) continue;
    if (extent->lane >= tally->holes.size()) return "a hole is in a lane that there is not";
    free_bytes += extent->bytes;
    if (extent->lane != 0) lane_bytes += extent->bytes;
    ++tally->holes[extent->lane];
    if (extent->lane == 0) ++tally->zone_holes[region.zone];
    if (extent->lane == 0 && get_whole_bytes_ != nullptr) tally->whole_bytes += whole_bytes_of(*extent);
    tally->lane_bytes[extent->lane] += extent->bytes;
  }
  if (lane_bytes != region.lane_bytes) return "a region's lane bytes are not the sum of its free extents in lanes";
  if (free_bytes != region.free_bytes) return "a region's free bytes are not the sum of its free extents";
  ++tally->regions;
  tally->region_bytes += region.bytes;
  tally->free_bytes += free_bytes;
  if (is_wholly_free(region)) tally->wholly_free_bytes += region.bytes;
  if (free_bytes == region.bytes) tally->blockless_bytes += region.bytes;
  return pages(&region).check();
}

std::string ExtentHeap::check_bins(const SizeBins& bins, std::uint32_t lane, std::uint64_t holes) const {
  std::uint64_t binned = 0;
  std::uint64_t largest_bytes = 0;
  for (unsigned row = 0; row < SizeBins::kRows; ++row) {
    for (unsigned column = 0; column < SizeBins::kDivisions; ++column) {
      const Extent* previous = nullptr;
      for (const Extent* extent = bins.head({row, column}); extent != nullptr; extent = extent->bin_next) {
        if (extent->state != ExtentState::free) return "a bin lists an extent that is not free";
        if (extent->lane != lane) return "a bin lists an extent of another lane";
        if (extent->bin_previous != previous) return "a bin's list does not link back";
        if (SizeBins::slot_of(extent->bytes) != SizeBins::Slot{row, column}) return "an extent is in a bin of another size";
        if (++binned > holes) return "the bins list more extents than are free";
        if (extent->bytes > largest_bytes) largest_bytes = extent->bytes;
        previous = extent;
      }
    }
  }
  if (binned != holes) return "a free extent is in no bin";
  if (largest_bytes != bins.largest_bytes()) return "the largest free extent is not the one that the bins remember";
  return bins.check();
}

std::string ExtentHeap::check() const {
  if (std::string broken = regions_.check(); !broken.empty()) return broken;
  Tally tally{};
  tally.holes.resize(lanes_.size() + 1);
  tally.lane_bytes.resize(lanes_.size() + 1);
  tally.zone_holes.resize(zones_.size());
  std::string broken;
  for_each_region([&](const Region& region) {
    if (broken.empty()) broken = check_region(region, &tally);
  });
  if (!broken.empty()) return broken;
  if (tally.regions != regions_.size()) return "the region table does not visit every region";
  if (tally.extents != arena_.in_use()) return "extents in use are not the extents of all regions";
  if (tally.region_bytes != region_bytes_) return "the heap's bytes are not the sum of its regions";
  if (tally.free_bytes != free_bytes_) return "the heap's free bytes are not the sum of its free extents";
  if (tally.wholly_free_bytes != wholly_free_bytes_) return "the wholly free bytes are not those of the regions with nothing in them";
  if (tally.blockless_bytes != blockless_bytes_) return "the bytes without a block are not those of the regions with nothing but holes in them";
  if (tally.whole_bytes != whole_bytes_) return "the bytes of what goes only whole are not the sum of what everybody's holes have of it";
  for (std::size_t zone = 0; broken.empty() && zone < zones_.size(); ++zone) broken = check_bins(zones_[zone], 0, tally.zone_holes[zone]);
  for (std::uint32_t lane = 1; broken.empty() && lane <= lanes_.size(); ++lane) {
    broken = check_bins(lanes_[lane - 1]->bins, lane, tally.holes[lane]);
    if (tally.lane_bytes[lane] != lanes_[lane - 1]->bytes) return "a lane's bytes are not the sum of its holes";
    if (!lanes_[lane - 1]->in_use && tally.holes[lane] != 0) return "a lane that nobody uses has holes";
  }
  return broken;
}

}  // namespace cupool::heap
