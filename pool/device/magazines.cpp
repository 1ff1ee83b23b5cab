// Magazines: how they get blocks, what the device learns of what happened in them, and how they are closed.
//
// A block that comes here stays a block to the heap (state cached while it is nobody's), and is in its home's table, until nobody may keep it
// or the magazines are closed. It is kept only where its size was asked for again and again.
#include "pool/device/magazine.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "pool/device/device_pool.hpp"
#include "pool/heap/extent_arena.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;
using observe::EventKind;

namespace {
static_assert(observe::kLiveShards < heap::ExtentArena::kKeepers, "each magazine is a keeper");
constexpr std::uint64_t kMagazineShare = 256;  ///< of what the program has never needed at once: so much of a thread's frees may be without an event
constexpr std::uint64_t kLeastBudget_bytes = 32 * kKiB;
constexpr std::uint64_t kFreeShare = 4;  ///< of an epoch. How much lies here differs from step to step of a job, and is on top of what it needs
constexpr std::uint64_t kLeastSpare_bytes = 4 * kGiB;  ///< without so much, large blocks are the heap's alone: it places them better
constexpr std::uint64_t kBufferIds = 1024;  ///< given to a magazine at a time
}  // namespace

/// Small blocks are kept for reuse only in ordinary times: every other way of a free wants to see each block under the lock.
bool DevicePool::may_keep() {
  const PoolServices& services = device_.services;
  const bool is_ordinary = services.options.free == config::FreeMode::deferred && !services.options.release_threshold_bytes && services.trace == nullptr && !unpooled_;
  return is_ordinary && !device_.disabled && may_call_driver() && !device_.services.synchronises() && !capturing() && !shortage_.forbids_keeping();
}

/// The magazine of this thread in `home`; null when there is no room for one more.
Magazine* DevicePool::own_magazine(ContextPool& home) {
  Magazine* unused = nullptr;
  for (const auto& magazine : magazines_) {
    if (magazine->is_of_this_thread() && magazine->home == &home) return magazine.get();
    if (!magazine->is_owned) unused = magazine.get();
  }
  if (unused == nullptr) {
    if (magazines_.size() == observe::kLiveShards) return nullptr;
    std::byte* const place = device_.live.shards + magazines_.size() * sizeof(observe::LiveShard);
    const auto number = static_cast<std::uint8_t>(magazines_.size() + 1);
    magazines_.push_back(std::make_unique<Magazine>(surroundings_, *::new (place) observe::LiveShard, number));
    unused = magazines_.back().get();
    if (magazines_.size() == 2) {
      has_several_magazines_.store(true, std::memory_order_relaxed);
      visit_open_magazines(&DevicePool::tell, nullptr);  // from here on what one thread has is not known to it alone
    }
  }
  if (home.kept == nullptr) home.kept = std::make_unique<KeptBlocks>();
  unused->is_owned = true;
  unused->owner = pthread_self();
  unused->home = &home;
  return unused;
}

/// `budget_bytes`: of what a block would be part of, complete and a stream's, or freed and without an event.
bool DevicePool::is_too_large_to_keep(std::uint64_t bytes, std::uint64_t spare_bytes, std::uint64_t budget_bytes) {
  return bytes > kLargestSmallBlock_bytes && (spare_bytes < kLeastSpare_bytes || bytes > budget_bytes / Magazine::kLeastLarge);
}

/// The thread knows its magazine in `home` now; false: there is none for it.
bool DevicePool::find_magazine(ContextPool& home, MagazineUser& user) {
  if (user.magazine == nullptr) {
    try {
      user.magazine = own_magazine(home);
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  return user.magazine != nullptr && user.magazine->home == &home && user.magazine->is_of_this_thread();  // else given up meanwhile
}

/// It may keep a share of that from now on; false, and closed, when that is next to nothing.
bool DevicePool::open(Magazine& magazine, std::uint64_t spare_bytes) {
  const std::uint64_t budget_bytes = std::min(Magazine::kMost_bytes, spare_bytes / kMagazineShare);
  magazine.budget_bytes = budget_bytes;
  magazine.kept_budget_bytes = spare_bytes / Magazine::kKeptShare;
  magazine.free_budget_bytes = std::min(budget_bytes, deferred_.due_bytes() / kFreeShare);
  if (budget_bytes < kLeastBudget_bytes) {
    close(magazine);
    return false;
  }
  magazine.context = magazine.home->context;
  magazine.is_open = true;
  magazine.table = &magazine.home->kept->table;
  return true;
}

/// A block for a thread that asks again: from its magazine, which is filled for the next requests. Null: from the heap.
Extent* DevicePool::take_kept(ContextPool& home, const AllocationRequest& request, MagazineUser& user) {
  if (request.stream.identity != 0) return take_for_stream(home, request, user);
  if (!may_keep()) return nullptr;
  const std::uint64_t spare_bytes = device_.spare_bytes();
  if (is_too_large_to_keep(request.bytes, spare_bytes, spare_bytes / kMagazineShare)) return nullptr;
  if (!find_magazine(home, user)) return nullptr;
  Magazine& magazine = *user.magazine;
  if (!enter_own(magazine)) return nullptr;
  const OwnerInside held(magazine.lock);
  tell(magazine);
  if (counts_run_ahead(request)) visit_open_magazines(&DevicePool::tell, &magazine);
  if (!open(magazine, spare_bytes)) return nullptr;
  age(magazine);
  Rack* const rack_of_size = make_rack(magazine, request.bytes);
  if (rack_of_size == nullptr) return nullptr;
  Rack& rack = *rack_of_size;
  while (rack.first == nullptr && magazine.open_parcel()) {
  }
  if (rack.first != nullptr) grant(magazine, request);  // it had one, and was not to hand it out
  if (rack.first == nullptr) refill(magazine, home, request, rack);
  if (rack.first == nullptr) return nullptr;
  Extent* extent = rack.pop();
  rack.used = magazine.operations;
  change_kept(magazine, -static_cast<std::int64_t>(extent->bytes));
  extent->state = ExtentState::live;
  return extent;
}

/// What the racks hold is free memory in every sum.
void DevicePool::change_kept(Magazine& magazine, std::int64_t bytes) {
  magazine.kept_bytes += static_cast<std::uint64_t>(bytes);
  kept_bytes_ += static_cast<std::uint64_t>(bytes);
}

/// Counts of the magazine become the device's.
void DevicePool::tell(Magazine& magazine) {
  observe::Counters& counters = device_.counters();
  const auto take = [](std::atomic<std::uint64_t>& word) {
    const std::uint64_t value = word.load(std::memory_order_relaxed);
    word.store(0, std::memory_order_relaxed);
    return value;
  };
  observe::LiveShard& shard = magazine.shard;
  counters.allocations.add(take(shard.allocations));
  counters.frees.add(take(shard.frees));
  counters.rung_hole.add(take(shard.rung_hole));
  const LiveSum told{static_cast<std::int64_t>(take(shard.live_bytes)), static_cast<std::int64_t>(take(shard.requested_bytes)),
                     static_cast<std::int64_t>(take(shard.live_blocks))};
  counters.live_bytes.shift(told.bytes);
  counters.requested_bytes.shift(told.requested_bytes);
  counters.live_blocks.shift(told.blocks);
  if (magazines_.size() > 1) use_allowance(magazine, told);
  look_for_peak();
  counters.deferred_bytes.add(static_cast<std::int64_t>(take(shard.deferred_bytes)));
  tell_mempool(magazine);
  for (StreamRacks& one : magazine.streams)
    if (one.pairs != 0) magazine.home->streams.count_pairs(one.stream.identity, std::exchange(one.pairs, 0));
  change_kept(magazine, -static_cast<std::int64_t>(magazine.taken_bytes));
  magazine.taken_bytes = 0;
  drop_misfits(magazine);
  receive_parcels(magazine);
  if (magazine.next_buffer_id != magazine.end_buffer_id) return;
  magazine.next_buffer_id = next_buffer_id_;
  magazine.end_buffer_id = next_buffer_id_ += kBufferIds;
}

/// What has come back is handed over.
void DevicePool::receive_parcels(Magazine& magazine) {
  for (Parcel* parcel = magazine.emptied; parcel != nullptr;) {
    Parcel* next = parcel->next;
    Magazine::put(*parcel, magazine.spare);
    parcel = next;
  }
  magazine.emptied = nullptr;
  for (Parcel* parcel = magazine.returned; parcel != nullptr;) {
    Parcel* next = parcel->next;
    Magazine::put(*parcel, magazine.complete);
    parcel = next;
  }
  magazine.returned = nullptr;
}

/// What the thread has freed goes on its way.
void DevicePool::send_parcel(Magazine& magazine) {
  if (magazine.freed == nullptr) return;
  Parcel parcel{magazine.freed, magazine.freed_count, magazine.freed_bytes, &magazine, magazine.home, 0, nullptr};
  magazine.freed = nullptr;
  magazine.freed_count = 0;
  magazine.freed_bytes = 0;
  if (Parcel* spare = magazine.spare) {
    magazine.spare = spare->next;
    *spare = parcel;
    deferred_.batch().push(spare);
    return;
  }
  Batch blocks;
  blocks.push(&parcel);
  blocks.unpack([](Parcel*) {});
  deferred_.batch().prepend(blocks);
}

/// A parcel whose free is complete: to the thread that sent it, or, when it keeps much already or is gone, to where any block goes.
void DevicePool::deliver(Parcel* parcel, std::uint64_t now, std::uint64_t depot_bytes) {
  Magazine& owner = *parcel->owner;
  if (depot_bytes != 0 && owner.is_open && owner.home == parcel->home && owner.kept_bytes + parcel->bytes <= owner.kept_budget_bytes) {
    parcel->completed_ticks = now;
    Magazine::put(*parcel, owner.returned);
    change_kept(owner, static_cast<std::int64_t>(parcel->bytes));
    return;
  }
  for (Extent* extent = parcel->first; extent != nullptr;) {
    Extent* next = extent->bin_next;
    device_.note(EventKind::free_completed, now, *extent, 0);
    if (!keep_in_depot(extent, depot_bytes)) parcel->home->pooled->recycle(device_, extent);
    extent = next;
  }
  Magazine::put(*parcel, owner.spare);
}

/// A report that did not wait for this thread has left its magazine closed to it.
bool DevicePool::enter_own(Magazine& magazine) {
  magazine.lock.forget_wish();
  return magazine.lock.lock_by_owner(device_.services.fences);
}

/// `visit` for each that is open and passes the filter, but `except`, with its owner outside. One fence for all: it is a system call. False: some were left out.
bool DevicePool::visit_open_magazines(void (DevicePool::*visit)(Magazine& magazine), const Magazine* except, BusyOwners busy, MagazineFilter filter,
                                      std::uint64_t key) {
  bool must_fence = false;
  for (const auto& magazine : magazines_) {
    if (!magazine->is_open || magazine.get() == except || magazine->is_of_this_thread() || !filter(*magazine, key)) continue;
    magazine->lock.begin();
    must_fence = true;
  }
  if (must_fence) device_.services.fences.fence_all();
  bool are_all = true;
  for (const auto& magazine : magazines_) {
    if (!magazine->is_open || magazine.get() == except || !filter(*magazine, key)) continue;
    if (magazine->is_of_this_thread()) {
      are_all = visit_own(*magazine, visit) && are_all;
    } else if (busy == BusyOwners::wait_for) {
      magazine->lock.wait();
      const OwnerOutside held(magazine->lock);
      (this->*visit)(*magazine);
    } else if (magazine->lock.is_out()) {
      const OwnerOutside held(magazine->lock);
      (this->*visit)(*magazine);
    } else {
      are_all = false;
    }
  }
  return are_all;
}

/// False: a signal handler has interrupted this thread inside.
bool DevicePool::visit_own(Magazine& magazine, void (DevicePool::*visit)(Magazine& magazine)) {
  if (!enter_own(magazine)) return false;
  const OwnerInside held(magazine.lock);
  (this->*visit)(magazine);
  return true;
}

Magazine* DevicePool::own_open_magazine(const ContextPool& home) {
  for (const auto& magazine : magazines_)
    if (magazine->is_open && magazine->is_of_this_thread() && magazine->home == &home) return magazine.get();
  return nullptr;
}

void DevicePool::visit_own_magazine(const ContextPool& home, void (DevicePool::*visit)(Magazine& magazine)) {
  if (Magazine* magazine = own_open_magazine(home)) visit_own(*magazine, visit);
}

/// The frees of the thread's magazine go before the one that comes now.
void DevicePool::send(Magazine& magazine) {
  tell(magazine);
  send_parcel(magazine);
}

/// The block, which nobody has any more, goes on its way as the last of those that its thread freed in its magazine, and comes back to it with them.
/// Through the depot it could come to another thread. After a while the blocks of all threads would lie mixed, and what the processor fetches
/// beside the data of one would be another's: two threads were as slow together as one. False: nothing has changed.
bool DevicePool::send_with_own(const ContextPool& home, Extent* extent, std::uint16_t thread) {
  Magazine* const magazine = own_open_magazine(home);
  if (magazine == nullptr || extent->flags != 0 || !may_keep() || !enter_own(*magazine)) return false;
  const OwnerInside held(magazine->lock);
  tell(*magazine);
  device_.count_free(*extent);
  if (magazines_.size() > 1) use_allowance(*magazine, {-static_cast<std::int64_t>(extent->bytes), -static_cast<std::int64_t>(extent->requested_bytes), -1});
  device_.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
  device_.note(EventKind::free_requested, ticks(), *extent, thread);
  extent->state = ExtentState::cached;
  extent->bin_next = magazine->freed;
  magazine->freed = extent;
  magazine->freed_bytes += extent->bytes;
  ++magazine->freed_count;
  send_parcel(*magazine);
  return true;
}

/// What the thread has freed goes on its way, and its large blocks are everybody's, as if none had come: how much of them lies here must not differ from
/// step to step of a job.
void DevicePool::settle(Magazine& magazine) {
  send(magazine);
  while (magazine.open_parcel()) {
  }
  for (SizedRack& large : magazine.large_racks.racks) {
    while (large.rack.first != nullptr) {
      change_kept(magazine, -static_cast<std::int64_t>(large.rack.first->bytes));
      let_go(*magazine.home, large.rack.pop());
    }
    large = {};
  }
}

/// Everything in it is where it would be without magazines; it stays closed until its thread asks the device for a small block.
void DevicePool::close(Magazine& magazine) {
  send(magazine);
  drop_allowance(magazine);
  while (magazine.open_parcel()) {
  }
  for (Rack& rack : magazine.racks) {
    while (rack.first != nullptr) let_go(*magazine.home, rack.pop());
    rack.batch = 0;
  }
  for (SizedRack& large : magazine.large_racks.racks) {
    while (large.rack.first != nullptr) let_go(*magazine.home, large.rack.pop());
    large = {};
  }
  return_to_lanes(magazine);
  for (Extent* extent = std::exchange(magazine.misfits, nullptr); extent != nullptr;) let_go(*magazine.home, std::exchange(extent, extent->bin_next));
  change_kept(magazine, -static_cast<std::int64_t>(magazine.kept_bytes));
  magazine.context = nullptr;
  magazine.is_open = false;
}

/// As many bytes are on their way back, and closing would bring fewer, at the price of what every thread keeps. Where nothing comes back the blocks that
/// threads keep may be what lies between the holes: then they go before the pool grows.
bool DevicePool::may_leave_magazines(std::uint64_t request_bytes) {
  const bool is_on_its_way = device_.live.counters.deferred_bytes.current.load(std::memory_order_relaxed) >= request_bytes;
  return is_on_its_way && kept_bytes_ < std::max(request_bytes, device_.least_early_bytes()) && device_.has_plenty(DeviceState::kAskShare) && device_.spare_bytes() >= kLeastSpare_bytes;
}

bool DevicePool::close_magazines(BusyOwners busy) {
  const bool are_all = visit_open_magazines(&DevicePool::close, nullptr, busy);
  deferred_.unpack([](Parcel* parcel) { Magazine::put(*parcel, parcel->owner->spare); });
  for (const auto& home : homes_) {
    if (home->kept == nullptr || home->kept->bytes == 0) continue;  // the depot is empty
    for (Rack& rack : home->kept->depot)
      while (rack.first != nullptr) let_go(*home, rack.pop());
    kept_bytes_ -= home->kept->bytes;
    home->kept->bytes = 0;
  }
  return are_all;
}

/// The newest events of the device and of what its threads did by themselves, oldest first, in ticks. Returns how many are lost.
/// Precondition: the magazines are closed, but for those whose threads stand inside: what these did is lost here.
std::uint64_t DevicePool::collect_timeline(std::vector<observe::Event>& out) {
  out = device_.timeline.events();
  std::uint64_t dropped = device_.timeline.dropped();
  for (const auto& magazine : magazines_) {
    if (magazine->is_open) {
      dropped += magazine->shard.allocations.load(std::memory_order_relaxed) + magazine->shard.frees.load(std::memory_order_relaxed);
      continue;
    }
    const std::vector<observe::Event> events = magazine->timeline.events();
    out.insert(out.end(), events.begin(), events.end());
    dropped += magazine->timeline.dropped();
  }
  std::stable_sort(out.begin(), out.end(), [](const observe::Event& one, const observe::Event& other) { return one.ticks < other.ticks; });
  if (out.size() > device_.timeline.capacity_events()) {
    const std::size_t surplus = out.size() - device_.timeline.capacity_events();
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(surplus));
    dropped += surplus;
  }
  return dropped;
}

void DevicePool::thread_ending() {
  const MutexLock lock(device_.lock);
  for (const auto& magazine : magazines_) {
    if (!magazine->is_of_this_thread() || !enter_own(*magazine)) continue;
    {
      const OwnerInside held(magazine->lock);
      if (magazine->is_open) close(*magazine);
    }
    magazine->is_owned = false;
    magazine->home = nullptr;
  }
}

}  // namespace cupool::device
