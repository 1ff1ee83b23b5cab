// Magazines and streams: what a thread freed on a stream stays with it for its next allocations on that stream, without an event and without the
// device's lock. As with everything that magazines keep, a request that misses gets it: closing a magazine puts each block into its stream's lane,
// where it would be without magazines, and so does the end of the stream.
//
// A block is kept when its size is freed for the second time on the stream. Nothing is kept while frees are to have events of their own (memory is
// short, and another stream may need these bytes behind such an event).
#include <algorithm>

#include "pool/device/context_lanes.hpp"
#include "pool/device/magazines.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;

/// Could another stream do without what is kept, as far as is known?
bool Magazines::has_room_to_keep(DeviceState& device, ContextPool& home, std::uint64_t budget_bytes) {
  return !shortage_.stamps_frees() && (home.streams.is_alone() || lanes::is_plenty(device, home, kept_bytes_, budget_bytes));
}

/// The thread's racks for a stream. A stream that is new to it gets unused racks; null: there are none. Once in a while the next stream in turn gives
/// its racks up, since it may not be in use any more.
StreamRacks* Magazines::racks_for(DeviceState& device, Magazine& magazine, StreamName stream) {
  if (StreamRacks* own = magazine.racks_of(stream.identity)) return own;
  StreamRacks* taken = magazine.racks_of(0);
  if (taken == nullptr) {
    if (++magazine.streams_turned_away < kTurnsAway) return nullptr;
    magazine.streams_turned_away = 0;
    taken = &magazine.streams[magazine.next_stream++ % Magazine::kStreams];
    for (SizedRack& sized : taken->sizes.racks) return_to_lane(device, magazine, taken->stream, sized.rack);
    *taken = {};
  }
  taken->stream = stream;
  const auto streams =
      std::count_if(magazine.streams.begin(), magazine.streams.end(), [](const StreamRacks& one) { return one.stream.identity != 0; });
  magazine.soon = Magazine::kSoon * std::max<std::uint64_t>(1, static_cast<std::uint64_t>(streams) / 2);
  return taken;
}

/// The rack is another size's, and becomes this size's once that was asked for often enough while there were blocks in it.
void Magazines::ask_for_rack(DeviceState& device, Magazine& magazine, StreamName stream, SizedRack& sized, std::uint64_t bytes) {
  if (sized.rack.first != nullptr && sized.rack.batch != 0) {
    --sized.rack.batch;
    return;
  }
  return_to_lane(device, magazine, stream, sized.rack);
  sized.bytes = bytes;
  sized.heat = 0;
}

bool Magazines::keep_for_stream(DeviceState& device, Extent* extent, ContextPool& home, StreamName stream, std::uint16_t thread, MagazineUser& user) {
  if (!may_keep(device) || !user.may_keep) return false;
  const std::uint64_t spare_bytes = device.spare_now_bytes();
  const std::uint64_t budget_bytes = spare_bytes / Magazine::kKeptShare;
  if (is_too_large_to_keep(extent->bytes, spare_bytes, budget_bytes) || !has_room_to_keep(device, home, budget_bytes)) return false;
  if (!find_magazine(device, home, user)) return false;
  Magazine& magazine = *user.magazine;
  if (!enter_own(device, magazine)) return false;
  const OwnerInside held(magazine.lock);
  flush_counts(device, magazine);
  if (!open(device, magazine, spare_bytes)) return false;
  age(device, magazine);
  StreamRacks* const racks = racks_for(device, magazine, stream);
  if (racks == nullptr) return false;
  SizedRack& sized = racks->sizes.at(extent->bytes);
  if (sized.bytes != extent->bytes) {
    ask_for_rack(device, magazine, stream, sized, extent->bytes);
    return false;
  }
  sized.rack.batch = kTurnsAway;
  sized.rack.used = magazine.operations;
  if (Magazine::is_cold(sized, extent->bytes)) return false;  // turned away, but not for want of room
  if (!enter_table(extent, home)) return false;
  if (!magazine.keep(*racks, extent)) {
    if (++magazine.turned_away < kTurnsAway) return false;
    return_to_lanes(device, magazine);  // full of blocks that are not wanted any more, perhaps of other streams: makes room for the current ones
    magazine.turned_away = 0;
    return false;
  }
  extent->state = ExtentState::cached;
  extent->birth = kYoungest;
  change_kept(magazine, static_cast<std::int64_t>(extent->bytes));
  device.count_free(*extent);
  home.streams.see(stream.identity);
  home.streams.count_frees(1);
  device.note_freed(*extent, thread, stream.identity);
  return true;
}

/// Puts the block into the table in a state in which no look-up takes it for a live block.
bool Magazines::enter_table(Extent* extent, ContextPool& home) {
  extent->state = ExtentState::deferred;
  if (!extent->is_in_table) extent->is_in_table = home.kept->table.insert(extent);
  return extent->is_in_table;
}

/// Takes a block that the thread keeps for the stream although the magazine would not hand it out by itself: there may be a new peak.
Extent* Magazines::take_for_stream(DeviceState& device, ContextPool& home, const AllocationRequest& request, MagazineUser& user) {
  if (user.magazine == nullptr || !may_keep(device) || !find_magazine(device, home, user)) return nullptr;
  Magazine& magazine = *user.magazine;
  if (!enter_own(device, magazine)) return nullptr;
  const OwnerInside held(magazine.lock);
  flush_counts(device, magazine);
  if (counts_run_ahead(device, request)) visit_open(device, &Magazines::flush_counts, &magazine);
  magazine.mempool = request.mempool;  // the counts so far, now flushed, were of the other pool
  age(device, magazine);
  StreamRacks* const own = magazine.is_open ? magazine.racks_of(request.stream.identity) : nullptr;
  if (own == nullptr) return nullptr;
  SizedRack& sized = own->sizes.at(request.bytes);
  if (sized.bytes != request.bytes) return nullptr;
  magazine.warm(sized);
  if (sized.rack.first == nullptr) return nullptr;
  grant(device, magazine, request);
  Extent* extent = sized.rack.pop();
  sized.rack.used = magazine.operations;
  magazine.ordered_bytes -= extent->bytes;
  change_kept(magazine, -static_cast<std::int64_t>(extent->bytes));
  extent->flags = 0;
  extent->state = ExtentState::live;
  return extent;
}

/// Moves what is kept for a stream in one rack to the stream's other holes.
void Magazines::return_to_lane(DeviceState& device, Magazine& magazine, StreamName stream, Rack& rack) {
  if (rack.first == nullptr) return;
  ContextPool& home = *magazine.home;
  const StreamLanes::Entry* entry = home.streams.entry(stream.identity);  // find() would count as a use
  const std::uint32_t lane = entry != nullptr ? entry->lane : lanes::lane_for(device, home, stream, deferred_.batch());
  std::uint64_t bytes = 0;
  while (rack.first != nullptr) {
    Extent* extent = rack.pop();
    bytes += extent->bytes;
    magazine.ordered_bytes -= extent->bytes;
    change_kept(magazine, -static_cast<std::int64_t>(extent->bytes));
    leave_table(extent);
    if (lane != 0) {
      home.pooled->recycle_in_lane(device, extent, lane);
      continue;
    }
    extent->flags = kFreedInOrderFlag;
    device.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
    home.pooled->defer(device, extent);
    deferred_.push(extent);
  }
  home.streams.note_fill(lane, bytes);
}

void Magazines::return_to_lanes(DeviceState& device, Magazine& magazine) {
  for (StreamRacks& one : magazine.streams) {
    for (SizedRack& sized : one.sizes.racks) return_to_lane(device, magazine, one.stream, sized.rack);
    one = {};
  }
  magazine.soon = Magazine::kSoon;
}

/// Adds what the magazine's stream-ordered calls changed to the memory pool's counts.
void Magazines::flush_mempool(DeviceState& device, Magazine& magazine) {
  MempoolUse& use = device.mempools[magazine.mempool];
  use.used_bytes.store(use.used_bytes.load(std::memory_order_relaxed) + magazine.mempool_bytes.load(std::memory_order_relaxed),
                       std::memory_order_relaxed);
  magazine.mempool_bytes.store(0, std::memory_order_relaxed);
}

std::uint64_t Magazines::mempool_used_bytes(const DeviceState& device, std::uint8_t mempool) const {
  std::uint64_t used_bytes = device.mempools[mempool].used_bytes.load(std::memory_order_relaxed);
  for (const auto& magazine : magazines_)
    if (magazine->mempool == mempool) used_bytes += magazine->mempool_bytes.load(std::memory_order_relaxed);
  return used_bytes < ~std::uint64_t{0} / 2 ? used_bytes : 0;  // a "negative" value: another thread is between two updates
}

void Magazines::look_for_mempool_peak(DeviceState& device, std::uint8_t mempool) {
  MempoolUse& use = device.mempools[mempool];
  const std::uint64_t now_bytes = mempool_used_bytes(device, mempool);
  for (std::atomic<std::uint64_t>* high_bytes : {&use.used_high_bytes, &use.reserved_high_bytes})
    high_bytes->store(std::max(high_bytes->load(std::memory_order_relaxed), now_bytes), std::memory_order_relaxed);
}

void Magazines::close_of(DeviceState& device, std::uint64_t identity) {
  visit_open(
      device, &Magazines::close, nullptr, BusyOwners::wait_for,
      [](const Magazine& magazine, std::uint64_t key) {
        return std::any_of(magazine.streams.begin(), magazine.streams.end(), [key](const StreamRacks& one) { return one.stream.identity == key; });
      },
      identity);
}

}  // namespace cupool::device
