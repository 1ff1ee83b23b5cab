// PageHeap: empty pages back to the driver, and the quarantine of their addresses. See page_heap.hpp.
#include <algorithm>

#include "pool/device/context_pool.hpp"
#include "pool/driver/handles.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;

/// Empty handles out of the holes, in runs of neighbours: at least `wanted_bytes` (`at_most`: at most), or all there are.
void PageHeap::take_empty(std::vector<Run>& runs, std::uint64_t wanted_bytes, bool at_most) {
  std::uint64_t found_bytes = 0;
  std::vector<MappedHandle> found;
  for_each_empty([&](const MappedHandle& handle, Extent*) {
    if (found_bytes >= wanted_bytes) return true;
    if (at_most && handle.bytes > wanted_bytes - found_bytes) return false;
    found.push_back(handle);
    found_bytes += handle.bytes;
    return found_bytes >= wanted_bytes;
  });
  try {
    for (std::size_t first = 0; first < found.size();) {
      std::size_t last = first + 1;
      while (last < found.size() && found[last].address == found[last - 1].end()) ++last;
      Run run;
      for (std::size_t i = first; i < last; ++i) run.handles.push_back({found[i].handle, found[i].bytes});
      runs.push_back(std::move(run));
      const std::uint64_t address = found[first].address;
      runs.back().extent = heap_.take_out(heap_.find_containing(address), address, found[last - 1].end() - address);
      runs.back().extent->flags = 0;
      first = last;
    }
  } catch (...) {
    for (const Run& run : runs)
      if (run.extent != nullptr) heap_.free(run.extent);
    runs.clear();
    throw;
  }
}

void PageHeap::unmap_runs(std::vector<Run>& runs, CUresult* first_error) {
  for (Run& run : runs) {
    const CUresult code = memory_->unmap(run.extent->address, run.extent->bytes);
    run.unmapped = code == CUDA_SUCCESS;
    if (!run.unmapped && *first_error == CUDA_SUCCESS) *first_error = code;
  }
}

/// What was unmapped is quarantined; what the driver kept is free again where it was.
void PageHeap::book_runs(DeviceState& device, const std::vector<Run>& runs) {
  for (const Run& run : runs) {
    if (!run.unmapped) {
      heap_.free(run.extent);
      continue;
    }
    device.note_region(observe::EventKind::region_release, run.extent->address, run.extent->bytes);
    region_of(*run.extent).table.remove({run.extent->address, run.extent->bytes, 0, false});
    mapped_bytes_ -= run.extent->bytes;
    device.counters().mapped_bytes.add(-static_cast<std::int64_t>(run.extent->bytes));
    quarantine(device, run.extent);
  }
}

void PageHeap::quarantine(DeviceState& device, Extent* extent) {
  extent->flags = kQuarantinedFlag;
  extent->birth = fresh_bytes_;
  extent->bin_next = nullptr;
  (quarantined_.last != nullptr ? quarantined_.last->bin_next : quarantined_.first) = extent;
  quarantined_.last = extent;
  quarantined_bytes_ += extent->bytes;
  device.counters().quarantined_bytes.add(static_cast<std::int64_t>(extent->bytes));
}

/// Addresses whose time has come may be bound again; `early`: the oldest ones whatever their time.
void PageHeap::expire(DeviceState& device, bool early) {
  while (Extent* oldest = quarantined_.first) {
    if (!early && fresh_bytes_ - oldest->birth < kQuarantineTotals * total_bytes_) return;
    early = false;
    vacant_.reserve(vacant_.size() + 1);
    quarantined_.first = oldest->bin_next;
    if (quarantined_.first == nullptr) quarantined_.last = nullptr;
    quarantined_bytes_ -= oldest->bytes;
    device.counters().quarantined_bytes.add(-static_cast<std::int64_t>(oldest->bytes));
    make_vacant(oldest);
  }
}

/// Joins vacant neighbours. Precondition: vacant_ has room for one more.
void PageHeap::make_vacant(Extent* extent) noexcept {
  const auto is_vacant = [](const Extent* one) { return one != nullptr && one->state == ExtentState::absent && (one->flags & kVacantFlag) != 0; };
  extent->flags = kVacantFlag;
  if (is_vacant(extent->next)) {
    forget_vacant(extent->next);
    heap_.join(extent);
  }
  if (is_vacant(extent->previous)) return heap_.join(extent->previous);
  vacant_.push_back(extent);
}

void PageHeap::forget_vacant(const Extent* extent) noexcept { vacant_.erase(std::find(vacant_.begin(), vacant_.end(), extent)); }

std::uint64_t PageHeap::release(DeviceState& device, ContextPool&, std::uint64_t wanted_bytes, bool at_most) {
  while (sharing_) supplied_.wait(device.lock);
  std::vector<Handle> going;
  std::uint64_t going_bytes = 0;
  going.reserve(loose_.size());
  for (std::size_t i = 0; i < loose_.size() && going_bytes < wanted_bytes;) {
    if (at_most && loose_[i].bytes > wanted_bytes - going_bytes) {
      ++i;
      continue;
    }
    going.push_back(loose_[i]);
    going_bytes += loose_[i].bytes;
    loose_[i] = loose_.back();
    loose_.pop_back();
  }
  loose_bytes_ -= going_bytes;
  std::vector<Run> runs;
  if (going_bytes < wanted_bytes) take_empty(runs, wanted_bytes - going_bytes, at_most);
  for (const Run& run : runs) going.insert(going.end(), run.handles.begin(), run.handles.end());
  if (going.empty()) return 0;
  const std::size_t was_loose = going.size() - count_handles(runs);
  std::vector<CUresult> codes(going.size(), CUDA_SUCCESS);
  loose_.reserve(loose_.size() + going.size());
  ++releasing_;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    CUresult ignored = CUDA_SUCCESS;
    unmap_runs(runs, &ignored);
    std::size_t next = was_loose;
    for (const Run& run : runs)
      for (std::size_t i = 0; i < run.handles.size(); ++i) codes[next++] = run.unmapped ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    for (std::size_t i = 0; i < going.size(); ++i)
      if (codes[i] == CUDA_SUCCESS) codes[i] = memory_->release(going[i].id);
  }
  --releasing_;
  supplied_.notify_all();
  return book_release(device, runs, going, codes, was_loose);
}

std::size_t PageHeap::count_handles(const std::vector<Run>& runs) {
  std::size_t count = 0;
  for (const Run& run : runs) count += run.handles.size();
  return count;
}

/// `codes`: of each of `going`, of which the first `was_loose` were mapped nowhere; what the driver kept, so do we.
std::uint64_t PageHeap::book_release(DeviceState& device, const std::vector<Run>& runs, const std::vector<Handle>& going, const std::vector<CUresult>& codes, std::size_t was_loose) {
  book_runs(device, runs);
  std::uint64_t released_bytes = 0;
  for (std::size_t i = 0; i < going.size(); ++i) {
    const bool is_mapped_still = codes[i] == CUDA_ERROR_NOT_READY && i >= was_loose;
    if (codes[i] == CUDA_SUCCESS) {
      released_bytes += going[i].bytes;
      device.counters().handles_released.add();
    } else if (!is_mapped_still) {
      loose_.push_back(going[i]);
      loose_bytes_ += going[i].bytes;
    }
  }
  device.limit.refund(released_bytes);
  device.add_reserved(-static_cast<std::int64_t>(released_bytes));
  must_ask_ = must_ask_ || released_bytes != 0;
  charge(device);
  return released_bytes;
}

}  // namespace cupool::device
