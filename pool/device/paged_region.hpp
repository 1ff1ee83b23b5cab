// PagedRegion: one reservation of addresses of a PageHeap, with the flags of its absent extents, and the records of one supply. For PageHeap only.
#pragma once

#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/device/device_allocator.hpp"
#include "pool/device/fence.hpp"
#include "pool/device/page_heap.hpp"

namespace cupool::device {

/// Extent::flags of an absent extent.
inline constexpr std::uint8_t kVacantFlag = 1;       ///< may get memory
inline constexpr std::uint8_t kQuarantinedFlag = 2;  ///< had memory, and may not get any yet
inline constexpr std::uint8_t kLostFlag = 4;         ///< the driver would not unmap it: it stays as it is until the context ends
inline constexpr std::uint8_t kMovingFlag = 8;       ///< has memory that nobody uses, and that a thread has in the driver
inline constexpr std::uint8_t kListedFlag = 16;      ///< vacant, and long enough to be a window
inline constexpr std::uint8_t kLeavingFlag = 32;     ///< moving, back to the driver: so it is in no figure and in no map

/// Reported as free, although nothing is served from it just now.
inline bool is_moving(const heap::Extent& extent) {
  return extent.state == heap::ExtentState::absent && (extent.flags & (kMovingFlag | kLeavingFlag)) == kMovingFlag;
}
inline bool is_leaving(const heap::Extent& extent) { return extent.state == heap::ExtentState::absent && (extent.flags & kLeavingFlag) != 0; }

struct PageHeap::PagedRegion : RegionInfo {
  PagedRegion(ContextPool* pool, PageHeap* heap, std::uint64_t address, std::uint64_t bytes, std::uint64_t page_bytes)
      : RegionInfo{pool, heap, 0, false, true}, table(address, bytes, page_bytes) {}
  PageTable table;
  // What an ended context left behind, to be returned in this order: mappings, their handles, the reservation.
  Span reservation{};
  std::vector<Handle> loose;  ///< the loose handles of the heap; kept with one of its regions
  std::unique_ptr<PagedRegion> next_dead;
};

/// The program's own call would have met it too: an error of earlier work, or the end of its context or of the driver.
inline bool is_met_natively(CUresult code) { return is_of_earlier_work(code) || is_context_gone(code) || code == CUDA_ERROR_DEINITIALIZED; }

/// What a driver error means to the program: anything else about pages does not concern it, and the ladder goes on.
inline Error as_answer(CUresult code) {
  if (is_met_natively(code)) return {code, "cuMemCreate"};
  return {CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate"};
}

/// The result of one more reservation.
struct PageHeap::Addresses {
  CUresult code = CUDA_SUCCESS;  ///< the driver's last answer
  CUdeviceptr address = 0;
  std::uint64_t bytes = 0;  ///< what the driver was last asked for
  bool is_refused = false;  ///< it did not give what it was first asked for
  bool is_ours = false;
};

/// One miss: what it needs, and what was gathered for it. In bytes unless it says otherwise.
struct PageHeap::Supply {
  Source source = Source::create;
  unsigned zone = 0;
  std::uint64_t block_bytes = 0;   ///< the block that it is for
  std::uint64_t need_bytes = 0;    ///< pages that must come, behind `left`
  std::uint64_t wanted_bytes = 0;  ///< at least need_bytes: what is taken ahead comes only if the driver gives it
  heap::Extent* left = nullptr;    ///< free memory that the block will begin in; taken out of the heap meanwhile
  heap::Extent* fresh = nullptr;   ///< the absent extent of need_bytes where pages are mapped
  heap::Extent* rest = nullptr;    ///< the vacant addresses behind it, if any
  std::vector<Run> runs;
  std::vector<Handle> handles;     ///< to be mapped, in this order
  std::uint64_t handle_bytes = 0;  ///< Σ handles
  std::uint64_t zone_bytes = 0;    ///< memory that the zone has
  std::uint64_t all_bytes = 0;     ///< memory that the heap has, or may get
  bool is_of_whole_pages = false;  ///< the program asks almost only for whole pages
  std::uint64_t created_bytes = 0;
  std::uint64_t created_handles = 0;
  std::uint64_t room_bytes = 0;    ///< what the driver is believed to have left
  std::size_t promised = 0;        ///< handles that may become loose without failing
  std::size_t mapped_handles = 0;  ///< so many of `handles`, from the first on, are mapped
  std::uint64_t mapped_bytes = 0;
  bool is_charged = false;  ///< the limit allowed the last handle that was to be created
  bool is_accessible = false;
  bool is_stuck = false;  ///< handles are mapped but not accessible, and the driver would not unmap them
  bool is_refused = false;
  Handle cracked{};  ///< a handle of one of the runs that is not to be mapped, but released and created again as `pieces`; no bytes: none
  std::vector<std::uint64_t> pieces;  ///< bytes of each, in the order in which they are to lie
  bool is_cracked = false;            ///< it is released
  CUresult error = CUDA_SUCCESS;      ///< the first error that was not out of memory
  bool moves() const { return source == Source::move || source == Source::crack; }
  std::uint64_t missing_bytes() const { return saturating_sub(wanted_bytes, handle_bytes); }
  /// From the end of the handles so far to where such a block would end, if blocks came one behind the other.
  std::uint64_t to_block_end_bytes() const {
    return handle_bytes < need_bytes ? need_bytes - handle_bytes : block_bytes - (handle_bytes - need_bytes) % block_bytes;
  }
  /// From the first page to where the next such block ends, past the handles so far, wherever in `left` the first one begins.
  std::uint64_t next_block_end_bytes() const {
    const std::uint64_t before_bytes = left != nullptr ? std::min(left->bytes, block_bytes) : 0;
    return ((handle_bytes + before_bytes) / block_bytes + 1) * block_bytes - before_bytes;
  }
  bool is_enough(std::uint64_t bytes) const { return bytes >= need_bytes; }
  std::uint64_t space_bytes() const { return fresh->bytes + (rest != nullptr ? rest->bytes : 0); }
};

inline PageHeap::PagedRegion& PageHeap::paged(const heap::Region& region) {
  return *static_cast<PagedRegion*>(static_cast<RegionInfo*>(region.owner));
}
inline PageTable& PageHeap::table_of(const heap::Extent& extent) { return paged(*extent.region).table; }

/// Lets other threads run until `is_done()`: true. False when one of them is stalled, or they take turns for too long.
template <class Done> bool PageHeap::await(DeviceState& device, Done&& is_done) {
  constexpr std::uint64_t kFirstWait_ns = 10'000;
  constexpr std::uint64_t kLongestWait_ns = 1'000'000;
  Clock& clock = device.services.clock;
  std::uint64_t pause_ns = kFirstWait_ns;
  std::uint64_t until_ns = 0;
  while (!is_done()) {
    const std::uint64_t now_ns = clock.now_ns();
    if (until_ns == 0) until_ns = now_ns + kPatience_ns;
    if (now_ns >= until_ns || is_stalled(device)) return false;
    const MutexUnlock unlocked(device.lock);
    clock.pause(pause_ns);
    pause_ns = std::min(2 * pause_ns, kLongestWait_ns);
  }
  return true;
}

/// Calls `visit(MappedHandle)` for each mapped handle, by region and address.
template <class F> void PageHeap::for_each_mapped(F&& visit) const {
  heap_.for_each_region([&](const heap::Region& region) { paged(region).table.for_each(visit); });
}

/// Calls `visit(MappedHandle)` for each handle that lies wholly in a hole of lane 0 and is not pinned (unpin_empty), from the largest holes on, or
/// from the smallest, until it returns true.
template <class F> void PageHeap::for_each_empty(F&& visit, Holes first) const {
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  const auto visit_inside = [&](heap::Extent* hole) {
    return table_of(*hole).any_inside(hole->address, hole->bytes, [&](const MappedHandle& handle) { return !handle.is_pinned && visit(handle); });
  };
  if (first == Holes::large) heap_.any_hole_largest_first(page_bytes, visit_inside);
  else heap_.any_hole_smallest_first(page_bytes, visit_inside);
}

}  // namespace cupool::device
