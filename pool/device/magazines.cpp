// Magazines: how they get blocks, how the device learns what happened in them, and how they are closed.
//
// To the heap a block that comes here stays allocated (its state is `cached` while no one has it), and it stays in its home's table, until no thread
// may keep it or the magazines are closed. It is kept only where its size was asked for again and again.
#include "pool/device/magazines.hpp"

#include <algorithm>
#include <new>
#include <utility>

#include "pool/heap/extent_arena.hpp"

namespace cupool::device {

using heap::Extent;
using heap::ExtentState;
using observe::EventKind;

namespace {
static_assert(observe::kLiveShards < heap::ExtentArena::kKeepers, "each magazine is a keeper");
constexpr std::uint64_t kMagazineShare = 256;  ///< a thread's frees without an event may be this part of the memory that the program has never needed
constexpr std::uint64_t kLoopShare = 8;        ///< as 32 threads with kMagazineShare each
constexpr std::uint64_t kLeastBudget_bytes = 32 * kKiB;
/// And this part of an epoch: how much lies here differs from step to step of a job, and is on top of its need.
constexpr std::uint64_t kFreeShare = 4;
constexpr std::uint64_t kLeastSpare_bytes = kGiB;  ///< with less to spare, large blocks are left to the heap, which places them better

/// Never an id of the driver, which counts from 1; unique over the devices of a process.
constexpr std::uint64_t first_buffer_id(int ordinal) { return (std::uint64_t{1} << 63) | (static_cast<std::uint64_t>(ordinal) << 48) | 1; }
}  // namespace

Magazines::Magazines(DeviceState& device, const ContextPools& homes, DeferredFrees& deferred, const Backlog& backlog, const Shortage& shortage,
                     bool unpooled)
    : homes_(homes),
      deferred_(deferred),
      backlog_(backlog),
      shortage_(shortage),
      unpooled_(unpooled),
      surroundings_{device.live.counters, device.services, peak_is_new_, device.steps, has_several_, device.mempools},
      next_buffer_id_(first_buffer_id(device.ordinal)) {}

bool Magazines::may_keep(const DeviceState& device) const {
  const PoolServices& services = device.services;
  const bool is_ordinary =
      services.options.free == config::FreeMode::deferred && !services.options.release_threshold_bytes && services.trace == nullptr && !unpooled_;
  return is_ordinary && !device.disabled && !services.stopped.load(std::memory_order_relaxed) && !services.synchronises() &&
         !services.gate.capturing() && !shortage_.forbids_keeping();
}

/// The magazine of this thread in `home`; null when there is no room for another one.
Magazine* Magazines::own_magazine(DeviceState& device, ContextPool& home) {
  Magazine* unused = nullptr;
  for (const auto& magazine : magazines_) {
    if (magazine->is_of_this_thread() && magazine->home == &home) return magazine.get();
    if (!magazine->is_owned) unused = magazine.get();
  }
  if (unused == nullptr) {
    if (magazines_.size() == observe::kLiveShards) return nullptr;
    std::byte* const place = device.live.shards + magazines_.size() * sizeof(observe::LiveShard);
    const auto number = static_cast<std::uint8_t>(magazines_.size() + 1);
    magazines_.push_back(std::make_unique<Magazine>(surroundings_, *::new (place) observe::LiveShard, number));
    unused = magazines_.back().get();
    if (magazines_.size() == 2) {
      has_several_.store(true, std::memory_order_relaxed);
      visit_open(device, &Magazines::flush_counts, nullptr);  // from here on each thread's counts must be known to the others
    }
  }
  if (home.kept == nullptr) home.kept = std::make_unique<KeptBlocks>();
  unused->is_owned = true;
  unused->owner = pthread_self();
  unused->home = &home;
  return unused;
}

/// How much of what a thread has freed may have no event yet. Where one size goes round alone a whole epoch, as long as that is no more for all
/// threads together than kLoopShare allows.
std::uint64_t Magazines::free_budget_bytes(std::uint64_t spare_bytes) const {
  const std::uint64_t due_bytes = deferred_.due_bytes();
  const std::uint64_t ordinary_bytes = std::min({Magazine::kMost_bytes, spare_bytes / kMagazineShare, due_bytes / kFreeShare});
  if (!backlog_.is_roomy_loop()) return ordinary_bytes;
  return std::max(ordinary_bytes, std::min(due_bytes, spare_bytes / kLoopShare / std::max<std::size_t>(magazines_.size(), 1)));
}

/// How much may be kept for its thread: where one size goes round alone, all that may be on its way back.
std::uint64_t Magazines::kept_limit_bytes(const Magazine& magazine) const {
  if (!backlog_.is_roomy_loop()) return magazine.kept_budget_bytes;
  return std::max(magazine.kept_budget_bytes, magazine.free_budget_bytes + deferred_.due_bytes());
}

/// `budget_bytes`: the budget of what the block would be part of: what is kept, or frees without an event.
bool Magazines::is_too_large_to_keep(std::uint64_t bytes, std::uint64_t spare_bytes, std::uint64_t budget_bytes) {
  return bytes > kLargestSmallBlock_bytes && (spare_bytes < kLeastSpare_bytes || bytes > budget_bytes / Magazine::kLeastLarge);
}

/// Stores the thread's magazine in `home` in `user`; false: there is none for it.
bool Magazines::find_magazine(DeviceState& device, ContextPool& home, MagazineUser& user) {
  if (user.magazine == nullptr) {
    try {
      user.magazine = own_magazine(device, home);
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  return user.magazine != nullptr && user.magazine->home == &home && user.magazine->is_of_this_thread();  // otherwise it was given up meanwhile
}

/// Opens the magazine with a share of `spare_bytes`; false, and closed, when that is next to nothing.
bool Magazines::open(DeviceState& device, Magazine& magazine, std::uint64_t spare_bytes) {
  const std::uint64_t budget_bytes = std::min(Magazine::kMost_bytes, spare_bytes / kMagazineShare);
  magazine.budget_bytes = budget_bytes;
  magazine.kept_budget_bytes = spare_bytes / Magazine::kKeptShare;
  magazine.free_budget_bytes = free_budget_bytes(spare_bytes);
  if (budget_bytes < kLeastBudget_bytes) {
    if (magazine.is_open) close(device, magazine);
    return false;
  }
  magazine.context = magazine.home->context;
  magazine.is_open = true;
  magazine.table = &magazine.home->kept->table;
  return true;
}

Extent* Magazines::take_kept(DeviceState& device, ContextPool& home, const AllocationRequest& request, MagazineUser& user) {
  if (request.stream.identity != 0) return take_for_stream(device, home, request, user);
  if (!may_keep(device)) return nullptr;
  const std::uint64_t spare_bytes = device.spare_now_bytes();
  const std::uint64_t budget_bytes = backlog_.is_roomy_loop() ? free_budget_bytes(spare_bytes) : spare_bytes / kMagazineShare;
  if (is_too_large_to_keep(request.bytes, spare_bytes, budget_bytes)) return nullptr;
  if (!find_magazine(device, home, user)) return nullptr;
  Magazine& magazine = *user.magazine;
  if (!enter_own(device, magazine)) return nullptr;
  const OwnerInside held(magazine.lock);
  flush_counts(device, magazine);
  if (counts_run_ahead(device, request)) visit_open(device, &Magazines::flush_counts, &magazine);
  if (!open(device, magazine, spare_bytes)) return nullptr;
  age(device, magazine);
  Rack* const rack_of_size = make_rack(device, magazine, request.bytes);
  if (rack_of_size == nullptr) return nullptr;
  Rack& rack = *rack_of_size;
  while (rack.first == nullptr && magazine.open_parcel()) {}
  if (rack.first != nullptr) grant(device, magazine, request);  // it had a block, but no allowance to hand it out
  if (rack.first == nullptr) refill(device, magazine, home, request, rack);
  if (rack.first == nullptr) return nullptr;
  Extent* extent = rack.pop();
  rack.used = magazine.operations;
  change_kept(magazine, -static_cast<std::int64_t>(extent->bytes));
  extent->state = ExtentState::live;
  return extent;
}

/// What the racks hold counts as free memory in every sum.
void Magazines::change_kept(Magazine& magazine, std::int64_t bytes) {
  magazine.kept_bytes += static_cast<std::uint64_t>(bytes);
  kept_bytes_ += static_cast<std::uint64_t>(bytes);
}

void Magazines::receive_parcels([[maybe_unused]] DeviceState& device, Magazine& magazine) {
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

/// Sends what the thread has freed to the deferred frees.
void Magazines::send_parcel(Magazine& magazine) {
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

void Magazines::deliver(DeviceState& device, Parcel* parcel, std::uint64_t now, std::uint64_t depot_bytes) {
  Magazine& owner = *parcel->owner;
  if (depot_bytes != 0 && owner.is_open && owner.home == parcel->home && owner.kept_bytes + parcel->bytes <= kept_limit_bytes(owner)) {
    parcel->completed_ticks = now;
    Magazine::put(*parcel, owner.returned);
    change_kept(owner, static_cast<std::int64_t>(parcel->bytes));
    return;
  }
  for (Extent* extent = parcel->first; extent != nullptr;) {
    Extent* next = extent->bin_next;
    device.note(EventKind::free_completed, now, *extent, 0);
    if (!keep_in_depot(extent, depot_bytes)) parcel->home->pooled->recycle(device, extent);
    extent = next;
  }
  Magazine::put(*parcel, owner.spare);
}

/// Enters the calling thread's own magazine. A report that did not wait for this thread has left it closed to it.
bool Magazines::enter_own(const DeviceState& device, Magazine& magazine) {
  magazine.lock.forget_wish();
  return magazine.lock.lock_by_owner(device.services.fences);
}

/// Calls `visit` for each open magazine except `except`, with its owner outside. One fence serves all: it is a system call. False: some were left
/// out.
bool Magazines::visit_open(DeviceState& device, Visit visit, const Magazine* except, BusyOwners busy, Filter filter, std::uint64_t key) {
  bool must_fence = false;
  for (const auto& magazine : magazines_) {
    if (!magazine->is_open || magazine.get() == except || magazine->is_of_this_thread() || !filter(*magazine, key)) continue;
    magazine->lock.begin();
    must_fence = true;
  }
  if (must_fence) device.services.fences.fence_all();
  bool are_all = true;
  for (const auto& magazine : magazines_) {
    if (!magazine->is_open || magazine.get() == except || !filter(*magazine, key)) continue;
    if (magazine->is_of_this_thread()) {
      are_all = enter_and_visit(device, *magazine, visit) && are_all;
    } else if (busy == BusyOwners::wait_for) {
      magazine->lock.wait();
      const OwnerOutside held(magazine->lock);
      (this->*visit)(device, *magazine);
    } else if (magazine->lock.is_out()) {
      const OwnerOutside held(magazine->lock);
      (this->*visit)(device, *magazine);
    } else {
      are_all = false;
    }
  }
  return are_all;
}

/// False: this thread is inside the magazine, interrupted by a signal handler.
bool Magazines::enter_and_visit(DeviceState& device, Magazine& magazine, Visit visit) {
  if (!enter_own(device, magazine)) return false;
  const OwnerInside held(magazine.lock);
  (this->*visit)(device, magazine);
  return true;
}

Magazine* Magazines::own_open_magazine(const ContextPool& home) {
  for (const auto& magazine : magazines_)
    if (magazine->is_open && magazine->is_of_this_thread() && magazine->home == &home) return magazine.get();
  return nullptr;
}

void Magazines::visit_own(DeviceState& device, const ContextPool& home, Visit visit) {
  if (Magazine* magazine = own_open_magazine(home)) enter_and_visit(device, *magazine, visit);
}

void Magazines::send(DeviceState& device, Magazine& magazine) {
  flush_counts(device, magazine);
  send_parcel(magazine);
}

bool Magazines::send_with_own(DeviceState& device, const ContextPool& home, Extent* extent, std::uint16_t thread) {
  Magazine* const magazine = own_open_magazine(home);
  if (magazine == nullptr || extent->flags != 0 || !may_keep(device) || !enter_own(device, *magazine)) return false;
  const OwnerInside held(magazine->lock);
  flush_counts(device, *magazine);
  device.count_free(*extent);
  if (magazines_.size() > 1)
    use_allowance(*magazine, {-static_cast<std::int64_t>(extent->bytes), -static_cast<std::int64_t>(extent->requested_bytes), -1});
  device.counters().deferred_bytes.add(static_cast<std::int64_t>(extent->bytes));
  device.note(EventKind::free_requested, ticks(), *extent, thread);
  extent->state = ExtentState::cached;
  extent->bin_next = magazine->freed;
  magazine->freed = extent;
  magazine->freed_bytes += extent->bytes;
  ++magazine->freed_count;
  send_parcel(*magazine);
  return true;
}

void Magazines::settle(DeviceState& device, Magazine& magazine) {
  send(device, magazine);
  while (magazine.open_parcel()) {}
  for (SizedRack& large : magazine.large_racks.racks) {
    drop_rack(device, magazine, large.rack);
    large = {};
  }
}

/// Puts everything where it would be without magazines. The magazine stays closed until its thread asks the device for a small block.
void Magazines::close(DeviceState& device, Magazine& magazine) {
  send(device, magazine);
  drop_allowance(magazine);
  while (magazine.open_parcel()) {}
  for (Rack& rack : magazine.racks) {
    while (rack.first != nullptr) let_go(device, *magazine.home, rack.pop());
    rack.batch = 0;
  }
  for (SizedRack& large : magazine.large_racks.racks) {
    while (large.rack.first != nullptr) let_go(device, *magazine.home, large.rack.pop());
    large = {};
  }
  return_to_lanes(device, magazine);
  for (Extent* extent = std::exchange(magazine.misfits, nullptr); extent != nullptr;)
    let_go(device, *magazine.home, std::exchange(extent, extent->bin_next));
  change_kept(magazine, -static_cast<std::int64_t>(magazine.kept_bytes));
  magazine.context = nullptr;
  magazine.is_open = false;
}

bool Magazines::may_stay_open(const DeviceState& device, std::uint64_t request_bytes) const {
  const bool is_on_its_way = device.live.counters.deferred_bytes.now() >= request_bytes;
  return is_on_its_way && kept_bytes_ < std::max(request_bytes, device.least_early_bytes()) && device.has_plenty(DeviceState::kAskShare);
}

bool Magazines::close_all(DeviceState& device, BusyOwners busy) {
  const bool are_all = visit_open(device, &Magazines::close, nullptr, busy);
  deferred_.unpack([](Parcel* parcel) { Magazine::put(*parcel, parcel->owner->spare); });
  for (const auto& home : homes_) {
    if (home->kept == nullptr || home->kept->bytes == 0) continue;  // the depot is empty
    for (Rack& rack : home->kept->depot)
      while (rack.first != nullptr) let_go(device, *home, rack.pop());
    kept_bytes_ -= home->kept->bytes;
    home->kept->bytes = 0;
  }
  return are_all;
}

std::uint64_t Magazines::collect_timeline(DeviceState& device, std::vector<observe::Event>& out) {
  out = device.timeline.events();
  std::uint64_t dropped = device.timeline.dropped();
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
  if (out.size() > device.timeline.capacity_events()) {
    const std::size_t surplus = out.size() - device.timeline.capacity_events();
    out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(surplus));
    dropped += surplus;
  }
  return dropped;
}

void Magazines::thread_ending(DeviceState& device) {
  for (const auto& magazine : magazines_) {
    if (!magazine->is_of_this_thread() || !enter_own(device, *magazine)) continue;
    {
      const OwnerInside held(magazine->lock);
      close(device, *magazine);  // where it is closed already, that does nothing
    }
    magazine->is_owned = false;
    magazine->home = nullptr;
  }
}

std::string Magazines::check(DeviceState& device) {
  if (std::string broken = check_promises(device); !broken.empty()) return broken;
  close_all(device);
  if (promised_.bytes != 0 || promised_.requested_bytes != 0 || promised_.blocks != 0) return "closed magazines have allowances";
  return kept_bytes_ != 0 ? "closed magazines and empty depots keep bytes" : "";
}

}  // namespace cupool::device
