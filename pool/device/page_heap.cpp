// PageHeap: figures, pins, the end of a context, invariants. Supply is in page_supply.cpp, release in page_release.cpp, what reports show in
// page_map.cpp.
#include "pool/device/page_heap.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "pool/device/context_pool.hpp"
#include "pool/driver/handles.hpp"
#include "pool/device/paged_region.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;
using heap::Region;

heap::FitPolicy PageHeap::fit_policy(std::uint64_t page_bytes) {
  heap::FitPolicy policy;
  policy.beside_older_from_bytes = heap::FitPolicy::kNever;
  policy.small_below_bytes = page_bytes / kSmallShare;
  policy.page_bytes = page_bytes;
  policy.wide_bytes = kWide_pages * page_bytes;
  return policy;
}

PageHeap::PageHeap(std::uint64_t device_total_bytes, std::unique_ptr<vmm::VirtualMemory> memory)
    : ExtentAllocator(fit_policy(memory->granularity_bytes()), kZones, &whole_handle_bytes),
      total_bytes_(device_total_bytes),
      memory_(std::move(memory)) {}

/// Frees host memory only: the driver's memory ends with the process.
PageHeap::~PageHeap() {
  heap_.for_each_region([](const Region& region) { delete &paged(region); });
}

/// Counts the driver calls made since the last time.
void PageHeap::charge(DeviceState& device) {
  const vmm::VirtualMemory::Spent spent = memory_->take_spent();
  device.counters().vmm_calls.add(spent.calls);
  device.counters().vmm_ns.add(spent.ns);
}

void PageHeap::pin(DeviceState&, const Extent& extent) {
  PageTable& table = table_of(extent);
  for (std::uint64_t address = extent.address; address < extent.address + extent.bytes;) {
    const MappedHandle handle = table.at(address);
    pinned_handles_ += handle.is_pinned ? 0 : 1;
    table.pin(address);
    address = handle.end();
  }
}

/// Includes what lies free beside the block in the handles that it touches.
std::uint64_t PageHeap::withheld_bytes(const Extent& extent) const {
  const PageTable& table = table_of(extent);
  const std::uint64_t begin = extent.previous_is_free ? extent.previous->address : extent.address;
  const std::uint64_t end = extent.address + extent.bytes + (extent.next_is_free ? extent.next->bytes : 0);
  const std::uint64_t handles_end = table.at(extent.address + extent.bytes - 1).end();
  return std::min(end, handles_end) - std::max(begin, table.at(extent.address).address);
}

std::uint64_t PageHeap::whole_handle_bytes(const Extent& hole) { return table_of(hole).bytes_inside(hole.address, hole.bytes); }

std::uint64_t PageHeap::unpinned_empty_bytes() const {
  if (pinned_handles_ == 0) return empty_bytes();
  std::uint64_t bytes = 0;
  for_each_empty([&](const MappedHandle& handle) {
    bytes += handle.bytes;
    return false;
  });
  return bytes;
}

/// Unpins empty pages. The pages of a block that was exported, whose buffer id was read, or whose copies synchronise are pinned, because something
/// outside may know them (registration caches). After the free of the block they stay in place only as long as other pages will do: natively they
/// would have gone with it, and no request is refused for their sake. False: none was pinned.
bool PageHeap::unpin_empty() {
  if (pinned_handles_ == 0) return false;
  const std::uint64_t before = pinned_handles_;
  heap_.any_hole_largest_first(memory_->granularity_bytes(), [&](Extent* hole) {
    PageTable& table = table_of(*hole);
    table.for_each_inside(hole->address, hole->bytes, [&](const MappedHandle& handle) {
      if (!handle.is_pinned) return;
      table.unpin(handle.address);
      --pinned_handles_;
    });
    return false;
  });
  return pinned_handles_ != before;
}

/// How much one growth brings. While memory is plenty it brings more than the block needs, since one call opens all of it; nothing more where free
/// memory goes back above a threshold. While half of the program's peak is left besides, what waits for the GPU is added: the next steps find it in
/// other places, and need room wherever it is. Rounded to steps larger than a handle, so that a job has some room above its need: with less,
/// identical steps find no hole and grow late.
std::uint64_t PageHeap::ahead_bytes(const DeviceState& device, const Supply& supply) const {
  if (device.services.options.release_threshold_bytes) return 0;
  const std::uint64_t room_bytes = this->room_bytes(device);
  const std::uint64_t of_reserved_bytes = supply.zone_bytes / kAheadOfReserved;
  std::uint64_t bytes = std::min(room_bytes / kAheadShare, of_reserved_bytes);
  if (supply.zone + 1 != kZones && room_bytes > device.peak_live_bytes() / 2) {
    const std::uint64_t waiting_bytes = device.live.counters.deferred_bytes.now();
    const std::uint64_t slack_bytes = std::min(waiting_bytes, std::max(device.peak_live_bytes() / kSlackShare, kLeastSlack_bytes));
    bytes = std::max(bytes, std::min(room_bytes / kSlackShare, of_reserved_bytes + slack_bytes));
  }
  // Handles as small as the block would be many.
  const std::uint64_t few_bytes = kAheadBlocks * std::max(supply.block_bytes, memory_->granularity_bytes());
  bytes = std::min(bytes, few_bytes);
  const std::uint64_t step_bytes =
      std::bit_floor(std::min({kGrowthStep_bytes, few_bytes, room_bytes / kHandleShare, std::max(supply.zone_bytes, supply.need_bytes)}));
  bytes = align_up(std::max(bytes, supply.need_bytes), std::max(step_bytes, memory_->granularity_bytes()));
  return align_down(std::min(bytes, supply.space_bytes() - kLargestHandle_bytes), memory_->granularity_bytes());
}

HeapFigures PageHeap::figures(DeviceState&) const {
  HeapFigures figures;
  figures.region_bytes = mapped_bytes() + loose_bytes_ + moving_loose_bytes_ - leaving_bytes_;
  figures.free_bytes = heap_.free_bytes() + loose_bytes_ + moving_bytes() - leaving_bytes_;
  figures.largest_free_bytes = heap_.largest_free_bytes();
  figures.wholly_free_bytes = empty_bytes() + loose_bytes_;
  figures.inactive_split_bytes = figures.free_bytes - figures.wholly_free_bytes;
  figures.largest_free_remapped_bytes = std::max(figures.largest_free_bytes, figures.wholly_free_bytes);
  return figures;
}

HeapFigures PageHeap::figures_of_all_lanes(DeviceState& device, std::uint64_t least_bytes) const {
  HeapFigures figures = this->figures(device);
  figures.looks += heap_.for_each_lane_run(least_bytes, [&](const Extent& first, std::uint64_t bytes) {
    const PageTable& table = table_of(first);
    figures.largest_free_bytes = std::max(figures.largest_free_bytes, bytes);
    figures.wholly_free_bytes += table.bytes_inside(first.address, bytes);
    for (const Extent* hole = &first; hole != nullptr && hole->address < first.address + bytes; hole = hole->next)
      if (hole->lane == 0) figures.wholly_free_bytes -= table.bytes_inside(hole->address, hole->bytes);
  });
  figures.inactive_split_bytes = figures.free_bytes - figures.wholly_free_bytes;
  figures.largest_free_remapped_bytes = std::max(figures.largest_free_bytes, figures.wholly_free_bytes);
  return figures;
}

void PageHeap::abandon(DeviceState& device, LossVisitor& visitor) {
  while (Region* region = heap_.first_region()) {
    std::unique_ptr<PagedRegion> info(&paged(*region));
    info->next_dead = std::move(dead_);
    info->loose = std::exchange(loose_, {});  // addresses come before handles: where there are any there is a region
    info->reservation = {region->address, region->address + region->bytes};
    dead_ = std::move(info);
    device.note_region(observe::EventKind::region_release, region->address, region->bytes);
    device.services.owners.remove(region->address, region->bytes);
    heap_.abandon_region(region, [&](Extent& extent) { visitor.lost(extent); });
  }
  const std::uint64_t bytes = mapped_bytes() + loose_bytes_;
  device.limit.refund(bytes);
  device.add_reserved(-static_cast<std::int64_t>(bytes));
  device.counters().mapped_bytes.add(-static_cast<std::int64_t>(mapped_bytes()));
  device.counters().quarantined_bytes.add(-static_cast<std::int64_t>(quarantined_bytes_));
  zone_bytes_ = {};
  loose_bytes_ = pinned_handles_ = quarantined_bytes_ = fresh_bytes_ = created_bytes_ = 0;
  quarantined_ = {};
  vacant_.clear();
  is_refused_ = is_preallocated_ = false;
}

bool PageHeap::outlive(DeviceState& device, LossVisitor& visitor, bool also_deferred) {
  bool has_any = false;
  const auto stays = [&](Extent& extent) {
    if (mempool_of(extent) == 0 || (extent.state == ExtentState::deferred && !also_deferred)) return false;
    visitor.stays(extent);
    return has_any = true;
  };
  heap_.reclaim(stays, [&](Extent& extent) { visitor.lost(extent); });
  if (!has_any) abandon(device, visitor);
  whole_page_requests_ = other_requests_ = anywhere_requests_ = moved_at_ = 0;  // the next context's habits are its own
  is_refused_ = is_preallocated_ = false;
  must_ask_ = true;
  return has_any;
}

bool PageHeap::holds_blocks() const {
  return heap_.any_extent([](const Extent& extent) { return extent.state != ExtentState::free && extent.state != ExtentState::absent; });
}

/// Unmaps each run of neighbours with one call; where the driver refuses a run, handle by handle, so that one that stays holds up no other.
bool PageHeap::unmap_all(const PageTable& table) {
  bool is_unmapped = true;
  Span run{};
  std::size_t count = 0;
  const auto end_run = [&] {
    if (count == 0 || insist([&] { return memory_->unmap(run.begin, run.end - run.begin); })) return;
    if (count == 1) is_unmapped = false;
    else
      table.for_each_inside(run.begin, run.end - run.begin, [&](const MappedHandle& one) {
        is_unmapped = insist([&] { return memory_->unmap(one.address, one.bytes); }) && is_unmapped;
      });
  };
  table.for_each([&](const MappedHandle& handle) {
    if (count == 0 || handle.address != run.end) {
      end_run();
      run.begin = handle.address;
      count = 0;
    }
    run.end = handle.end();
    ++count;
  });
  end_run();
  return is_unmapped;
}

/// Natively the memory would have gone with its context. [?] whether the reset of a primary context unmaps it: so errors here mean nothing. Needs no
/// host memory.
void PageHeap::release_abandoned(DeviceState& device) {
  std::unique_ptr<PagedRegion> dead = std::move(dead_);
  if (dead == nullptr) return;
  std::uint64_t released = 0;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    const auto release = [&](CUmemGenericAllocationHandle handle) { released += insist([&] { return memory_->release(handle); }) ? 1 : 0; };
    while (dead != nullptr) {
      const bool is_unmapped = unmap_all(dead->table);
      dead->table.for_each([&](const MappedHandle& handle) { release(handle.handle); });
      for (const Handle& handle : dead->loose) release(handle.id);
      if (is_unmapped) insist([&] { return memory_->free_addresses(dead->reservation.begin, dead->reservation.end - dead->reservation.begin); });
      dead = std::move(dead->next_dead);
    }
  }
  device.counters().handles_released.add(static_cast<std::int64_t>(released));
  charge(device);
}

std::string PageHeap::check_region(const Region& region, std::array<std::uint64_t, kZones>& mapped_bytes, std::uint64_t* quarantined_bytes) const {
  const PageTable& table = paged(region).table;
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  if (std::string broken = table.check(); !broken.empty()) return broken;
  table.for_each([&](const MappedHandle& handle) { mapped_bytes[region.zone] += handle.bytes; });
  std::string broken;
  heap_.for_each_extent(region, [&](const Extent& extent) {
    const bool is_absent = extent.state == ExtentState::absent;
    if (is_absent && (!is_aligned(extent.address, page_bytes) || !is_aligned(extent.bytes, page_bytes)))
      broken = "addresses without memory do not begin and end with a page";
    if (is_absent && (extent.flags & kQuarantinedFlag) != 0) *quarantined_bytes += extent.bytes;
    if (is_absent && (extent.flags & kLostFlag) != 0) return;
    for (std::uint64_t address = align_down(extent.address, page_bytes); address < extent.address + extent.bytes; address += page_bytes)
      if ((table.at(address).bytes != 0) == is_absent)
        broken = is_absent ? "a page lies at addresses that should have none" : "a block or a hole lies where no page is mapped";
  });
  return broken;
}

std::string PageHeap::check(DeviceState& device) const {
  std::string broken = heap_.check();
  if (supplying_ || releasing_ != 0) return broken;  // what a thread has in the driver is on no list
  std::array<std::uint64_t, kZones> mapped_bytes{};
  std::uint64_t quarantined_bytes = 0;
  heap_.for_each_region([&](const Region& region) {
    if (broken.empty()) broken = check_region(region, mapped_bytes, &quarantined_bytes);
    if (broken.empty() && device.services.owners.find(region.address) == OwnerMap::kNobody) broken = "a region's address does not lead to its device";
  });
  std::uint64_t loose_bytes = 0;
  for (const Handle& handle : loose_) loose_bytes += handle.bytes;
  if (!broken.empty()) return broken;
  if (mapped_bytes != zone_bytes_) return "a zone's bytes are not the sum of the handles that are mapped there";
  if (loose_bytes != loose_bytes_) return "loose bytes are not the sum of the handles that are mapped nowhere";
  if (quarantined_bytes != quarantined_bytes_) return "quarantined bytes are not the sum of the quarantined addresses";
  if (broken = check_addresses(); !broken.empty()) return broken;
  return check_handles();
}

/// Each range of addresses without memory is of one kind, and on the list of that kind.
std::string PageHeap::check_addresses() const {
  std::string broken;
  std::size_t vacant = 0;
  std::size_t quarantined = 0;
  heap_.for_each_region([&](const Region& region) {
    bool follows_vacant = false;
    heap_.for_each_extent(region, [&](const Extent& extent) {
      const bool is_absent = extent.state == ExtentState::absent;
      const bool is_vacant = is_absent && (extent.flags & ~kListedFlag) == kVacantFlag;
      if (is_absent && !is_vacant && extent.flags != kQuarantinedFlag && extent.flags != kLostFlag)
        broken = "addresses without memory are neither vacant nor quarantined nor lost";
      if (is_vacant && follows_vacant) broken = "two vacant ranges lie beside each other";
      vacant += is_vacant && (extent.flags & kListedFlag) != 0 ? 1 : 0;
      if (is_vacant && is_long(extent) != ((extent.flags & kListedFlag) != 0))
        broken = "vacant addresses are listed that are too short for memory, or others are not";
      quarantined += is_absent && extent.flags == kQuarantinedFlag ? 1 : 0;
      follows_vacant = is_vacant;
    });
  });
  if (!broken.empty()) return broken;
  if (vacant != vacant_.size()) return "vacant addresses are not those that are listed";
  for (const Extent* extent : vacant_)
    if (extent->state != ExtentState::absent || extent->flags != (kVacantFlag | kListedFlag)) return "addresses are listed as vacant that are not";
  for (const Extent* extent = quarantined_.first; extent != nullptr; extent = extent->bin_next) {
    if (quarantined-- == 0 || extent->flags != kQuarantinedFlag) return "addresses are listed as quarantined that are not";
    if (extent->bin_next == nullptr ? extent != quarantined_.last : extent->bin_next->buffer_id < extent->buffer_id)
      return "quarantined addresses are not listed oldest first";
  }
  return quarantined == 0 ? "" : "quarantined addresses are on no list";
}

/// Each physical handle is in one place.
std::string PageHeap::check_handles() const {
  std::vector<CUmemGenericAllocationHandle> ids;
  std::uint64_t pinned = 0;
  for_each_mapped([&](const MappedHandle& handle) {
    ids.push_back(handle.handle);
    pinned += handle.is_pinned ? 1 : 0;
  });
  for (const Handle& handle : loose_) ids.push_back(handle.id);
  std::sort(ids.begin(), ids.end());
  if (std::adjacent_find(ids.begin(), ids.end()) != ids.end()) return "a physical handle is in two places";
  if (pinned != pinned_handles_) return "pinned handles are not those that are counted";
  return loose_promised_ == 0 ? "" : "room is kept for handles that nobody brings";
}

}  // namespace cupool::device
