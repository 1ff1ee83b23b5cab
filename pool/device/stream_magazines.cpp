// Magazines and streams: what a thread freed on a stream stays with it for its next allocations on that stream, without an event and without
// the device's lock. As with everything that magazines keep, whoever misses gets it: closing one puts each block into its stream's lane, where it
// would be without magazines, and so does the end of the stream.
//
// A block is kept when its size is freed for the second time on the stream. Nothing is kept while frees are to have events of their own
// (memory is short, and another stream may need these bytes behind such an event).
#include <algorithm>

#include "pool/device/context_lanes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/device/magazine.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;

/// Could another stream do without what is kept, as far as is known?
bool DevicePool::has_room_to_keep(ContextPool& home, std::uint64_t budget_bytes) {
  return !shortage_.stamps_frees() && (home.streams.is_alone() || lanes::is_plenty(device_, home, kept_bytes_, budget_bytes));
}

/// The thread's racks for a stream. A stream that is new to it gets those that are nobody's; null: there are none. Once in a while the next in turn makes
/// room, since it may be yesterday's.
StreamRacks* DevicePool::racks_for(Magazine& magazine, StreamName stream) {
  if (StreamRacks* own = magazine.racks_of(stream.identity)) return own;
  StreamRacks* taken = magazine.racks_of(0);
  if (taken == nullptr) {
    if (++magazine.streams_turned_away < kTurnsAway) return nullptr;
    magazine.streams_turned_away = 0;
    taken = &magazine.streams[magazine.next_stream++ % Magazine::kStreams];
    for (SizedRack& sized : taken->sizes.racks) return_to_lane(magazine, taken->stream, sized.rack);
    *taken = {};
  }
  taken->stream = stream;
  const auto streams = std::count_if(magazine.streams.begin(), magazine.streams.end(), [](const StreamRacks& one) { return one.stream.identity != 0; });
  magazine.soon = Magazine::kSoon * std::max<std::uint64_t>(1, static_cast<std::uint64_t>(streams) / 2);
  return taken;
}

/// A block that is being freed: true when its thread keeps it, and the free is done. `user`: of the block's context.
bool DevicePool::keep_for_stream(Extent* extent, ContextPool& home, StreamName stream, std::uint16_t thread, MagazineUser& user) {
  if (!may_keep() || !user.may_keep) return false;
  const std::uint64_t spare_bytes = device_.spare_bytes();
  const std::uint64_t budget_bytes = spare_bytes / Magazine::kKeptShare;
  if (is_too_large_to_keep(extent->bytes, spare_bytes, budget_bytes) || !has_room_to_keep(home, budget_bytes)) return false;
  if (!find_magazine(home, user)) return false;
  Magazine& magazine = *user.magazine;
  if (!enter_own(magazine)) return false;
  const OwnerInside held(magazine.lock);
  tell(magazine);
  if (!open(magazine, spare_bytes)) return false;
  age(magazine);
  StreamRacks* const racks = racks_for(magazine, stream);
  if (racks == nullptr) return false;
  SizedRack& sized = racks->sizes.at(extent->bytes);
  if (sized.bytes != extent->bytes) {
    if (sized.rack.first != nullptr && sized.rack.batch != 0) {
      --sized.rack.batch;
      return false;
    }
    return_to_lane(magazine, stream, sized.rack);
    sized.bytes = extent->bytes;
    sized.heat = 0;
    return false;
  }
  sized.rack.batch = kTurnsAway;
  sized.rack.used = magazine.operations;
  if (Magazine::is_cold(sized, extent->bytes)) return false;  // not for want of room
  if (!enter_table(extent, home)) return false;
  if (!magazine.keep(*racks, extent)) {
    if (++magazine.turned_away < kTurnsAway) return false;
    return_to_lanes(magazine);  // full of what was wanted yesterday, perhaps on other streams: what is wanted today comes back
    magazine.turned_away = 0;
    return false;
  }
  extent->state = ExtentState::cached;
  extent->birth = kYoungest;
  change_kept(magazine, static_cast<std::int64_t>(extent->bytes));
  device_.count_free(*extent);
  home.streams.see(stream.identity);
  home.streams.count_frees(1);
  device_.note_freed(*extent, thread, stream.identity);
  return true;
}

/// Nobody finds it there as one that lives.
bool DevicePool::enter_table(Extent* extent, ContextPool& home) {
  extent->state = ExtentState::deferred;
  if (!extent->is_in_table) extent->is_in_table = home.kept->table.insert(extent);
  return extent->is_in_table;
}

/// A block that the thread keeps for the stream although the magazine would not hand it out by itself: there may be a new peak.
Extent* DevicePool::take_for_stream(ContextPool& home, const AllocationRequest& request, MagazineUser& user) {
  if (user.magazine == nullptr || !may_keep() || !find_magazine(home, user)) return nullptr;
  Magazine& magazine = *user.magazine;
  if (!enter_own(magazine)) return nullptr;
  const OwnerInside held(magazine.lock);
  tell(magazine);
  if (counts_run_ahead(request)) visit_open_magazines(&DevicePool::tell, &magazine);
  magazine.mempool = request.mempool;  // what was told was the other's
  age(magazine);
  StreamRacks* const own = magazine.is_open ? magazine.racks_of(request.stream.identity) : nullptr;
  if (own == nullptr) return nullptr;
  SizedRack& sized = own->sizes.at(request.bytes);
  if (sized.bytes != request.bytes) return nullptr;
  magazine.warm(sized);
  if (sized.rack.first == nullptr) return nullptr;
  grant(magazine, request);
  Extent* extent = sized.rack.pop();
  sized.rack.used = magazine.operations;
  magazine.ordered_bytes -= extent->bytes;
  change_kept(magazine, -static_cast<std::int64_t>(extent->bytes));
  extent->flags = 0;
  extent->state = ExtentState::live;
  return extent;
}

/// What is kept for a stream in one rack goes where the stream's other holes are.
void DevicePool::return_to_lane(Magazine& magazine, StreamName stream, Rack& rack) {
  if (rack.first == nullptr) return;
  ContextPool& home = *magazine.home;
  const StreamLanes::Entry* entry = home.streams.entry(stream.identity);  // to ask for it would be a use
  const std::uint32_t lane = entry != nullptr ? entry->lane : lanes::lane_for(device_, home, stream, deferred_.batch());
  std::uint64_t bytes = 0;
  while (rack.first != nullptr) {
    Extent* extent = rack.pop();
    bytes += extent->bytes;
    magazine.ordered_bytes -= extent->bytes;
    change_kept(magazine, -static_cast<std::int64_t>(extent->bytes));
    leave_table(extent);
    if (lane != 0) {
      home.pooled->recycle_in_lane(device_, extent, lane);
      continue;
    }
    extent->flags = kUsedAgainFlag;
    device_.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
    home.pooled->defer(device_, extent);
    deferred_.push(extent);
  }
  home.streams.note_fill(lane, bytes);
}

void DevicePool::return_to_lanes(Magazine& magazine) {
  for (StreamRacks& one : magazine.streams) {
    for (SizedRack& sized : one.sizes.racks) return_to_lane(magazine, one.stream, sized.rack);
    one = {};
  }
  magazine.soon = Magazine::kSoon;
}

/// What its stream-ordered calls changed becomes the memory pool's.
void DevicePool::tell_mempool(Magazine& magazine) {
  MempoolUse& use = device_.mempools[magazine.mempool];
  use.used_bytes.store(use.used_bytes.load(std::memory_order_relaxed) + magazine.mempool_bytes.load(std::memory_order_relaxed), std::memory_order_relaxed);
  magazine.mempool_bytes.store(0, std::memory_order_relaxed);
}

/// With what magazines have not told yet.
std::uint64_t DevicePool::mempool_used_bytes(std::uint8_t mempool) {
  std::uint64_t used_bytes = device_.mempools[mempool].used_bytes.load(std::memory_order_relaxed);
  for (const auto& magazine : magazines_)
    if (magazine->mempool == mempool) used_bytes += magazine->mempool_bytes.load(std::memory_order_relaxed);
  return used_bytes < ~std::uint64_t{0} / 2 ? used_bytes : 0;  // below 0: another thread is in between
}

void DevicePool::look_for_mempool_peak(std::uint8_t mempool) {
  MempoolUse& use = device_.mempools[mempool];
  const std::uint64_t now_bytes = mempool_used_bytes(mempool);
  for (std::atomic<std::uint64_t>* high_bytes : {&use.used_high_bytes, &use.reserved_high_bytes})
    high_bytes->store(std::max(high_bytes->load(std::memory_order_relaxed), now_bytes), std::memory_order_relaxed);
}

/// A stream is about to end: nothing is kept for it any more.
void DevicePool::close_magazines_of(std::uint64_t identity) {
  visit_open_magazines(&DevicePool::close, nullptr, BusyOwners::wait_for, [](const Magazine& magazine, std::uint64_t key) {
    return std::any_of(magazine.streams.begin(), magazine.streams.end(), [key](const StreamRacks& one) { return one.stream.identity == key; });
  }, identity);
}

PoolSet::MempoolFigures DevicePool::mempool_figures(std::uint8_t mempool) {
  const MutexLock lock(device_.lock);
  look_for_mempool_peak(mempool);
  const MempoolUse& use = device_.mempools[mempool];
  return {mempool_used_bytes(mempool), use.used_high_bytes.load(std::memory_order_relaxed), use.reserved_high_bytes.load(std::memory_order_relaxed)};
}

void DevicePool::reset_mempool_high(std::uint8_t mempool, MempoolHigh which) {
  const MutexLock lock(device_.lock);
  MempoolUse& use = device_.mempools[mempool];
  const std::uint64_t now_bytes = mempool_used_bytes(mempool);
  if (which != MempoolHigh::reserved) use.used_high_bytes.store(now_bytes, std::memory_order_relaxed);
  if (which != MempoolHigh::used) use.reserved_high_bytes.store(now_bytes, std::memory_order_relaxed);
}

std::uint64_t DevicePool::plain_bytes() {
  const MutexLock lock(device_.lock);
  const std::uint64_t live_bytes = device_.counters().live_bytes.current.load(std::memory_order_relaxed);
  return live_bytes - std::min(live_bytes, device_.driver_served_bytes);
}

}  // namespace cupool::device
