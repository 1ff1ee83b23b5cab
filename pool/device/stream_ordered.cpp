// Stream-ordered allocation and free. What a free leaves in its stream's lane is that stream's at once, without an event.
//
// Others get it (a) when the lane is drained: its holes join the deferred frees, whose fence covers the whole context; (b) while
// memory is short, when a free was stamped with its own event: another stream is made to wait for that on the device. An event
// recorded later than the free also covers later work, which may itself wait for what the other stream does next, so no
// stream is ever made to wait for such a one. A free that falls into somebody's capture is stamped too; where no event can be had, it takes the
// plain way and waits for the capture's end. What becomes of stamped frees is in stamped_frees.cpp.
#include <algorithm>
#include <array>

#include "pool/device/context_lanes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;

namespace {
constexpr std::uint64_t kHandlePause_ns = 5'000;
}

CUdeviceptr DevicePool::allocate_on(ContextPool* home, CUcontext context, std::size_t bytes, StreamName stream, std::uint8_t mempool, BlockLife life,
                                    const char* api, std::uint16_t thread, MagazineUser user, Error* answer) {
  AllocationRequest request;
  request.bytes = round_request(bytes);
  request.requested_bytes = bytes;
  request.stream = stream;
  request.mempool = mempool;
  request.life = life;
  const bool is_served = life == BlockLife::context || home->can_outlive.load(std::memory_order_relaxed);
  const bool may_be_kept = is_served && request.bytes - 1 < kLargestKept_bytes;  // nor 0: a size that overflows
  if (may_be_kept && user.magazine != nullptr)
    if (const CUdeviceptr address = user.magazine->allocate_on(context, stream.identity, mempool, bytes, request.bytes, thread)) return address;
  return serve(home, context, request, api, thread, may_be_kept && user.may_keep ? &user : nullptr, answer);
}

/// A block of a plain call that is freed in stream order, by a program that allocates nothing so: plain calls ask for its like again, and they get nothing out of a lane until memory is short.
/// An epoch covers the stream as any other.
bool DevicePool::goes_plain_way(const Extent& extent) const {
  return mempool_of(extent) == 0 && !info_of(extent).home->streams.has_allocated() && device_.services.options.free == config::FreeMode::deferred && !device_.services.synchronises() && !capturing();
}

FreeOutcome DevicePool::free_on(CUdeviceptr address, CUcontext context, StreamName stream, std::uint16_t thread, MagazineUser* user, Error* answer) {
  FreeOutcome outcome = FreeOutcome::unknown;
  bool must_clear = false;
  {
    const MutexLock lock(device_.lock);
    if (context != nullptr) make_place_for_lane(context, stream);  // before the block is anybody's
    Extent* extent = begin_free(address, &outcome);
    if (extent == nullptr) return outcome;
    must_clear = !memops_to_clear_.empty();
    ContextPool& home = *info_of(*extent).home;
    const bool is_pooled = !info_of(*extent).is_native && !device_.disabled && may_call_driver();
    const bool is_in_context = is_pooled && context != nullptr && home.context == context;
    const bool is_plain = is_in_context && goes_plain_way(*extent);
    const bool is_ordinary = is_in_context && !is_plain;
    // On another context's stream; no epoch would ever cover it.
    const bool needs_own_event = is_pooled && !home.is_orphan && context != nullptr && device_.services.cannot_record.load(std::memory_order_relaxed);
    if (is_ordinary && user != nullptr && magazines_.keep_for_stream(device_, extent, home, stream, thread, *user)) return FreeOutcome::freed;
    Magazines::leave_table(extent);
    if (is_plain) outcome = free_deferred(extent, thread, answer, false);
    else if (is_ordinary && !capturing()) outcome = free_in_lane(extent, home, context, stream, thread);
    else if ((is_ordinary || needs_own_event) && free_stamped(extent, home, context, stream, thread, StampedPlace::aside)) outcome = FreeOutcome::freed;
    else if (policy_ == config::Policy::platform && device_.driver.has_cuMemFreeAsync()) outcome = free_native(extent, thread, answer, &stream.handle);
    else outcome = free_behind(extent, context, stream, thread, answer);
    if (home.is_orphan) orphans_.empty(device_);
  }
  if (must_clear) clear_region_memops();
  return outcome;
}

/// Deferred: the block's epoch covers every stream; where none can, an event on this one does, of an epoch with nothing else in it.
FreeOutcome DevicePool::free_behind(Extent* extent, CUcontext context, StreamName stream, std::uint16_t thread, Error* answer) {
  const bool needs_own_event = context != nullptr && device_.services.cannot_record.load(std::memory_order_relaxed) && !capturing() && may_call_driver();
  ContextPool* const of_stream = needs_own_event && deferred_.batch_is_empty() ? device_.services.contexts.find(context) : nullptr;
  if (of_stream == nullptr) return free_deferred(extent, thread, answer, false);
  deferral_.defer(device_, extent, thread);
  Epoch* const epoch = deferred_.close();  // before the lock is let go of: what others free joins the batch
  if (epoch == nullptr) return FreeOutcome::freed;
  FenceResult result;
  {
    const MutexUnlock unlocked(device_.lock);
    result = epoch->fence.record_on(device_, *of_stream, context, stream.handle);
  }
  epoch->busy = false;
  epoch->recorded = result.answer == FenceAnswer::done;
  if (!epoch->recorded) deferred_.reopen(epoch);
  return FreeOutcome::freed;
}

FreeOutcome DevicePool::free_in_lane(Extent* extent, ContextPool& home, CUcontext context, StreamName stream, std::uint16_t thread) {
  home.streams.see(stream.identity);
  home.streams.count_frees(1);
  bool must_stamp = !home.streams.is_alone() && (shortage_.stamps_frees() || !lanes::is_plenty(device_, home, magazines_.kept_bytes(), extent->bytes));
  if (!must_stamp && may_be_missed(home, stream.identity, extent->bytes)) must_stamp = home.streams.fears_miss();
  if (must_stamp) {
    shortage_.count_stamped_free();
    if (free_stamped(extent, home, context, stream, thread, StampedPlace::lane)) return FreeOutcome::freed;
  }
  const std::uint32_t lane = lanes::lane_for(device_, home, stream, deferred_.batch());
  if (lane == 0) {
    const bool needs_event = device_.services.cannot_record.load(std::memory_order_relaxed);
    if (!needs_event || !free_stamped(extent, home, context, stream, thread, StampedPlace::aside)) deferral_.defer(device_, extent, thread);
    return FreeOutcome::freed;
  }
  device_.count_free(*extent);
  device_.note_freed(*extent, thread, stream.identity);
  home.streams.note_fill(lane, extent->bytes);
  home.pooled->recycle_in_lane(device_, extent, lane);
  hand_over(home, stream.identity);
  if (device_.services.options.release_threshold_bytes && (++lane_frees_ & 63) == 0) give_back_surplus_of_lanes(context);
  return FreeOutcome::freed;
}

/// Where no event covers a context, what is in a lane needs one on its own stream before it is anybody's: the lane that a new stream will get is
/// emptied while the lock may be let go of.
void DevicePool::make_place_for_lane(CUcontext context, StreamName stream) {
  if (!device_.services.cannot_record.load(std::memory_order_relaxed)) [[likely]] return;
  const auto found = std::find_if(homes_.begin(), homes_.end(), [context](const auto& home) { return home->context == context; });
  if (found == homes_.end()) return;
  ContextPool* const home = found->get();
  if (home->pooled == nullptr || !home->streams.is_full() || home->streams.entry(stream.identity) != nullptr) return;
  drain_stream(*home, home->streams.oldest().identity, true);
}

/// An event on the legacy stream would make blocking streams wait for each other: only where there is no other kind. The event of the whole context covers a
/// thread's own default stream too, which is blocking.
bool DevicePool::needs_context_event(const StreamLanes::Entry& entry) const {
  return (entry.handle == nullptr || entry.handle == CU_STREAM_LEGACY) && !device_.services.cannot_record.load(std::memory_order_relaxed);
}

/// The holes become an epoch, with an event of their lane's stream, or where it must be one of its whole context; `looks`: and are asked about at once. nullptr,
/// with nothing changed: host memory is out. Preconditions: the context is pinned, and nobody is busy with the lane.
Epoch* DevicePool::record_lane(ContextPool& home, StreamLanes::Entry& entry, Batch& holes, bool looks, FenceResult* result) {
  Epoch* const epoch = deferred_.close(holes);
  if (epoch == nullptr) return nullptr;
  *result = {FenceAnswer::impossible, {}};
  const bool is_of_context = needs_context_event(entry);
  const CUstream handle = entry.handle != nullptr ? entry.handle : CU_STREAM_LEGACY;
  const CUcontext context = home.context;
  const std::uint64_t identity = entry.identity;
  entry.busy = true;
  entry.unmarked_bytes = 0;
  {
    const MutexUnlock unlocked(device_.lock);
    if (is_of_context) {
      *result = epoch->fence.record(device_, context);
    } else {
      const ScopedContext current(device_.driver, context);
      if (current.status().ok()) *result = epoch->fence.record_on(device_, home, context, handle);
    }
    if (looks && result->answer == FenceAnswer::done && result->error.code == CUDA_SUCCESS) *result = epoch->fence.poll(device_, context);
  }
  if (StreamLanes::Entry* left = home.streams.entry(identity)) left->busy = false;
  epoch->busy = false;
  return epoch;
}

/// What is free in a stream's lane waits for what that stream has been given so far, and for nothing else; where that cannot be recorded it
/// waits like any plain free, for the next epoch, or (`only_own_events`) stays.
void DevicePool::drain_stream(ContextPool& home, std::uint64_t identity, bool only_own_events) {
  StreamLanes::Entry* entry = home.streams.entry(identity);
  if (entry == nullptr || home.pooled->lane_bytes(entry->lane) == 0) return;
  // What waits without an event there would wait for the next plain free.
  only_own_events = only_own_events || device_.services.cannot_record.load(std::memory_order_relaxed);
  const bool can_record = !needs_context_event(*entry) && !entry->busy && may_call_driver();
  if (!can_record || device_.services.contexts.pin(&home, home.context) != Pin::held) {  // unpinned it could end, and the stream with it
    if (!only_own_events && !capturing()) lanes::drain(device_, home, entry->lane, deferred_.batch());
    return;
  }
  const Unpinner unpinner(device_.services.contexts, &home);
  Batch holes;
  const std::uint32_t lane = entry->lane;
  lanes::drain(device_, home, lane, holes);
  if (holes.first == nullptr) return;  // all of it has events already
  FenceResult result;
  Epoch* const epoch = record_lane(home, *entry, holes, false, &result);
  if (epoch == nullptr) return only_own_events ? lanes::return_holes(device_, home, lane, holes) : deferred_.batch().prepend(holes);
  if (result.answer != FenceAnswer::done && (only_own_events || capturing())) return lanes::return_holes(device_, home, lane, deferred_.finish(epoch));
  if (result.answer != FenceAnswer::done) return deferred_.reopen(epoch);
  epoch->set_lane(home, identity);
}

/// What a stream freed needs no event for it, wherever it is by now: back into its lane. True when there was any.
bool DevicePool::take_own(ContextPool& home, StreamName stream) {
  make_place_for_lane(home.context, stream);
  const bool had_stamped = lanes::take_own_stamped(device_, home, stream, deferred_.batch());
  return take_own_epochs(home, stream) || had_stamped;
}

/// What was drained from the stream's own lane needs no event for it: back there. True when there was any.
bool DevicePool::take_own_epochs(ContextPool& home, StreamName stream) {
  bool is_more = false;
  for (Epoch* next = deferred_.oldest(); next != nullptr;) {
    Epoch* const epoch = next;
    next = epoch->next;
    if (epoch->stream != stream.identity || epoch->home != &home || !epoch->recorded || epoch->busy) continue;
    const std::uint32_t lane = lanes::lane_for(device_, home, stream, deferred_.batch());
    if (lane == 0) return is_more;
    epoch->fence.clear(device_.services.contexts);
    const Batch holes = deferred_.finish(epoch);
    lanes::return_holes(device_, home, lane, holes);
    is_more = is_more || holes.first != nullptr;
  }
  return is_more;
}

void DevicePool::drain_streams(ContextPool& home, bool only_own_events, bool (*is_due)(const StreamLanes& streams, const StreamLanes::Entry& entry)) {
  std::array<std::uint64_t, StreamLanes::kMostLanes> identities{};
  std::size_t count = 0;
  for (const StreamLanes::Entry& entry : home.streams.entries())
    if (is_due(home.streams, entry)) identities[count++] = entry.identity;
  for (std::size_t i = 0; i < count && home.context != nullptr; ++i) drain_stream(home, identities[i], only_own_events);
}

static bool is_any_lane(const StreamLanes&, const StreamLanes::Entry&) { return true; }
static bool is_stale_lane(const StreamLanes& streams, const StreamLanes::Entry& entry) { return streams.is_stale(entry); }

/// On a miss: what no stream has touched for long joins the deferred frees, and the next miss finds it free. All of it where streams keep several
/// times what was ever live: then the pool would consist of what each of them keeps for itself.
void DevicePool::drain_stale_lanes(ContextPool& home) {
  if (home.pooled == nullptr) return;
  const std::uint64_t drained = device_.counters().lanes_drained.value.load(std::memory_order_relaxed);
  std::uint64_t kept_bytes = 0;
  for (const StreamLanes::Entry& entry : home.streams.entries()) kept_bytes += home.pooled->lane_bytes(entry.lane);
  const bool is_too_much = kept_bytes > backlog_.ahead_bytes(device_) && !capturing();
  drain_streams(home, false, is_too_much ? &is_any_lane : &is_stale_lane);
  if (device_.counters().lanes_drained.value.load(std::memory_order_relaxed) != drained) static_cast<void>(deferral_.close_epoch(device_, home.context, Deferral::Closing::late));
}

bool DevicePool::has_lanes() {
  for (const auto& home : homes_) {
    if (home->context == nullptr || home->pooled == nullptr) continue;
    for (const StreamLanes::Entry& entry : home->streams.entries())
      if (home->pooled->lane_bytes(entry.lane) != 0) return true;
  }
  return false;
}

/// `only_own_events`: a lane whose own stream cannot have an event stays as it is.
void DevicePool::drain_lanes(bool only_own_events) {
  for (std::size_t i = 0; i < homes_.size(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    if (home.context == nullptr || home.pooled == nullptr) continue;
    drain_streams(home, only_own_events, &is_any_lane);
  }
}

/// Their events outlive the stream, and its handle may come again.
void DevicePool::forget_stamps_of(ContextPool& home, std::uint64_t identity) {
  for (StampedFree& stamped : home.streams.stamped())
    if (stamped.identity == identity) stamped.identity = 0;
}

void DevicePool::stream_ending(std::uint64_t identity) {
  {
    const MutexLock lock(device_.lock);
    magazines_.close_of(device_, identity);
    deferred_.forget_stream(identity);
  }
  for (std::size_t i = 0;; ++i) {
    ContextPool* home = nullptr;
    CUcontext context = nullptr;
    {
      const MutexLock lock(device_.lock);
      if (i >= homes_.size()) return;
      home = homes_[i].get();
      if (home->streams.entry(identity) != nullptr) context = home->context;
      else forget_stamps_of(*home, identity);  // a free in somebody's capture needs no lane
    }
    if (context != nullptr) stream_ending(home, context, identity);
  }
}

void DevicePool::stream_ending(ContextPool* home, CUcontext context, std::uint64_t identity) {
  const MutexLock lock(device_.lock);
  magazines_.close_of(device_, identity);
  for (const StreamLanes::Entry* entry = home->streams.entry(identity); entry != nullptr && entry->busy; entry = home->streams.entry(identity)) {
    const MutexUnlock unlocked(device_.lock);  // its handle is in the driver's hands for a moment
    device_.services.clock.pause(kHandlePause_ns);
  }
  if (home->context != context || home->pooled == nullptr) return;
  drain_stream(*home, identity, false);
  if (home->context != context) return;
  if (const StreamLanes::Entry* entry = home->streams.entry(identity)) {
    const std::uint32_t lane = entry->lane;
    lanes::drain(device_, *home, lane, deferred_.batch());
    home->streams.remove(identity);
    home->pooled->remove_lane(lane);
  }
  static_cast<void>(deferral_.close_epoch(device_, context, Deferral::Closing::late));  // now, while the stream is there to be covered
  forget_stamps_of(*home, identity);
  deferred_.forget_stream(identity);
  // A program that makes and ends streams without end closes an epoch with each, and perhaps never misses: what is over goes as fast as it comes.
  Error ignored{};  // for the call that meets it
  for (int looks = 0; looks < 2 && deferred_.epoch_count() > kEndedStreamEpochs && deferral_.retire_oldest(device_, nullptr, false, &ignored); ++looks) {
  }
}

/// What streams have here is everybody's from now on, behind events of those that are named by a handle; a stream that goes on finds a new lane.
void DevicePool::streams_ending(ContextPool* home, CUcontext context) {
  std::array<std::uint64_t, StreamLanes::kMostLanes> identities{};
  std::size_t count = 0;
  {
    const MutexLock lock(device_.lock);
    if (home->context != context) return;
    magazines_.close_all(device_);
    for (const StreamLanes::Entry& entry : home->streams.entries())
      if (is_handle(entry.identity)) identities[count++] = entry.identity;
  }
  for (std::size_t i = 0; i < count; ++i) stream_ending(home, context, identities[i]);
  const MutexLock lock(device_.lock);
  if (home->context != context) return;
  for (StampedFree& stamped : home->streams.stamped())  // also of streams that had no lane
    if (is_handle(stamped.identity)) stamped.identity = 0;
  deferred_.forget_streams();
}

void DevicePool::retire_all(CUcontext asking, bool may_wait) {
  Error ignored{};  // an error of an older epoch is for the call that meets it
  while (deferral_.retire_oldest(device_, asking, may_wait, &ignored)) {
  }
  while (retire_any_stamped(asking, &ignored)) {
  }
}

/// CUPOOL_RELEASE_THRESHOLD means also what lies in lanes.
void DevicePool::give_back_surplus_of_lanes(CUcontext asking) {
  if (figures_.sum(device_).free_bytes > *device_.services.options.release_threshold_bytes) {
    drain_lanes();
    static_cast<void>(deferral_.close_epoch(device_, asking, Deferral::Closing::late));
  }
  retire_all(asking, false);
  giving_back_.surplus(device_, false);
}

PoolSet::MempoolFigures DevicePool::mempool_figures(std::uint8_t mempool) {
  const MutexLock lock(device_.lock);
  magazines_.look_for_mempool_peak(device_, mempool);
  const MempoolUse& use = device_.mempools[mempool];
  return {magazines_.mempool_used_bytes(device_, mempool), use.used_high_bytes.load(std::memory_order_relaxed), use.reserved_high_bytes.load(std::memory_order_relaxed)};
}

void DevicePool::reset_mempool_high(std::uint8_t mempool, MempoolHigh which) {
  const MutexLock lock(device_.lock);
  MempoolUse& use = device_.mempools[mempool];
  const std::uint64_t now_bytes = magazines_.mempool_used_bytes(device_, mempool);
  if (which != MempoolHigh::reserved) use.used_high_bytes.store(now_bytes, std::memory_order_relaxed);
  if (which != MempoolHigh::used) use.reserved_high_bytes.store(now_bytes, std::memory_order_relaxed);
}

}  // namespace cupool::device
