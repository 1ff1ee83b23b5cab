// PageHeap: the address map, and what lies in each physical handle, for reports. See page_heap.hpp.
#include <algorithm>

#include "pool/device/context_pool.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;
using heap::Region;
using observe::HandleRow;
using observe::HandleState;
using observe::HandleTier;

namespace {

/// The tier of that handle size, inserted in order at need.
HandleTier& tier_of(std::vector<HandleTier>& tiers, std::uint64_t handle_bytes) {
  const auto at = std::lower_bound(tiers.begin(), tiers.end(), handle_bytes,
                                   [](const HandleTier& tier, std::uint64_t bytes) { return tier.handle_bytes < bytes; });
  if (at != tiers.end() && at->handle_bytes == handle_bytes) return *at;
  HandleTier tier;
  tier.handle_bytes = handle_bytes;
  return *tiers.insert(at, tier);
}

void count(std::vector<HandleTier>& tiers, const HandleRow& row) {
  HandleTier& tier = tier_of(tiers, row.bytes);
  ++tier.handles;
  tier.mapped_bytes += row.bytes;
  if (row.state == HandleState::empty) tier.empty_bytes += row.bytes;
  else tier.stranded_bytes += row.free_bytes;
  if (row.state == HandleState::pinned) tier.pinned_bytes += row.bytes;
}

/// The state of a handle that lies wholly in one extent that is no hole.
HandleState state_in(const Extent& extent) {
  if (extent.state != ExtentState::absent) return HandleState::used;
  return (extent.flags & kLostFlag) != 0 ? HandleState::lost : HandleState::moving;
}

}  // namespace

/// `first`: the extent that contains the handle's first byte.
HandleRow PageHeap::row_of(const MappedHandle& handle, const Extent* first) {
  HandleRow row{handle.address, handle.bytes, 0, HandleState::used};
  bool is_hole = true;
  for (const Extent* extent = first; extent != nullptr && extent->address < handle.end(); extent = extent->next) {
    const bool is_free = extent->state == ExtentState::free;
    is_hole = is_hole && is_free;
    if (!is_free && !is_moving(*extent)) continue;
    row.free_bytes += std::min(extent->address + extent->bytes, handle.end()) - std::max(extent->address, handle.address);
  }
  if (is_hole) row.state = HandleState::empty;
  else if (first->address + first->bytes >= handle.end() && first->state != ExtentState::free) row.state = state_in(*first);
  if (handle.is_pinned && !is_hole) row.state = HandleState::pinned;
  return row;
}

void PageHeap::append_pages(observe::PageMap& out) const {
  out.page_bytes = memory_->granularity_bytes();
  heap_.for_each_region([&](const Region& region) {
    observe::ReservationRow reservation{region.address, region.bytes, 0, 0};
    heap_.for_each_extent(region, [&](const Extent& extent) {
      if (extent.state != ExtentState::absent) return;
      if ((extent.flags & kVacantFlag) != 0) reservation.vacant_bytes += extent.bytes;
      if ((extent.flags & kQuarantinedFlag) != 0) reservation.quarantined_bytes += extent.bytes;
    });
    out.reservations.push_back(reservation);
    const Extent* extent = region.first;
    paged(region).table.for_each([&](const MappedHandle& handle) {
      while (extent->address + extent->bytes <= handle.address) extent = extent->next;
      if (is_leaving(*extent)) return;
      out.handles.push_back(row_of(handle, extent));
      count(out.tiers, out.handles.back());
    });
  });
  for (const std::vector<Handle>* list : {&loose_, &moving_loose_}) {
    for (const Handle& handle : *list) {
      HandleTier& tier = tier_of(out.tiers, handle.bytes);
      ++tier.handles;
      tier.unmapped_bytes += handle.bytes;
    }
  }
}

/// Each run of mapped addresses is a region of the map; addresses without memory are in no region, and no hole.
void PageHeap::append_map(DeviceState&, const TickConverter& time, observe::DeviceSnapshot& out) const {
  heap_.for_each_region([&](const Region& region) {
    const auto context = reinterpret_cast<std::uint64_t>(paged(region).home->context);
    bool is_open = false;
    heap_.for_each_extent(region, [&](const Extent& extent) {
      if (extent.state == ExtentState::absent && !is_moving(extent)) {
        is_open = false;
        return;
      }
      if (!is_open) out.regions.push_back({extent.address, 0, context});
      is_open = true;
      out.regions.back().bytes += extent.bytes;
      append_block(extent, static_cast<std::uint32_t>(out.regions.size() - 1), time, out);
    });
  });
  append_pages(out.pages);
}

namespace {

/// Sums free bytes in handles that hold something else as well: in the smallest pages that may move, which of these are whole, and what must stay
/// where it is.
class Stranded {
 public:
  explicit Stranded(std::uint64_t page_bytes) : page_bytes_(page_bytes) {}

  /// Handles that a hole of lane 0 covers wholly are not stranded; the failed request has emptied the lanes of streams as far as it could.
  void take(const Extent& hole, const PageTable& table) {
    whole_page_bytes_ += bytes_in_whole_pages(hole.address, hole.bytes, page_bytes_);
    const std::uint64_t end = hole.address + hole.bytes;
    const auto take_part = [&](const MappedHandle& handle) {
      const std::uint64_t part_bytes = std::min(handle.end(), end) - std::max(handle.address, hole.address);
      bytes_ += part_bytes;
      if (handle.is_pinned) pinned_bytes_ += part_bytes;
      else largest_handle_bytes_ = std::max(largest_handle_bytes_, handle.bytes);
    };
    const MappedHandle head = table.at(hole.address);
    const MappedHandle tail = table.at(end - 1);
    if (head.address < hole.address || head.end() > end) take_part(head);
    if (tail.address != head.address && tail.end() > end) take_part(tail);
    if (hole.lane != 0) table.for_each_inside(hole.address, hole.bytes, take_part);
  }

  void add_to(observe::OomEvidence& evidence) const {
    evidence.whole_page_bytes = evidence.whole_page_bytes.value_or(0) + whole_page_bytes_;
    evidence.page_bytes = page_bytes_;
    evidence.stranded_bytes = evidence.stranded_bytes.value_or(0) + bytes_;
    evidence.pinned_free_bytes = evidence.pinned_free_bytes.value_or(0) + pinned_bytes_;
    evidence.stranding_handle_bytes = std::max(evidence.stranding_handle_bytes.value_or(0), largest_handle_bytes_);
  }

 private:
  std::uint64_t page_bytes_;
  std::uint64_t whole_page_bytes_ = 0;
  std::uint64_t bytes_ = 0;
  std::uint64_t pinned_bytes_ = 0;  ///< of these, in handles that must not move
  std::uint64_t largest_handle_bytes_ = 0;
};

}  // namespace

HeapFigures PageHeap::survey(DeviceState& device, observe::OomEvidence& evidence) const {
  HeapFigures figures = this->figures(device);
  figures.wholly_free_bytes = loose_bytes_;
  Stranded stranded(memory_->granularity_bytes());
  heap_.for_each_region([&](const Region& region) {
    const PageTable& table = paged(region).table;
    heap_.for_each_run(region, [&](const Extent& first, std::uint64_t bytes) {
      figures.largest_free_bytes = std::max(figures.largest_free_bytes, bytes);
      figures.wholly_free_bytes += table.bytes_inside(first.address, bytes);
      for (const Extent* extent = &first; extent != nullptr && extent->address < first.address + bytes; extent = extent->next)
        if (extent->state == ExtentState::free) stranded.take(*extent, table);
    });
  });
  figures.largest_free_remapped_bytes = std::max(figures.largest_free_bytes, figures.wholly_free_bytes);
  evidence.can_remap = true;
  stranded.add_to(evidence);
  *evidence.whole_page_bytes += loose_bytes_;
  return figures;
}

}  // namespace cupool::device
