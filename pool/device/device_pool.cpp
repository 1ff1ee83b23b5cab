// The hot paths: a hole on allocation, a place in the batch on free. All that is slower is in other files.
#include "pool/device/device_pool.hpp"

#include <algorithm>

#include "pool/core/bytes.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;
using observe::EventKind;

DevicePool::DevicePool(PoolServices& services, int ordinal, observe::LiveDevice& live, std::uint64_t total_bytes, std::uint64_t limit_bytes,
                       config::Policy policy)
    : device_(services, ordinal, live, total_bytes, limit_bytes),
      policy_(policy),
      unpooled_(policy == config::Policy::platform || policy == config::Policy::async),
      backlog_(homes_, unpooled_),
      magazines_(device_, homes_, deferred_, backlog_, shortage_, unpooled_),
      figures_(homes_, magazines_),
      driver_blocks_(magazines_, figures_),
      idle_pools_(homes_, driver_blocks_, moves_, policy),
      driver_free_(homes_, idle_pools_),
      preallocation_(driver_free_, policy),
      graph_memory_(driver_free_, figures_, moves_, policy),
      orphans_(homes_, figures_, moves_),
      giving_back_(homes_, driver_free_, figures_, moves_, orphans_, policy, unpooled_),
      deferral_(deferred_, backlog_, magazines_, orphans_, giving_back_, unpooled_),
      stream_frees_(homes_, deferred_, shortage_, magazines_, figures_, giving_back_, backlog_, deferral_),
      refusals_(homes_, deferred_, magazines_, figures_, idle_pools_, driver_free_, giving_back_, policy),
      making_room_(deferred_, shortage_, moves_, magazines_, figures_, idle_pools_, preallocation_, giving_back_, deferral_, stream_frees_, policy,
                   unpooled_) {}

DevicePool::~DevicePool() = default;

CUdeviceptr DevicePool::book(Extent* extent, const AllocationRequest& request, std::uint16_t thread) {
  extent->requested_bytes = request.requested_bytes;
  extent->buffer_id = magazines_.take_buffer_id();
  extent->allocated_ticks = ticks();
  device_.counters().allocations.add();
  if (request.stream.identity != 0) [[unlikely]] {
    StreamLanes& streams = info_of(*extent).home->streams;
    if (!info_of(*extent).is_native) streams.note_allocated(request.stream.identity, extent->bytes);
    if (streams.has_stamps_in_lanes()) streams.use_again(extent->address, extent->bytes, device_.services.contexts);
  }
  if (request.mempool != 0) [[unlikely]]
    extent->flags = static_cast<std::uint8_t>(request.mempool << kMempoolShift);
  device_.count_live(*extent, 1);
  if (magazines_.are_several()) [[unlikely]]
    magazines_.keep_promises(device_);
  magazines_.look_for_peak(device_, extent->bytes);
  if (request.mempool != 0) [[unlikely]]
    magazines_.look_for_mempool_peak(device_, request.mempool);
  device_.note(EventKind::allocate, extent->allocated_ticks, *extent, thread, request.stream.identity);
  if ((++operations_ & 63) == 0) figures_.publish(device_);
  return extent->address;
}

CUdeviceptr DevicePool::allocate(ContextPool* home, CUcontext context, std::size_t bytes, const char* api, std::uint16_t thread, MagazineUser user,
                                 Error* answer) {
  AllocationRequest request;
  request.bytes = round_request(bytes);
  request.requested_bytes = bytes;
  const bool may_be_kept = request.bytes - 1 < kLargestKept_bytes;  // excludes 0, a size that overflowed
  if (may_be_kept && user.magazine != nullptr)
    if (const CUdeviceptr address = user.magazine->allocate(context, bytes, request.bytes, thread)) return address;
  return serve(home, context, request, api, thread, may_be_kept && user.may_keep ? &user : nullptr, answer);
}

CUdeviceptr DevicePool::serve(ContextPool* home, CUcontext context, AllocationRequest& request, const char* api, std::uint16_t thread,
                              MagazineUser* user, Error* answer) {
  const MutexLock lock(device_.lock);
  if (request.stream.identity != 0) [[unlikely]] {
    // Natively, memory freed in stream order is the stream's again at once.
    if (home->pooled != nullptr && home->pooled->never_opens()) [[unlikely]] {
      *answer = kDriversOwn;
      return 0;
    }
    const bool is_drivers = request.life == BlockLife::pool && home->context == context && !home->can_outlive.load(std::memory_order_relaxed);
    if (is_drivers && driver_free_.has_room(device_, request.bytes)) {
      *answer = kDriversOwn;
      return 0;
    }
    if (is_drivers) request.life = BlockLife::context;  // the block would end with a cuCtxDestroy, which is better than a refusal
    request.lane = home->streams.see_allocation(request.stream.identity);
    request.lane_first = StreamFrees::keeps_to_lane(device_, *home, request);
  }
  // What had to wait for a capture to end is handled by the next operation after it, which may be this one.
  const bool must_look = (deferred_.batch_is_due() || deferred_.has_over_natively()) && !capturing();
  if (home->context == context && home->serving && home->pooled != nullptr && !device_.disabled && !must_look && request.bytes != 0 &&
      !wants_own(*home, request)) {
    if (user != nullptr && magazines_.are_several()) magazines_.spend_allowance(device_, user->magazine, request);
    Extent* extent = user != nullptr ? magazines_.take_kept(device_, *home, request, *user) : nullptr;
    if (extent == nullptr && !deferral_.is_better_on_its_way(device_, *home, request)) extent = home->pooled->allocate(device_, request);
    if (extent != nullptr && extent->bytes == request.bytes) {
      device_.counters().rung_hole.add();
      return book(extent, request, thread);
    }
    if (extent != nullptr) device_.disable("the heap returned a block of the wrong size");  // the block is not freed, on purpose
  }
  Attempt attempt;
  attempt.home = home;
  attempt.context = context;
  attempt.request = request;
  attempt.api = api;
  const Result<CUdeviceptr> climbed = climb(attempt, thread);
  if (!climbed.ok()) *answer = climbed.error();
  return climbed.value();
}

/// While a context ends the driver may give its addresses to others before our books have forgotten it. So living contexts, and memory that outlived
/// its context, are searched first.
template <class Find> Extent* DevicePool::find_in_homes(Find&& find) {
  for (const bool is_serving : {true, false}) {
    for (const auto& home : homes_) {
      if (!home->is_in_use() || (home->serving || home->is_orphan) != is_serving) continue;
      if (home->pooled != nullptr)
        if (Extent* extent = find(*home->pooled)) return extent;
      if (Extent* extent = find(home->natives)) return extent;
    }
  }
  return nullptr;
}

Extent* DevicePool::find_block(std::uint64_t address) {
  return find_in_homes([&](auto& allocator) CUPOOL_REQUIRES(device_.lock) { return allocator.find(device_, address); });
}

Extent* DevicePool::find_containing(std::uint64_t address) {
  return find_in_homes([&](auto& allocator) CUPOOL_REQUIRES(device_.lock) { return allocator.find_containing(device_, address); });
}

/// The extent at or around an address that the program names. If it is in a context that is ending, the driver may have given the address to another
/// context: the end is waited for, up to kPollBound_ns.
Extent* DevicePool::find_settled(std::uint64_t address) {
  std::uint64_t until_ns = 0;
  for (;;) {
    Extent* extent = find_block(address);
    if (extent == nullptr) extent = find_containing(address);
    if (extent == nullptr || info_of(*extent).home->serving || info_of(*extent).home->is_orphan) return extent;
    Clock& clock = device_.services.clock;
    const std::uint64_t now_ns = clock.now_ns();
    if (until_ns == 0) until_ns = now_ns + kPollBound_ns;
    if (now_ns >= until_ns) return extent;
    const MutexUnlock unlocked(device_.lock);
    clock.pause(kDriverCallPause_ns);
  }
}

FreeOutcome DevicePool::free(CUdeviceptr address, std::uint16_t thread, Error* answer) {
  bool must_clear = false;
  const FreeOutcome outcome = free_locked(address, thread, answer, &must_clear);
  if (must_clear) clear_region_memops();
  return outcome;
}

void DevicePool::thread_ending() {
  const MutexLock lock(device_.lock);
  magazines_.thread_ending(device_);
}

/// Claims the live block at `address` for a free, and clears its SYNC_MEMOPS; or returns nullptr with `*outcome` set.
Extent* DevicePool::begin_free(CUdeviceptr address, FreeOutcome* outcome) {
  Extent* extent = find_settled(address);
  if (extent == nullptr || extent->address != address || extent->state != ExtentState::live) {
    *outcome = extent != nullptr || orphans_.is_left(address) ? FreeOutcome::invalid : FreeOutcome::unknown;
    return nullptr;
  }
  if (extent->flags != 0 && !info_of(*extent).is_native) drop_sync_memops(*extent);  // the flags of a native region end with it
  if (magazines_.is_peak_new()) figures_.sample_peak(device_);
  if (!claim(*extent)) {
    *outcome = FreeOutcome::invalid;
    return nullptr;
  }
  if ((++operations_ & 63) == 0) figures_.publish(device_);
  return extent;
}

/// Another thread may be freeing a small block at this moment, in its magazine. One of the two gets it; the other one is a double free.
bool DevicePool::claim(Extent& extent) { return !extent.is_in_table || extent.state.change(ExtentState::live, ExtentState::deferred); }

FreeOutcome DevicePool::free_locked(CUdeviceptr address, std::uint16_t thread, Error* answer, bool* must_clear) {
  const MutexLock lock(device_.lock);
  FreeOutcome outcome = FreeOutcome::unknown;
  Extent* extent = begin_free(address, &outcome);
  if (extent == nullptr) return outcome;
  *must_clear = !memops_to_clear_.empty();
  if (!extent->is_in_table) return free_block(extent, thread, answer);
  ContextPool& home = *info_of(*extent).home;
  if (magazines_.send_with_own(device_, home, extent, thread)) {
    outcome = settle_frees(home, true, answer);
  } else {
    magazines_.visit_own(device_, home, &Magazines::send);
    outcome = free_block(extent, thread, answer);
  }
  magazines_.visit_own(device_, home, &Magazines::receive_parcels);  // what was just retired serves the next allocations
  return outcome;
}

FreeOutcome DevicePool::free_block(Extent* extent, std::uint16_t thread, Error* answer) {
  // Memory from cuMemAllocAsync: the caller must make sure that nothing uses it any more, and the call does not wait for anything (CUDA Driver API
  // 13.0, cuMemFree). While something captures the driver might have refused the call.
  const bool is_unused = mempool_of(*extent) != 0;
  const bool must_wait = is_unused && capturing();
  // Under `async` a block is returned to the driver's pool as other blocks are to a heap: once nothing touches it.
  if (info_of(*extent).is_native && policy_ != config::Policy::async && !must_wait) return free_native(extent, thread, answer);
  if (device_.disabled || !may_call_driver()) {
    deferral_.defer(device_, extent, thread);  // never reused
    return FreeOutcome::freed;
  }
  if (is_unused || !magazines_.may_keep(device_)) Magazines::leave_table(extent);
  if (must_wait) return deferral_.free_unused_in_capture(device_, extent, thread);
  if (is_unused || device_.services.options.free == config::FreeMode::immediate) {
    ContextPool& home = *info_of(*extent).home;
    device_.count_free(*extent);
    device_.note_freed(*extent, thread);
    info_of(*extent).allocator->recycle(device_, extent);
    home.must_empty = home.is_orphan;
    if (home.is_orphan) [[unlikely]]
      orphans_.empty(device_);
    giving_back_.surplus(device_, !is_unused);
    return FreeOutcome::freed;
  }
  return device_.services.synchronises() ? free_synchronously(extent, thread, answer) : free_deferred(extent, thread, answer);
}

FreeOutcome DevicePool::free_deferred(Extent* extent, std::uint16_t thread, Error* answer, bool waits_natively) {
  if (capturing()) [[unlikely]]
    deferral_.note_withheld(*extent);
  ContextPool& home = *info_of(*extent).home;
  deferral_.defer(device_, extent, thread);
  return settle_frees(home, waits_natively, answer);
}

/// What a free still does once its block has joined the open batch.
FreeOutcome DevicePool::settle_frees(ContextPool& home, bool waits_natively, Error* answer) {
  const CUcontext context = home.context;
  deferred_.set_due_bytes(backlog_.epoch_bytes(device_));
  const bool is_step_end = ends_step(waits_natively);
  if (is_step_end) magazines_.visit_own(device_, home, &Magazines::send);
  const bool pressed = shortage_.count_free();
  const bool is_due = pressed || deferred_.batch_is_due() || (is_step_end && deferred_.batch_bytes() >= device_.least_early_bytes());
  Error error{};
  if (waits_natively && capturing() && (is_due || deferral_.withholds_much())) error = deferral_.wait_in_capture(device_, context);
  else if (is_due) error = deferral_.upkeep(device_, context, waits_natively);
  // The driver has just turned out to have no events that cover a context: this free is the first to synchronise, for those before it too.
  if (is_due && waits_natively && error.code == CUDA_SUCCESS && device_.services.synchronises() && !capturing())
    error = deferral_.synchronise_and_retire(device_, context).error;
  if (is_due && !waits_natively) giving_back_.surplus(device_, false);
  while (is_step_end && error.code == CUDA_SUCCESS && deferral_.retire_oldest(device_, context, false, &error)) {}
  // Where the GPU is behind, what the thread had back by now differs from step to step.
  if (is_step_end && deferred_.oldest() != nullptr) magazines_.visit_own(device_, home, &Magazines::settle);
  if (is_step_end && error.code == CUDA_SUCCESS) make_room_for_steps(home);
  return Deferral::outcome_of(error, answer);
}

/// As the native free: returns when all work that could touch the block is over.
FreeOutcome DevicePool::free_synchronously(Extent* extent, std::uint16_t thread, Error* answer) {
  ContextPool* home = info_of(*extent).home;
  const CUcontext context = home->context;
  ContextRegistry& contexts = device_.services.contexts;
  if (capturing() || contexts.pin(home, context) != Pin::held) {
    deferral_.defer(device_, extent, thread);
    return Deferral::outcome_of(deferral_.wait_in_capture(device_, context), answer);
  }
  DeviceAllocator& allocator = *info_of(*extent).allocator;
  allocator.defer(device_, extent);  // so that a second free of it meanwhile is refused
  extent->flags = static_cast<std::uint8_t>(extent->flags | kBeingFreedFlag);
  device_.being_freed_bytes += extent->bytes;
  const FenceResult result = deferral_.synchronise_and_retire(device_, context);
  device_.being_freed_bytes -= extent->bytes;
  extent->flags = static_cast<std::uint8_t>(extent->flags & ~kBeingFreedFlag);
  contexts.unpin(home);
  if (result.error.code == CUDA_ERROR_DEINITIALIZED) {  // the driver is shutting down: the block is never reused
    deferral_.defer(device_, extent, thread);
    return FreeOutcome::freed;
  }
  if (result.error.code != CUDA_SUCCESS) {
    extent->state = ExtentState::live;
    *answer = result.error;
    return FreeOutcome::failed;
  }
  if (result.answer != FenceAnswer::done || Deferral::others_may_touch(device_)) {
    deferral_.defer(device_, extent, thread);
    return Deferral::outcome_of(
        result.answer == FenceAnswer::done ? deferral_.upkeep(device_, context, true) : deferral_.wait_in_capture(device_, context), answer);
  }
  device_.count_free(*extent);
  device_.note_freed(*extent, thread);
  allocator.recycle(device_, extent);
  giving_back_.surplus(device_);
  return FreeOutcome::freed;
}

FreeOutcome DevicePool::free_native(Extent* extent, std::uint16_t thread, Error* answer, const CUstream* stream) {
  ContextPool* home = info_of(*extent).home;
  const CUcontext context = home->context;
  ContextRegistry& contexts = device_.services.contexts;
  if (!may_call_driver() || contexts.pin(home, context) != Pin::held) {
    deferral_.defer(device_, extent, thread);
    return FreeOutcome::freed;
  }
  // The driver does not wait either for what is freed in stream order, or was allocated so (CUDA Driver API 13.0, cuMemFree).
  const bool is_unused = mempool_of(*extent) != 0 && stream == nullptr;
  const bool waits_natively = stream == nullptr && !is_unused;
  const Extent before = *extent;
  device_.note_freed(before, thread);
  // Give_back likewise uncounts the reserved bytes before the call: what the driver is taking back is not listed any more.
  device_.count_free(before);
  const Status status = home->natives.give_back(device_, extent, stream, is_unused);
  contexts.unpin(home);
  if (!status.ok()) {
    device_.count_live(before, 1);
    if (magazines_.are_several()) magazines_.keep_promises(device_);
    device_.counters().frees.take_back();
  }
  if (status.code() == CUDA_ERROR_NOT_READY) {  // refused because something captures
    device_.note(EventKind::allocate, ticks(), before, observe::kPoolItself);
    deferral_.defer(device_, extent, thread);
    return stream == nullptr ? Deferral::outcome_of(deferral_.wait_in_capture(device_, context), answer) : FreeOutcome::freed;
  }
  if (!status.ok()) {
    device_.note(EventKind::allocate, ticks(), before, observe::kPoolItself);
    *answer = status.error();
    return FreeOutcome::failed;
  }
  figures_.publish(device_);
  if (stream != nullptr) note_backlog(*stream, before.bytes);
  if (stream != nullptr || policy_ == config::Policy::platform || deferred_.batch_is_empty() || capturing()) return FreeOutcome::freed;
  Error late = deferral_.upkeep(device_, context, waits_natively);  // what was freed during a capture
  if (waits_natively && late.code == CUDA_SUCCESS && !device_.services.has_context_events())
    late = deferral_.synchronise_and_retire(device_, context).error;
  return Deferral::outcome_of(late, answer);
}

bool DevicePool::free_while_exiting(CUdeviceptr address) {
  if (!device_.lock.try_lock()) return true;  // the address is the pool's; the free is not booked
  Extent* extent = find_block(address);
  const bool ours = extent != nullptr || find_containing(address) != nullptr || orphans_.is_left(address);
  if (extent != nullptr && extent->state == ExtentState::live && claim(*extent)) {
    if (magazines_.is_peak_new()) {
      magazines_.close_all(device_, Magazines::BusyOwners::leave_out);  // a thread may be stopped inside its magazine for good
      figures_.note_peak(device_);
    }
    deferral_.defer(device_, extent, 0);
  }
  device_.lock.unlock();
  return ours;
}

Ownership DevicePool::find(CUdeviceptr address, BlockView* block) {
  const MutexLock lock(device_.lock);
  const Extent* extent = find_settled(address);
  if (extent == nullptr) return orphans_.is_left(address) ? Ownership::vacant : Ownership::unknown;
  if (extent->state != ExtentState::live || address - extent->address >= extent->requested_bytes) return Ownership::vacant;
  if (block == nullptr) return Ownership::live;
  const RegionInfo& info = info_of(*extent);
  *block = BlockView{extent->address,
                     extent->requested_bytes,
                     info.home->context,
                     device_.ordinal,
                     mempool_of(*extent),
                     extent->buffer_id,
                     extent->region->address,
                     extent->region->bytes,
                     (extent->flags & kSyncMemopsFlag) != 0,
                     info.is_native,
                     info.is_paged};
  if (info.is_paged) {  // a paged region is reserved addresses, not an allocation
    block->region_base = extent->address;
    block->region_bytes = extent->bytes;
  }
  return Ownership::live;
}

bool DevicePool::pin_pages(CUdeviceptr address) {
  const MutexLock lock(device_.lock);
  Extent* extent = find_containing(address);
  if (extent == nullptr || extent->state != ExtentState::live) return false;
  info_of(*extent).allocator->pin(device_, *extent);
  return true;
}

}  // namespace cupool::device
