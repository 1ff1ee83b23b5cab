// Stream-ordered allocation and free, and the ends of streams. What a free leaves with its stream, and how others get it: stream_frees.hpp.
#include <algorithm>
#include <array>

#include "pool/device/context_lanes.hpp"
#include "pool/device/device_pool.hpp"

namespace cupool::device {

using heap::Extent;

namespace {
constexpr std::uint64_t kHandlePause_ns = 5'000;
constexpr std::uint64_t kWaitingShare = 16;  ///< the part of the spare memory that may wait
}  // namespace

CUdeviceptr DevicePool::allocate_on(ContextPool* home, CUcontext context, std::size_t bytes, StreamName stream, std::uint8_t mempool, BlockLife life,
                                    const char* api, std::uint16_t thread, MagazineUser user, Error* answer) {
  AllocationRequest request;
  request.bytes = round_request(bytes);
  request.requested_bytes = bytes;
  request.stream = stream;
  request.mempool = mempool;
  request.life = life;
  const bool is_served = life == BlockLife::context || home->can_outlive.load(std::memory_order_relaxed);
  const bool may_be_kept = is_served && request.bytes - 1 < kLargestKept_bytes;  // excludes 0, a size that overflowed
  if (may_be_kept && user.magazine != nullptr)
    if (const CUdeviceptr address = user.magazine->allocate_on(context, stream.identity, mempool, bytes, request.bytes, thread)) return address;
  return serve(home, context, request, api, thread, may_be_kept && user.may_keep ? &user : nullptr, answer);
}

/// A block of a plain call that is freed in stream order, in a program that allocates nothing in stream order: plain calls will ask for such blocks
/// again, and get nothing out of a lane until memory is short. An epoch covers the stream as it covers any other.
bool DevicePool::goes_plain_way(const Extent& extent) const {
  return mempool_of(extent) == 0 && !info_of(extent).home->streams.has_allocated() && device_.services.options.free == config::FreeMode::deferred &&
         !device_.services.synchronises() && !capturing();
}

/// Can the driver free the block in the order of a stream?
bool DevicePool::frees_in_order(const Extent& extent) const {
  if (!device_.driver.has_cuMemFreeAsync()) return false;
  return policy_ == config::Policy::platform || (policy_ == config::Policy::async && info_of(extent).is_native && !capturing());
}

/// An epoch waits for other streams too. Is the block as large as a whole epoch, which takes an event anyway, or is much waiting already, perhaps for
/// other streams?
bool DevicePool::is_worth_an_event(const Extent& extent) const {
  if (extent.bytes >= backlog_.epoch_bytes(device_)) return true;
  return device_.live.counters.deferred_bytes.now() >= device_.spare_now_bytes() / kWaitingShare;
}

FreeOutcome DevicePool::free_on(CUdeviceptr address, CUcontext context, StreamName stream, std::uint16_t thread, MagazineUser* user, Error* answer) {
  FreeOutcome outcome = FreeOutcome::unknown;
  bool must_clear = false;
  {
    const MutexLock lock(device_.lock);
    if (context != nullptr) stream_frees_.make_place_for_lane(device_, context, stream);  // before anybody can have the block
    Extent* extent = begin_free(address, &outcome);
    if (extent == nullptr) return outcome;
    must_clear = !memops_to_clear_.empty();
    ContextPool& home = *info_of(*extent).home;
    const bool is_pooled = !info_of(*extent).is_native && !device_.disabled && may_call_driver();
    const bool is_in_context = is_pooled && context != nullptr && home.context == context;
    const bool is_plain = is_in_context && goes_plain_way(*extent);
    const bool is_ordinary = is_in_context && !is_plain;
    // The stream is of another context, and no epoch would ever cover it.
    const bool needs_own_event = is_pooled && !home.is_orphan && context != nullptr && !device_.services.has_context_events();
    const bool has_own_event = is_plain ? is_worth_an_event(*extent) : is_ordinary || needs_own_event;
    if (is_ordinary && user != nullptr && magazines_.keep_for_stream(device_, extent, home, stream, thread, *user)) return FreeOutcome::freed;
    Magazines::leave_table(extent);
    if (is_ordinary && !capturing()) outcome = stream_frees_.free_in_lane(device_, extent, home, context, stream, thread);
    else if (has_own_event && stream_frees_.free_stamped(device_, extent, home, context, stream, thread, StreamFrees::StampedPlace::aside))
      outcome = FreeOutcome::freed;
    else if (is_plain) outcome = free_deferred(extent, thread, answer, false);
    else if (frees_in_order(*extent)) outcome = free_native(extent, thread, answer, &stream.handle);
    else outcome = free_behind(extent, context, stream, thread, answer);
    stream_frees_.stamp_late(device_, context, stream);
    if (home.is_orphan) orphans_.empty(device_);
  }
  if (must_clear) clear_region_memops();
  return outcome;
}

/// Defers the block: its epoch covers every stream. Where no epoch can, an event on this stream does.
FreeOutcome DevicePool::free_behind(Extent* extent, CUcontext context, StreamName stream, std::uint16_t thread, Error* answer) {
  if (context == nullptr || device_.services.has_context_events() || device_.disabled) return free_deferred(extent, thread, answer, false);
  deferral_.defer(device_, extent, thread);
  deferred_.batch().remove(extent);
  stream_frees_.leave_unstamped(device_, extent, context, stream);
  return FreeOutcome::freed;
}

void DevicePool::end_unstamped(std::uint64_t identity) {
  const MutexLock lock(device_.lock);
  stream_frees_.stamp_late(device_);
  while (deferred_.unstamped().is_taken(identity)) {
    const MutexUnlock unlocked(device_.lock);  // the handle is in the driver's hands for a moment
    device_.services.clock.pause(kHandlePause_ns);
  }
  deferred_.unstamped().forget_stream(identity);
}

void DevicePool::stream_ending(std::uint64_t identity) {
  {
    const MutexLock lock(device_.lock);
    magazines_.close_of(device_, identity);
    device_.backlog_at_driver.stream_ending(identity);
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
      else StreamFrees::forget_stamps_of(*home, identity);  // a free in another thread's capture has a stamp without a lane
    }
    if (context != nullptr) stream_ending(home, context, identity);
  }
}

void DevicePool::stream_ending(ContextPool* home, CUcontext context, std::uint64_t identity) {
  const MutexLock lock(device_.lock);
  magazines_.close_of(device_, identity);
  device_.backlog_at_driver.stream_ending(identity);
  for (const StreamLanes::Entry* entry = home->streams.entry(identity); entry != nullptr && entry->busy; entry = home->streams.entry(identity)) {
    const MutexUnlock unlocked(device_.lock);  // the handle is in the driver's hands for a moment
    device_.services.clock.pause(kHandlePause_ns);
  }
  if (home->context != context || home->pooled == nullptr) return;
  stream_frees_.drain_stream(device_, *home, identity, false);
  if (home->context != context) return;
  if (const StreamLanes::Entry* entry = home->streams.entry(identity)) {
    const std::uint32_t lane = entry->lane;
    lanes::drain(device_, *home, lane, deferred_.batch());
    home->streams.remove(identity);
    home->pooled->remove_lane(lane);
  }
  static_cast<void>(deferral_.close_epoch(device_, context, Deferral::Closing::late));  // now, while an event still covers the stream
  StreamFrees::forget_stamps_of(*home, identity);
  deferred_.forget_stream(identity);
  // A program that goes on making and ending streams closes an epoch with each, and may never miss: what is over is retired as fast as it comes.
  Error ignored{};  // for the call that meets it
  for (int looks = 0; looks < 2 && deferred_.epoch_count() > kEndedStreamEpochs && deferral_.retire_oldest(device_, nullptr, false, &ignored);
       ++looks) {}
}

/// What streams have here becomes free for everybody, behind events of those that are named by a handle; a stream that goes on gets a new lane.
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

PoolSet::MempoolFigures DevicePool::mempool_figures(std::uint8_t mempool) {
  const MutexLock lock(device_.lock);
  magazines_.look_for_mempool_peak(device_, mempool);
  const MempoolUse& use = device_.mempools[mempool];
  return {magazines_.mempool_used_bytes(device_, mempool), use.used_high_bytes.load(std::memory_order_relaxed),
          use.reserved_high_bytes.load(std::memory_order_relaxed)};
}

void DevicePool::reset_mempool_high(std::uint8_t mempool, MempoolHigh which) {
  const MutexLock lock(device_.lock);
  MempoolUse& use = device_.mempools[mempool];
  const std::uint64_t now_bytes = magazines_.mempool_used_bytes(device_, mempool);
  if (which != MempoolHigh::reserved) use.used_high_bytes.store(now_bytes, std::memory_order_relaxed);
  if (which != MempoolHigh::used) use.reserved_high_bytes.store(now_bytes, std::memory_order_relaxed);
}

void DevicePool::open_waited_lanes(ContextPool& home, std::uint64_t identity, std::uint64_t fills) {
  const MutexLock lock(device_.lock);
  stream_frees_.open_waited_lanes(device_, home, identity, fills);
}

}  // namespace cupool::device
