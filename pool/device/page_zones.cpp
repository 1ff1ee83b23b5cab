// PageHeap: which addresses a block may have, and where new pages go. See page_heap.hpp.
//
// A handle moves whole or not at all, so one small block that stays keeps all of it from everybody. While much is left handles are large, and blocks
// below certain parts of what is left (kZoneShare), and of certain sizes (kZoneEnd_bytes), get addresses of their own, where handles are no larger
// than what the zone has: all that such blocks can pin is about what they once needed. With less left, handles are smaller, and such blocks may lie
// among the others; where nothing is left everybody takes any hole. Once handles are single pages, small blocks get pages of their own instead
// (fit_policy), as they do inside each zone. The first thirty-second of everything that the pool takes is one zone: each zone by itself grows until
// it has met the worst moment of a step, and more often late.
#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;

namespace {
constexpr std::uint64_t kSmallReservationShare = 8;
}  // namespace

/// The zone where new pages for such a block are mapped.
unsigned PageHeap::zone_of(std::uint64_t bytes, std::uint64_t room_bytes) const {
  const bool is_plenty = mapped_bytes() < (room_bytes + mapped_bytes()) / kZonedFromShare;
  if (most_addresses_bytes_ < total_bytes_ / kSmallReservationShare) return 0;  // each zone would need addresses of its own
  if (is_plenty || room_bytes < kZonedFrom_pages * memory_->granularity_bytes()) return 0;
  unsigned zone = kZones - 1;
  while (zone != 0 && (bytes >= kZoneEnd_bytes[zone] || bytes * kZoneShare[zone] >= room_bytes)) --zone;
  return zone;
}

/// The zones to look in: first where the block would lie if much were left, so that what is there stays apart. All of them where nothing is left, for
/// a job that repeats itself or has preallocated (it should not grow for this), and where the caller accepts any.
heap::ZoneOrder PageHeap::zones_for(DeviceState& device, std::uint64_t bytes, bool wants_any) const {
  unsigned first = kZones - 1;
  while (bytes >= kZoneEnd_bytes[first]) --first;
  const auto is_short = [&] { return room_bytes(device) + loose_bytes_ < std::max(memory_->granularity_bytes(), bytes); };
  const bool is_anywhere = wants_any || anywhere_requests_ != 0 || is_preallocated_ || device.repeats_itself() || is_short();
  return {first,
          is_anywhere ? 0 : zone_of(bytes, room_bytes(device)),
          is_anywhere,
          is_preallocated_ ? kPreallocatedPageLevels : 1,
          device.services.exports_ranges.load(std::memory_order_relaxed),
          begins_on_pages()};
}

Extent* PageHeap::allocate(DeviceState& device, const AllocationRequest& request) {
  heap::ZoneOrder order = zones_for(device, request.bytes, request.is_anywhere);
  order.lane_first = request.lane_first;
  Extent* block = heap_.allocate(request.bytes, request.lane, request.keeper, order);
  if (anywhere_requests_ != 0) --anywhere_requests_;
  // What stream-ordered calls ask for is not counted, so such programs keep the larger handles: they need no more memory with them, for half the calls.
  if (request.may_strand || request.stream.identity != 0) return block;
  ++(is_aligned(request.bytes, memory_->granularity_bytes()) ? whole_page_requests_ : other_requests_);
  if (block == nullptr || !strands(device, *block)) return block;
  heap_.free(block);
  return nullptr;
}

std::uint64_t PageHeap::fit_bytes(DeviceState& device, std::uint64_t bytes) const {
  const Extent* hole = heap_.fit(bytes, zones_for(device, bytes)).hole;
  return hole != nullptr ? hole->bytes : 0;
}

/// Bytes of the handles that [address, address + bytes) touches, that are larger than the range, and that lie wholly in `free`.
std::uint64_t PageHeap::occupied_bytes(const PageTable& table, Span free, std::uint64_t address, std::uint64_t bytes) {
  std::uint64_t sum = 0;
  for (std::uint64_t at = address; at < address + bytes;) {
    const MappedHandle handle = table.at(at);
    if (handle.bytes > bytes && handle.address >= free.begin && handle.end() <= free.end) sum += handle.bytes;
    at = handle.end();
  }
  return sum;
}

std::uint64_t PageHeap::occupies_bytes(DeviceState& device, std::uint64_t bytes) const {
  const heap::ExtentHeap::Fit fit = heap_.fit(bytes, zones_for(device, bytes));
  if (fit.hole == nullptr) return 0;
  return occupied_bytes(table_of(*fit.hole), {fit.hole->address, fit.hole->address + fit.hole->bytes}, fit.address, bytes);
}

std::uint64_t PageHeap::occupies_bytes(DeviceState&, const Extent& deferred, std::uint64_t bytes) const {
  const PageTable& table = table_of(deferred);
  const auto is_going = [](const Extent* extent) {
    return extent != nullptr && (extent->state == heap::ExtentState::deferred || extent->state == heap::ExtentState::free);
  };
  const Span touched{table.at(deferred.address).address, table.at(deferred.address + bytes - 1).end()};
  Span free{deferred.address, deferred.address + deferred.bytes};
  for (const Extent* extent = deferred.previous; free.begin > touched.begin && is_going(extent); extent = extent->previous)
    free.begin = extent->address;
  for (const Extent* extent = deferred.next; free.end < touched.end && is_going(extent); extent = extent->next)
    free.end = extent->address + extent->bytes;
  return occupied_bytes(table, free, deferred.address, bytes);
}

/// The window that needs the fewest new pages: behind free memory that ends where vacant addresses begin, or at the beginning of vacant addresses.
PageHeap::Window PageHeap::find_window(std::uint64_t bytes, unsigned zone, Beginning beginning) const {
  Window best;
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  for (Extent* vacant : vacant_) {
    if (vacant->region->zone != zone) continue;
    const bool is_behind_hole = beginning != Beginning::fresh && vacant->previous_is_free && vacant->previous->lane == 0;
    Extent* left = is_behind_hole ? vacant->previous : nullptr;
    const std::uint64_t hole_bytes = left != nullptr ? left->bytes : 0;  // a hole before vacant addresses ends on a page
    const bool is_on_page = beginning == Beginning::on_page && (begins_on_pages() || hole_bytes % page_bytes <= bytes / heap::ZoneOrder::kGapShare);
    const std::uint64_t left_bytes = is_on_page ? align_down(hole_bytes, page_bytes) : hole_bytes;
    if (left_bytes >= bytes) continue;  // possible only when preallocating: it would bring nothing new
    const std::uint64_t need_bytes = align_up(bytes - left_bytes, page_bytes);
    if (vacant->bytes < need_bytes + kLargestHandle_bytes) continue;  // a handle may reach beyond what is needed
    const bool is_better =
        best.vacant == nullptr || need_bytes < best.need_bytes || (need_bytes == best.need_bytes && vacant->address < best.vacant->address);
    if (is_better) best = {left, vacant, need_bytes};
  }
  return best;
}

/// Reserves as many addresses as the device has memory, for zones of small blocks an eighth of that. Where the driver has fewer (the address space of
/// a process may be limited) half of it, and so on, down to what find_window() needs.
PageHeap::Addresses PageHeap::reserve_addresses(DeviceState& device, std::uint64_t bytes, unsigned zone) {
  const std::uint64_t unit_bytes = std::max(kLargestHandle_bytes, memory_->granularity_bytes());
  const std::uint64_t wanted_bytes =
      align_up(std::max(zone == 0 ? total_bytes_ : total_bytes_ / kSmallReservationShare, bytes) + 2 * kLargestHandle_bytes, unit_bytes);
  const std::uint64_t least_bytes = align_up(bytes + kLargestHandle_bytes, memory_->granularity_bytes());
  Addresses got;
  got.bytes = std::max(std::min(wanted_bytes, most_addresses_bytes_), least_bytes);
  const MutexUnlock unlocked(device.lock);
  const RelaxedCaptureMode relaxed(device.driver);
  for (;;) {
    got.code = memory_->reserve(got.bytes, &got.address);
    if (got.code == CUDA_SUCCESS || is_met_natively(got.code)) break;
    got.is_refused = true;
    if (got.bytes == least_bytes) break;
    got.bytes = std::max(align_down(got.bytes / 2, memory_->granularity_bytes()), least_bytes);
  }
  got.is_ours = got.code == CUDA_SUCCESS && is_aligned(got.address, memory_->granularity_bytes()) &&
                device.services.owners.add(got.address, got.bytes, device.ordinal);
  if (got.code == CUDA_SUCCESS && !got.is_ours) memory_->free_addresses(got.address, got.bytes);
  return got;
}

/// Adds one reservation.
Status PageHeap::add_addresses(DeviceState& device, ContextPool& home, std::uint64_t bytes, unsigned zone) {
  const Addresses got = reserve_addresses(device, bytes, zone);
  if (got.is_refused) most_addresses_bytes_ = std::min(most_addresses_bytes_, got.bytes);
  if (!got.is_ours) {  // addresses are out: reuse those that were quarantined longest ago
    const bool has_old = quarantined_.first != nullptr;
    while (quarantined_.first != nullptr && find_window(bytes, zone, Beginning::anywhere).vacant == nullptr) expire(device, true);
    if (has_old) return {};
    note_no_addresses(device, got);
    return as_answer(got.code);
  }
  try {
    vacant_.reserve(vacant_.size() + 1);
    auto region = std::make_unique<PagedRegion>(&home, this, got.address, got.bytes, memory_->granularity_bytes());
    Extent* all = heap_.add_empty_region(got.address, got.bytes, static_cast<RegionInfo*>(region.get()), zone)->first;
    static_cast<void>(region.release());  // owned by the region from here on, and deleted with it
    make_vacant(all);
  } catch (const std::bad_alloc&) {
    device.services.owners.remove(got.address, got.bytes);
    const MutexUnlock unlocked(device.lock);
    memory_->free_addresses(got.address, got.bytes);
    return Error{CUDA_ERROR_OUT_OF_MEMORY, "host memory"};
  }
  return {};
}

}  // namespace cupool::device
