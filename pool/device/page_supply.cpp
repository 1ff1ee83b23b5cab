// PageHeap: serving a miss. Claim under the lock, call the driver without it, publish under it. See page_heap.hpp.
#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/fence.hpp"
#include "pool/driver/handles.hpp"
#include "pool/device/page_heap.hpp"
#include "pool/device/paged_region.hpp"
#include "pool/observe/human_bytes.hpp"

namespace cupool::device {

using heap::Extent;

namespace {

constexpr int kMostTries = 8;

}  // namespace

Result<Growth> PageHeap::grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) {
  return supply(device, home, request, Source::create);
}
Result<Growth> PageHeap::remap(DeviceState& device, ContextPool& home, const AllocationRequest& request) {
  moved_at_ = whole_page_requests_ + other_requests_;
  return supply(device, home, request, Source::move);
}

Result<Growth> PageHeap::crack(DeviceState& device, ContextPool& home, const AllocationRequest& request) {
  if (supplying_) return Error{CUDA_ERROR_OUT_OF_MEMORY, "another thread is in the driver"};
  const Status status = supply_bytes(device, home, request.bytes, Source::crack);
  if (!status.ok()) return status.error();
  return Growth{allocate(device, request), false};
}

bool PageHeap::is_stalled(DeviceState& device) const {
  if (never_opens()) return true;
  const std::uint64_t now_ns = device.services.clock.now_ns();  // first: whatever begins after it is no stall
  const std::uint64_t since_ns = std::max(supplying_since_ns_, memory_->last_began_ns());
  return supplying_ && now_ns >= since_ns && now_ns - since_ns >= kStall_ns;
}

void PageHeap::begin_turn(DeviceState& device) {
  supplying_ = true;
  supplying_since_ns_ = device.services.clock.now_ns();
}

/// Waits for a hole that another thread may bring while the lock is let go of; none when it is the caller's turn to bring one.
Result<Growth> PageHeap::await_hole(DeviceState& device, const AllocationRequest& request) {
  Extent* extent = nullptr;
  heap::ZoneOrder order = zones_for(device, request.bytes);
  order.lane_first = request.lane_first;
  const bool has_turn = await(device, [&] {
    extent = heap_.allocate(request.bytes, request.lane, 0, order);
    return extent != nullptr || !supplying_;
  });
  if (!has_turn) return Error{CUDA_ERROR_OUT_OF_MEMORY, "another thread is in the driver"};
  return Growth{extent != nullptr ? extent : allocate(device, request), false};  // the order of zones may have changed by now
}

Result<Growth> PageHeap::supply(DeviceState& device, ContextPool& home, const AllocationRequest& request, Source source) {
  for (int tries = 0; tries < kMostTries; ++tries) {
    if (const Result<Growth> hole = await_hole(device, request); !hole.ok() || hole.value().extent != nullptr) return hole;
    const Status status = supply_bytes(device, home, request.bytes, source);
    if (!status.ok()) return status.error();
    // Otherwise the hole before the new pages was taken by another thread.
    if (Extent* extent = allocate(device, request)) return Growth{extent, false};
  }
  return Error{CUDA_ERROR_OUT_OF_MEMORY, "memory taken by other threads"};
}

Status PageHeap::reserve(DeviceState& device, ContextPool& home, std::uint64_t bytes) {
  is_preallocated_ = true;
  std::uint64_t part_bytes = bytes >= kZonedPreallocated_pages * memory_->granularity_bytes() ? bytes / kPreallocatedZonePart : 0;
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  part_bytes = align_down(part_bytes, part_bytes < kLargestHandle_bytes ? page_bytes : std::max(kLargestHandle_bytes, page_bytes));
  if (part_bytes != 0) part_bytes += page_bytes;  // for the first handle of the zone
  for (unsigned zone = 0; zone < kZones; ++zone) {
    const std::uint64_t zone_bytes = zone == 0 ? bytes - (kZones - 1) * part_bytes : part_bytes;
    if (zone_bytes == 0) continue;
    if (!await(device, [this] { return !supplying_; })) return Error{CUDA_ERROR_OUT_OF_MEMORY, "another thread is in the driver"};
    const Status status = supply_bytes(device, home, zone_bytes, Source::preallocate, zone);
    if (!status.ok()) return zone == 0 ? status : Status{};
  }
  return {};
}

/// For blocks of any size: in zone 0, as one window of its own.
Status PageHeap::grow_ahead(DeviceState& device, ContextPool& home, std::uint64_t bytes) {
  if (supplying_) return {};
  return supply_bytes(device, home, align_up(bytes, memory_->granularity_bytes()), Source::ahead, 0);
}

Status PageHeap::supply_bytes(DeviceState& device, ContextPool& home, std::uint64_t bytes, Source source, std::optional<unsigned> given_zone) {
  if (bytes > total_bytes_) return Error{CUDA_ERROR_OUT_OF_MEMORY, "size"};
  if (never_opens()) return Error{CUDA_ERROR_OUT_OF_MEMORY, "pages"};
  begin_turn(device);
  Status status{};
  try {
    status = supply_alone(device, home, bytes, source, given_zone);
  } catch (...) {
    supplying_ = false;
    throw;
  }
  supplying_ = false;
  charge(device);
  return status;
}

Status PageHeap::supply_alone(DeviceState& device, ContextPool& home, std::uint64_t bytes, Source source, std::optional<unsigned> given_zone) {
  expire(device, false);
  if (must_ask_ || created_bytes_ > room_bytes(device) / kAskShare) ask_room(device);
  // A caller that only creates, and cannot, need not look for a place.
  if (source == Source::create && room_bytes(device) + loose_bytes_ < memory_->granularity_bytes()) return Error{CUDA_ERROR_OUT_OF_MEMORY, "room"};
  const unsigned zone = given_zone ? *given_zone : zone_of(bytes, room_bytes(device));
  const Result<Window> window = find_or_add_window(device, home, bytes, zone, source == Source::ahead);
  if (!window.ok()) return window.error();
  Supply supply;
  supply.source = source;
  supply.block_bytes = bytes;
  supply.zone = zone;
  supply.all_bytes = mapped_bytes() + loose_bytes_ + room_bytes(device);
  supply.is_of_whole_pages = takes_whole_pages();
  supply.zone_bytes = zone == 0 ? mapped_bytes() + loose_bytes_ : zone_bytes_[zone];
  claim(supply, window.value());
  supply.wanted_bytes = std::max(supply.need_bytes, source == Source::create ? ahead_bytes(device, supply) : 0);
  if (!prepare(device, supply)) return Error{CUDA_ERROR_OUT_OF_MEMORY, "room"};
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    drive(device, supply);
  }
  return publish(device, supply);
}

Result<PageHeap::Window> PageHeap::find_or_add_window(DeviceState& device, ContextPool& home, std::uint64_t bytes, unsigned zone, bool is_whole) {
  const std::uint64_t page_bytes = memory_->granularity_bytes();
  // A block of whole pages begins anywhere where not even one page more is to be had.
  const bool has_room = room_bytes(device) + loose_bytes_ + empty_bytes() >= bytes + page_bytes;
  const Beginning beginning = is_whole ? Beginning::fresh : is_aligned(bytes, page_bytes) && has_room ? Beginning::on_page : Beginning::anywhere;
  Window window = find_window(bytes, zone, beginning);
  if (window.vacant == nullptr) {
    if (const Status added = add_addresses(device, home, bytes, zone); !added.ok()) return added.error();
    window = find_window(bytes, zone, beginning);
  }
  if (window.vacant == nullptr) return Error{CUDA_ERROR_OUT_OF_MEMORY, "addresses"};
  return window;
}

/// Gathers the handles that exist, and host memory for whatever the driver will do. False: the need is out of reach; then, and where host memory is
/// out, the claim is undone.
bool PageHeap::prepare(DeviceState& device, Supply& supply) {
  try {
    take_loose(supply);
    promise(supply, supply.handles.size());  // before the lock is let go of for a question to the driver
    if (!is_within_reach(device, supply)) {
      unclaim(supply);
      return false;
    }
    if (supply.moves() && supply.missing_bytes() != 0) take_fitting(supply, holes_to_rob(device));
    const std::size_t most =
        supply.handles.size() + count_handles(supply.runs) + supply.pieces.size() + supply.wanted_bytes / memory_->granularity_bytes() + 1;
    supply.handles.reserve(most);
    vacant_.reserve(vacant_.size() + 1);
    promise(supply, most);
  } catch (...) {
    for (const Run& run : supply.runs) give_back(run);
    unclaim(supply);
    throw;
  }
  return true;
}

/// What the driver is believed to have left: its last answer, less what was taken since.
std::uint64_t PageHeap::room_bytes(const DeviceState& device) const {
  if (is_refused_) return 0;
  return align_down(std::min(device.driver_free_now(), device.limit.headroom_bytes()), memory_->granularity_bytes());
}

void PageHeap::ask_room(DeviceState& device) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  CUresult code = CUDA_SUCCESS;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    code = device.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  }
  if (code != CUDA_SUCCESS) return;
  device.publish_driver_free(free_bytes);
  created_bytes_ = 0;
  must_ask_ = false;
  is_refused_ = false;
}

void PageHeap::claim(Supply& supply, const Window& window) {
  heap_.cut(window.vacant, window.need_bytes);
  forget_vacant(window.vacant);
  supply.need_bytes = window.need_bytes;
  supply.fresh = window.vacant;
  supply.rest = window.vacant->next;  // exists: find_window leaves room
  supply.fresh->flags = supply.rest->flags = 0;
  if (window.left == nullptr) return;
  supply.left = heap_.take_out(window.left, window.left->address, window.left->bytes);  // the whole extent, so it cannot throw
  begin_moving(supply.left);
}

/// Undoes a claim. Precondition: vacant_ still has the room that claim() made (only the thread whose turn it is changes it), and loose_ that of
/// take_loose(), unless it is promised.
void PageHeap::unclaim(Supply& supply) noexcept {
  loose_promised_ -= supply.promised;
  heap_.join(supply.fresh);
  make_vacant(supply.fresh);
  give_back_left(supply);
  for (const Handle& handle : supply.handles) {
    end_moving(handle);
    keep_loose(handle);
  }
}

void PageHeap::give_back_left(Supply& supply) noexcept {
  if (supply.left == nullptr) return;
  end_moving(supply.left);
  heap_.free(supply.left);
}

/// Memory that a thread has in its hands while it is in the driver still belongs to the heap and is free, and is reported as such.
void PageHeap::begin_moving(Extent* extent) noexcept {
  extent->flags = kMovingFlag;
  moving_mapped_bytes_ += extent->bytes;
}

void PageHeap::end_moving(Extent* extent) noexcept {
  extent->flags = 0;
  moving_mapped_bytes_ -= extent->bytes;
}

/// Throws std::bad_alloc with nothing changed.
void PageHeap::begin_moving(const Handle& handle) {
  moving_loose_.push_back(handle);
  moving_loose_bytes_ += handle.bytes;
}

/// Does nothing for any other handle: a new one, or one from a run.
void PageHeap::end_moving(const Handle& handle) noexcept {
  const auto found = std::find_if(moving_loose_.begin(), moving_loose_.end(), [&](const Handle& one) { return one.id == handle.id; });
  if (found == moving_loose_.end()) return;
  moving_loose_bytes_ -= found->bytes;
  moving_loose_.erase(found);
}

/// Takes loose handles: the largest that fit, then the smallest that suffices.
void PageHeap::take_loose(Supply& supply) {
  std::sort(loose_.begin(), loose_.end(), [](const Handle& a, const Handle& b) { return a.bytes < b.bytes; });
  supply.handles.reserve(loose_.size());
  const auto take = [&](std::size_t index) {
    begin_moving(loose_[index]);
    supply.handles.push_back(loose_[index]);
    supply.handle_bytes += loose_[index].bytes;
    loose_bytes_ -= loose_[index].bytes;
    loose_.erase(loose_.begin() + static_cast<std::ptrdiff_t>(index));
  };
  for (std::size_t i = loose_.size(); i-- > 0 && supply.missing_bytes() != 0;)
    if (loose_[i].bytes <= supply.missing_bytes()) take(i);
  if (!loose_.empty() && supply.missing_bytes() != 0) take(0);
}

/// Is there enough memory, to create or to move? Before the answer is no the driver is asked once more.
bool PageHeap::is_within_reach(DeviceState& device, Supply& supply) {
  const std::uint64_t empty = supply.source == Source::crack ? unpinned_empty_bytes() : supply.moves() ? empty_bytes() : 0;
  const auto is_enough = [&] {
    supply.room_bytes = room_bytes(device);
    return supply.is_enough(supply.handle_bytes + empty + (supply.source == Source::crack ? 0 : supply.room_bytes));
  };
  if (is_enough()) return true;
  if (supply.source == Source::create || supply.source == Source::crack) return false;
  ask_room(device);
  return is_enough();
}

void PageHeap::drive(DeviceState& device, Supply& supply) {
  unmap_runs(device, supply.runs, &supply.error);
  for (const Run& run : supply.runs) {
    for (const Handle& handle : run.handles) {
      const bool is_to_crack = supply.cracked.bytes != 0 && handle.id == supply.cracked.id;
      if (is_to_crack && !run.is_unmapped) supply.cracked = {};
      if (is_to_crack || !run.is_unmapped) continue;
      supply.handles.push_back(handle);
      supply.handle_bytes += handle.bytes;
    }
  }
  crack(device, supply);
  if (supply.source != Source::crack) create_missing(device, supply);
  map_or_ask_less(device, supply);
}

/// Nothing here may fail: whatever could was done before the driver was called.
Status PageHeap::publish(DeviceState& device, Supply& supply) {
  loose_promised_ -= supply.promised;
  book_runs(device, supply.runs);
  const std::uint64_t cracked_bytes = supply.is_cracked ? supply.cracked.bytes : 0;
  device.add_reserved(static_cast<std::int64_t>(supply.created_bytes) - static_cast<std::int64_t>(cracked_bytes));
  device.counters().handles_created.add(supply.created_handles);
  device.counters().handles_released.add(supply.is_cracked ? 1 : 0);
  created_bytes_ += saturating_sub(supply.created_bytes, cracked_bytes);
  is_refused_ = is_refused_ || supply.is_refused;
  note_opening(device, supply);
  for (const Handle& handle : supply.handles) end_moving(handle);
  for (std::size_t i = supply.mapped_handles; i < supply.handles.size(); ++i) keep_loose(supply.handles[i]);
  heap_.join(supply.fresh);
  if (supply.mapped_bytes != 0) bind(device, supply);
  else make_vacant(supply.fresh);
  give_back_left(supply);
  if (supply.is_accessible) return {};
  return supply.error != CUDA_SUCCESS ? as_answer(supply.error) : Error{CUDA_ERROR_OUT_OF_MEMORY, "cuMemCreate"};
}

/// The handles are mapped from supply.fresh on, which has all its addresses again.
void PageHeap::bind(DeviceState& device, Supply& supply) {
  const bool has_rest = supply.fresh->bytes != supply.mapped_bytes;
  heap_.cut(supply.fresh, supply.mapped_bytes);  // reuses the extent that join() has released, so it cannot fail
  if (has_rest) make_vacant(supply.fresh->next);
  std::uint64_t address = supply.fresh->address;
  for (std::size_t i = 0; i < supply.mapped_handles; ++i) {
    table_of(*supply.fresh).enter({address, supply.handles[i].bytes, supply.handles[i].id, false});
    address += supply.handles[i].bytes;
  }
  zone_bytes_[supply.zone] += supply.mapped_bytes;
  fresh_bytes_ += supply.mapped_bytes;
  device.counters().mapped_bytes.add(static_cast<std::int64_t>(supply.mapped_bytes));
  if (supply.is_stuck) {
    supply.fresh->flags = kLostFlag;
    if (!is_met_natively(supply.error))  // otherwise nothing in that context can be expected to work
      device.log(config::LogLevel::warn, [&] {
        return "the driver neither opened nor unmapped " + observe::human_bytes(supply.mapped_bytes) +
               " of pages; they stay taken until their context ends";
      });
    return;
  }
  device.note_region(observe::EventKind::region_create, supply.fresh->address, supply.mapped_bytes);
  device.counters().remaps.add(supply.runs.empty() ? 0 : 1);
  // A cracked handle was moved to other addresses, too.
  for (const Run& run : supply.runs) device.counters().moved_bytes.add(run.is_unmapped ? run.bytes() : 0);
  heap_.free(supply.fresh);
}

}  // namespace cupool::device
