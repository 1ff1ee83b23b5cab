// PageHeap: returning empty pages to the driver, and the quarantine of their addresses. See page_heap.hpp.
#include <algorithm>
#include <functional>

#include "pool/device/context_pool.hpp"
#include "pool/device/freeing_in_order.hpp"
#include "pool/driver/handles.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;

/// Takes empty handles out of the holes, as runs of neighbours: at least `wanted_bytes` (`at_most`: at most), or all there are.
void PageHeap::take_empty(std::vector<Run>& runs, std::uint64_t wanted_bytes, bool at_most) {
  std::uint64_t seen_bytes = 0;
  std::vector<MappedHandle> found;
  const auto look = [&] {
    std::uint64_t found_bytes = 0;
    found.clear();
    for_each_empty([&](const MappedHandle& handle) {
      seen_bytes += handle.bytes;
      if (at_most && handle.bytes > wanted_bytes - found_bytes) return false;
      found.push_back(handle);
      found_bytes += handle.bytes;
      return found_bytes >= wanted_bytes;
    });
  };
  look();
  if (seen_bytes < wanted_bytes && unpin_empty()) look();
  take_runs(runs, found);
}

/// Precondition: `found` are empty handles. Neighbours lie in one hole even where reservations adjoin, because the last page of a reservation is
/// never mapped (find_window). Throws std::bad_alloc with nothing taken.
void PageHeap::take_runs(std::vector<Run>& runs, const std::vector<MappedHandle>& found) {
  try {
    for (std::size_t first = 0; first < found.size();) {
      std::size_t last = first + 1;
      while (last < found.size() && found[last].address == found[last - 1].end()) ++last;
      Run run;
      for (std::size_t i = first; i < last; ++i) run.handles.push_back({found[i].handle, found[i].bytes});
      runs.push_back(std::move(run));
      const std::uint64_t address = found[first].address;
      runs.back().extent = heap_.take_out(heap_.find_containing(address), address, found[last - 1].end() - address);
      begin_moving(runs.back().extent);
      first = last;
    }
  } catch (...) {
    for (const Run& run : runs)
      if (run.extent != nullptr) give_back(run);
    runs.clear();
    throw;
  }
}

/// Undoes the taking of a run.
void PageHeap::give_back(const Run& run) noexcept {
  end_moving(run.extent);
  heap_.free(run.extent);
}

void PageHeap::unmap_runs(DeviceState& device, std::vector<Run>& runs, CUresult* first_error) {
  if (runs.empty() || !in_order::is_untouched(device)) return;
  for (Run& run : runs) {
    const CUresult code = memory_->unmap(run.extent->address, run.extent->bytes);
    run.is_unmapped = code == CUDA_SUCCESS;
    if (!run.is_unmapped && *first_error == CUDA_SUCCESS) *first_error = code;
  }
}

/// Unmapped addresses are quarantined; what the driver kept is free again where it was.
void PageHeap::book_runs(DeviceState& device, const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    const bool was_leaving = is_leaving(*run.extent);
    const auto bytes = static_cast<std::int64_t>(run.extent->bytes);
    if (was_leaving) leaving_bytes_ -= run.extent->bytes;
    device.counters().mapped_bytes.add((was_leaving ? bytes : 0) - (run.is_unmapped ? bytes : 0));
    if (!run.is_unmapped) {
      give_back(run);
      continue;
    }
    end_moving(run.extent);
    device.note_region(observe::EventKind::region_release, run.extent->address, run.extent->bytes);
    table_of(*run.extent).remove({run.extent->address, run.extent->bytes, 0, false});
    zone_bytes_[run.extent->region->zone] -= run.extent->bytes;
    quarantine(device, run.extent);
  }
}

/// Quarantines an extent, joined with its neighbours at the age of the youngest: there may be 64 times the device's memory of such addresses, and the
/// index of extents costs host memory for each place where one begins. The extent may be gone afterwards.
void PageHeap::quarantine(DeviceState& device, Extent* extent) {
  const auto is_quarantined = [](const Extent* one) { return one != nullptr && one->state == ExtentState::absent && one->flags == kQuarantinedFlag; };
  const Span piece{extent->address, extent->address + extent->bytes};
  quarantined_bytes_ += extent->bytes;
  device.counters().quarantined_bytes.add(static_cast<std::int64_t>(extent->bytes));
  extent->flags = kQuarantinedFlag;
  if (is_quarantined(extent->next)) {
    leave_quarantine(extent->next);
    heap_.join(extent);
  }
  if (is_quarantined(extent->previous)) {
    extent = extent->previous;
    leave_quarantine(extent);
    heap_.join(extent);
  }
  extent->buffer_id = fresh_bytes_;
  extent->bin_next = nullptr;
  extent->bin_previous = quarantined_.last;
  (quarantined_.last != nullptr ? quarantined_.last->bin_next : quarantined_.first) = extent;
  quarantined_.last = extent;
  constexpr std::uint64_t kBeside_bytes = 256 * kMiB;  // what one page of the index's host memory covers
  heap_.give_back_index(*extent, piece.begin - kBeside_bytes, piece.end + kBeside_bytes);
}

void PageHeap::leave_quarantine(const Extent* extent) noexcept {
  (extent->bin_previous != nullptr ? extent->bin_previous->bin_next : quarantined_.first) = extent->bin_next;
  (extent->bin_next != nullptr ? extent->bin_next->bin_previous : quarantined_.last) = extent->bin_previous;
}

/// Ends the quarantine of addresses whose time has come; `early`: of the oldest ones, whatever their time.
void PageHeap::expire(DeviceState& device, bool early) {
  while (Extent* oldest = quarantined_.first) {
    if (!early && fresh_bytes_ - oldest->buffer_id < kQuarantineTotals * total_bytes_) return;
    early = false;
    vacant_.reserve(vacant_.size() + 1);
    leave_quarantine(oldest);
    quarantined_bytes_ -= oldest->bytes;
    device.counters().quarantined_bytes.add(-static_cast<std::int64_t>(oldest->bytes));
    make_vacant(oldest);
  }
}

/// Makes the extent vacant, joined with vacant neighbours. What is too short for any window is on no list, where it waits for its neighbours: there
/// can be tens of thousands of those. Precondition: vacant_ has room for one more.
void PageHeap::make_vacant(Extent* extent) noexcept {
  const auto is_vacant = [](const Extent* one) { return one != nullptr && one->state == ExtentState::absent && (one->flags & kVacantFlag) != 0; };
  extent->flags = kVacantFlag;
  if (is_vacant(extent->next)) {
    forget_vacant(extent->next);
    heap_.join(extent);
  }
  if (is_vacant(extent->previous)) {
    extent = extent->previous;
    heap_.join(extent);
  }
  if ((extent->flags & kListedFlag) != 0 || !is_long(*extent)) return;
  extent->flags |= kListedFlag;
  vacant_.push_back(extent);
}

void PageHeap::forget_vacant(const Extent* extent) noexcept {
  if ((extent->flags & kListedFlag) != 0) vacant_.erase(std::find(vacant_.begin(), vacant_.end(), extent));
}

std::uint64_t PageHeap::release(DeviceState& device, ContextPool&, std::uint64_t wanted_bytes, bool at_most) {
  // A thread that the driver keeps for as long as work runs would keep this one too: only handles that are mapped nowhere go then.
  const bool may_unmap = await(device, [this] { return !sharing_; }) && !is_stalled(device);
  std::uint64_t left_bytes = wanted_bytes;
  const auto stays = [&](const Handle& handle) {
    if (left_bytes == 0 || (at_most && handle.bytes > left_bytes)) return true;
    left_bytes -= std::min(left_bytes, handle.bytes);
    return false;
  };
  const auto first_going = std::partition(loose_.begin(), loose_.end(), std::ref(stays)) - loose_.begin();
  std::vector<Run> runs;
  if (left_bytes != 0 && may_unmap) take_empty(runs, left_bytes, at_most);
  return send(device, runs, static_cast<std::size_t>(first_going));
}

bool PageHeap::has_unused() const {
  return std::any_of(loose_.begin(), loose_.end(), [](const Handle& handle) { return handle.is_unused; });
}

std::uint64_t PageHeap::release_unused(DeviceState& device) {
  const auto first_going = std::partition(loose_.begin(), loose_.end(), [](const Handle& handle) { return !handle.is_unused; });
  std::vector<Run> none;
  return send(device, none, static_cast<std::size_t>(first_going - loose_.begin()));
}

/// Sends the runs, and the loose handles from `first_going` on, to the driver.
std::uint64_t PageHeap::send(DeviceState& device, std::vector<Run>& runs, std::size_t first_going) {
  const std::size_t was_loose = loose_.size() - first_going;
  std::vector<Going> going;
  const std::size_t count = was_loose + count_handles(runs);
  try {  // after this nothing may fail
    going.reserve(count);
    promise_loose(count);
  } catch (...) {
    for (const Run& run : runs) give_back(run);
    throw;
  }
  for (; loose_.size() > first_going; loose_.pop_back()) {
    going.push_back({loose_.back(), true, false});
    loose_bytes_ -= loose_.back().bytes;
  }
  if (count == 0) return 0;
  book_leaving(device, runs, going);
  ++releasing_;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    give_to_driver(device, runs, going);
  }
  --releasing_;
  return book_release(device, runs, going);
}

/// Unmaps the runs; their handles join `going`, which has room for them. Called without the device's lock.
void PageHeap::give_to_driver(DeviceState& device, std::vector<Run>& runs, std::vector<Going>& going) {
  CUresult ignored = CUDA_SUCCESS;
  unmap_runs(device, runs, &ignored);
  for (const Run& run : runs)
    for (const Handle& handle : run.handles) going.push_back({handle, run.is_unmapped, false});
  for (Going& one : going) one.is_gone = one.is_unmapped && memory_->release(one.handle.id) == CUDA_SUCCESS;
}

/// Takes memory out of the books before the driver gets it, so that what another thread gets of it counts once.
void PageHeap::book_leaving(DeviceState& device, const std::vector<Run>& runs, const std::vector<Going>& loose) {
  std::uint64_t mapped_bytes = 0;
  std::uint64_t bytes = 0;
  for (const Run& run : runs) {
    run.extent->flags |= kLeavingFlag;
    mapped_bytes += run.extent->bytes;
  }
  for (const Going& one : loose) bytes += one.handle.bytes;
  bytes += mapped_bytes;
  leaving_bytes_ += mapped_bytes;
  device.leaving_bytes += bytes;
  device.add_reserved(-static_cast<std::int64_t>(bytes));
  device.counters().mapped_bytes.add(-static_cast<std::int64_t>(mapped_bytes));
}

/// Until loose_promised_ is reduced again, `count` more handles can become loose without any call that could fail. Throws std::bad_alloc.
void PageHeap::promise_loose(std::size_t count) {
  loose_.reserve(loose_.size() + loose_promised_ + count);
  loose_promised_ += count;
}

/// Reserves room so that `count` handles of the supply can become loose without any call that could fail. Throws std::bad_alloc with nothing changed.
void PageHeap::promise(Supply& supply, std::size_t count) {
  promise_loose(count - supply.promised);
  supply.promised = count;
}

/// Precondition: there is room, by promise() or because the handle was just taken from there.
void PageHeap::keep_loose(const Handle& handle) noexcept {
  loose_.push_back(handle);
  loose_bytes_ += handle.bytes;
}

std::size_t PageHeap::count_handles(const std::vector<Run>& runs) {
  std::size_t count = 0;
  for (const Run& run : runs) count += run.handles.size();
  return count;
}

/// What the driver kept, the heap keeps too.
std::uint64_t PageHeap::book_release(DeviceState& device, const std::vector<Run>& runs, const std::vector<Going>& going) {
  book_runs(device, runs);
  loose_promised_ -= going.size();
  std::uint64_t going_bytes = 0;
  std::uint64_t released_bytes = 0;
  for (const Going& one : going) {
    going_bytes += one.handle.bytes;
    if (one.is_gone) {
      released_bytes += one.handle.bytes;
      device.counters().handles_released.add();
    } else if (one.is_unmapped) {
      keep_loose(one.handle);
    }
  }
  device.leaving_bytes -= going_bytes;
  device.limit.refund(released_bytes);
  device.add_reserved(static_cast<std::int64_t>(going_bytes - released_bytes));
  must_ask_ = must_ask_ || released_bytes != 0;
  charge(device);
  return released_bytes;
}

}  // namespace cupool::device
