// DeviceState: what every part of one device's pool shares: counters, limit, timeline, lock, and what was heard of the driver.
//
// Plain members in one place, so that the parts take one reference and clang can check the lock by name.
// Thread rule: as annotated; what has no annotation is read-only after construction or thread-safe itself.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/core/mutex.hpp"
#include "pool/device/block_flags.hpp"
#include "pool/device/driver_backlog.hpp"
#include "pool/device/driver_pool_sample.hpp"
#include "pool/device/limit_account.hpp"
#include "pool/device/pool_growth.hpp"
#include "pool/device/pool_services.hpp"
#include "pool/device/recent_need.hpp"
#include "pool/device/step_ends.hpp"
#include "pool/driver/driver_api.hpp"
#include "pool/heap/extent.hpp"
#include "pool/observe/human_bytes.hpp"
#include "pool/observe/live_page.hpp"
#include "pool/observe/timeline.hpp"

namespace cupool::device {

/// What the program was served in the name of one of its memory pools, in bytes that it asked for: so a driver counts (H100, H200). Written under the device's lock; what magazines have not told yet comes on
/// top.
struct MempoolUse {
  std::atomic<std::uint64_t> used_bytes{0};
  std::atomic<std::uint64_t> used_high_bytes{0};      ///< the most since the program reset it
  std::atomic<std::uint64_t> reserved_high_bytes{0};  ///< likewise; a pool reserves what it uses
  std::uint64_t lower_high_bytes() const {
    return std::min(used_high_bytes.load(std::memory_order_relaxed), reserved_high_bytes.load(std::memory_order_relaxed));
  }
};
using MempoolUses = std::array<MempoolUse, 64>;  ///< by index (PoolSet::kMempools); 0 is unused

struct DeviceState {
  /// While the pool has less than this part of what it has or may get, a miss asks whether what was freed lately is over (DECISIONS.md, "A miss asks
  /// about what was freed lately"), and magazines may stay open.
  static constexpr std::uint64_t kAskShare = 8;
  /// What was freed gets an event before its epoch is due (the program has waited, a step has ended) when it is as much as this part of what the pool
  /// holds, and no less than kLeastEarly_bytes: below that an event costs more than it brings.
  static constexpr std::uint64_t kEarlyShare = 128;
  /// spare_now_bytes(): of what is not needed at present.
  static constexpr std::uint64_t kSpareNowShare = 64;
  static constexpr std::uint64_t kNeededShare = 4;  ///< of needed_lately_bytes()
  static constexpr std::uint64_t kLeastEarly_bytes = 4 * kMiB;

  DeviceState(PoolServices& pool_services, int device_ordinal, observe::LiveDevice& live_device, std::uint64_t device_total_bytes,
              std::uint64_t limit_bytes)
      : services(pool_services),
        ordinal(device_ordinal),
        live(live_device),
        driver(pool_services.api, live_device.driver_calls),
        total_bytes(device_total_bytes),
        limit(limit_bytes),
        growth(limit, pool_services.clock),
        timeline(pool_services.options.timeline_events, pool_services.trace, device_ordinal) {}

  observe::Counters& counters() { return live.counters; }

  /// Records an event in the timeline. `thread` 0: the pool itself. `stream`: identity of the stream that a stream-ordered call named; 0: none.
  void note(observe::EventKind kind, std::uint64_t at_ticks, const heap::Extent& extent, std::uint16_t thread, std::uint64_t stream = 0)
      CUPOOL_REQUIRES(lock) {
    timeline.record(
        {at_ticks, extent.address, extent.bytes, extent.requested_bytes, extent.site, thread, kind, static_cast<std::uint8_t>(stream != 0)}, stream);
  }
  /// Records a free whose block may be reused at once.
  void note_freed(const heap::Extent& extent, std::uint16_t thread, std::uint64_t stream = 0) CUPOOL_REQUIRES(lock) {
    const std::uint64_t now = ticks();
    note(observe::EventKind::free_requested, now, extent, thread, stream);
    note(observe::EventKind::free_completed, now, extent, thread, stream);
  }
  /// Counts one live block more, or one fewer (`sign` -1). The caller looks after the peaks.
  void count_live(const heap::Extent& extent, std::int64_t sign) CUPOOL_REQUIRES(lock) {
    live.counters.live_bytes.shift(sign * static_cast<std::int64_t>(extent.bytes));
    live.counters.requested_bytes.shift(sign * static_cast<std::int64_t>(extent.requested_bytes));
    live.counters.live_blocks.shift(sign);
    const std::uint8_t mempool = mempool_of(extent);
    if (mempool == 0) return;
    std::atomic<std::uint64_t>& used_bytes = mempools[mempool].used_bytes;
    used_bytes.store(used_bytes.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(sign) * extent.requested_bytes,
                     std::memory_order_relaxed);
  }
  /// Counts a free of the program's.
  void count_free(const heap::Extent& extent) CUPOOL_REQUIRES(lock) {
    live.counters.frees.add();
    count_live(extent, -1);
  }
  /// Records that memory of the driver's became the pool's, or went back.
  void note_region(observe::EventKind kind, std::uint64_t address, std::uint64_t bytes) CUPOOL_REQUIRES(lock) {
    timeline.record({ticks(), address, bytes, bytes, 0, 0, kind, 0});
    const char* const what = kind == observe::EventKind::region_create ? " came" : " went";
    log(config::LogLevel::trace, [&] { return observe::human_bytes(bytes) + " at " + observe::human_address(address) + what; });
  }
  /// As PoolServices::log, with the device's name in front.
  template <class Make> void log(config::LogLevel level, Make&& make) noexcept {
    services.log(level, [&] { return "GPU " + std::to_string(ordinal) + ": " + make(); });
  }

  /// Stores what the driver has just said is free: for the ledger and the live page. `unbooked_bytes`: taken before it was asked, but not booked yet.
  void publish_driver_free(std::uint64_t bytes, std::uint64_t unbooked_bytes = 0) {
    const MutexLock sample_guard(driver_free_mutex);
    sampled_taken_bytes.store(taken_bytes() + unbooked_bytes, std::memory_order_relaxed);
    live.driver_free_bytes.store(bytes, std::memory_order_relaxed);
    live.driver_free_unix_ns.store(unix_now_ns(), std::memory_order_relaxed);
  }
  /// What the driver has free now, as far as is known without asking: its last answer, less what this process has taken since, or more what it gave
  /// back.
  std::uint64_t driver_free_now() const { return std::min(saturating_sub(sampled_bytes(), taken_bytes()), total_bytes); }
  /// Stores the same as the driver's answer, for readers of the live page, who do not know what was taken since.
  void renew_driver_free() {
    if (!driver_free_mutex.try_lock()) return;  // a report waits for nobody
    const AdoptedLock sample_guard(driver_free_mutex);
    const std::uint64_t known_bytes = sampled_bytes();
    const std::uint64_t now_bytes = taken_bytes();
    if (!is_driver_sampled() || now_bytes > known_bytes || known_bytes - now_bytes > total_bytes) return;  // out of date: it stays as it is
    sampled_taken_bytes.store(now_bytes, std::memory_order_relaxed);
    live.driver_free_bytes.store(known_bytes - now_bytes, std::memory_order_relaxed);
  }
  /// Has more been taken since than the driver said was free? Then it had something else to give (what it keeps for graphs or in pools).
  bool has_given_more_than_free() const { return is_driver_sampled() && taken_bytes() > sampled_bytes(); }
  /// What this process has of the device, as far as is booked.
  std::uint64_t taken_bytes() const { return live.counters.reserved_bytes.now() + live.counters.outside_bytes.now(); }
  /// Has the driver ever been asked what it has free?
  bool is_driver_sampled() const { return live.driver_free_unix_ns.load(std::memory_order_relaxed) != 0; }
  /// When it was last asked: what was free then, and what this process had.
  std::uint64_t sampled_bytes() const {
    return live.driver_free_bytes.load(std::memory_order_relaxed) + sampled_taken_bytes.load(std::memory_order_relaxed);
  }

  /// Does the job seem to repeat itself: has the most that was ever live stayed the same for as many allocations as came before it did? To be asked
  /// at each miss, since the answer is about what earlier questions saw.
  bool repeats_itself() CUPOOL_REQUIRES(lock) {
    const std::uint64_t allocations = counters().allocations.count();
    const std::uint64_t now_bytes = peak_live_bytes();
    if (std::exchange(peak_seen_bytes, now_bytes) != now_bytes) peak_seen_at = allocations;
    return allocations / 2 >= peak_seen_at;
  }

  /// The most that was ever live.
  std::uint64_t peak_live_bytes() const { return live.counters.live_bytes.highest(); }

  /// What could still be taken from the driver, as far as is known without asking it: within the limit too.
  std::uint64_t room_bytes() const CUPOOL_REQUIRES(lock) {
    const std::uint64_t reserved_bytes = live.counters.reserved_bytes.now();
    const std::uint64_t driver_free_bytes = is_driver_sampled() ? driver_free_now() : saturating_sub(total_bytes, reserved_bytes);
    return std::min(driver_free_bytes, limit.headroom_bytes());
  }
  /// Does the pool have less than one `share`th of what it has or may still get?
  bool has_plenty(std::uint64_t share) const CUPOOL_REQUIRES(lock) {
    const std::uint64_t reserved_bytes = live.counters.reserved_bytes.now();
    return reserved_bytes < (room_bytes() + reserved_bytes) / share;
  }
  /// *Spare*: what the program has never needed so far, of all that it could have: what the pool has or may still get, less the most that was live.
  std::uint64_t spare_bytes() const CUPOOL_REQUIRES(lock) {
    const std::uint64_t most_bytes = room_bytes() + live.counters.reserved_bytes.now();
    return saturating_sub(most_bytes, peak_live_bytes());
  }
  /// What has to be kept for the program: the most that was ever live, until it has needed at most a kNeededShare-th of that for long.
  std::uint64_t needed_lately_bytes() const CUPOOL_REQUIRES(lock) {
    const std::uint64_t recent_bytes = recent_need.bytes();
    return recent_bytes <= peak_live_bytes() / kNeededShare ? recent_bytes : peak_live_bytes();
  }
  /// *Spare for now*: what is spare; or a small part of what is not needed at present, where the program once needed nearly everything.
  std::uint64_t spare_now_bytes() const CUPOOL_REQUIRES(lock) { return std::max(spare_bytes(), (room_bytes() + not_live_bytes()) / kSpareNowShare); }
  /// Reserved, and not live.
  std::uint64_t not_live_bytes() const {
    const std::uint64_t reserved_bytes = live.counters.reserved_bytes.now();
    return saturating_sub(reserved_bytes, live.counters.live_bytes.now());
  }
  /// Less than this is not worth an event before it is due (kEarlyShare).
  std::uint64_t least_early_bytes() const { return std::max(kLeastEarly_bytes, live.counters.reserved_bytes.now() / kEarlyShare); }

  /// Do regions go back to the driver in the order of a private stream (freeing_in_order.hpp), so that nothing else is waited for?
  bool frees_in_order() const {
    return driver.has_cuMemFreeAsync() && driver.has_cuStreamCreate() && driver.has_cuStreamDestroy_v2() && driver.has_cuStreamSynchronize() &&
           !services.cannot_free_in_order.load(std::memory_order_relaxed);
  }

  /// `bytes` more of the device's memory are the pool's, or fewer if negative.
  void add_reserved(std::int64_t bytes) CUPOOL_REQUIRES(lock) {
    counters().reserved_bytes.add(bytes);
    if (bytes > 0) grown_at = counters().allocations.count();
  }
  /// The same of blocks that the driver serves (DriverBlocks): reserved, but not for the pool to use or to give back.
  void add_driver_served(std::int64_t bytes) CUPOOL_REQUIRES(lock) {
    counters().reserved_bytes.add(bytes);
    driver_served_bytes += static_cast<std::uint64_t>(bytes);
  }
  /// What is reserved without those blocks.
  std::uint64_t pooled_bytes() CUPOOL_REQUIRES(lock) { return counters().reserved_bytes.now() - driver_served_bytes; }

  /// An always-on check failed: from here on this device pools nothing. Blocks that are out stay valid and are never reused.
  void disable(const std::string& why) CUPOOL_REQUIRES(lock) {
    disabled = true;
    counters().disabled.add();
    services.warn("pooling is off on GPU " + std::to_string(ordinal) + ": " + why + "; allocations go to the driver");
  }

  PoolServices& services;
  const int ordinal;
  observe::LiveDevice& live;
  const Driver driver;
  const std::uint64_t total_bytes;
  LimitAccount limit;
  PoolGrowth growth;
  std::atomic<std::uint64_t> graphs_asked_unix_ns{0};  ///< when the driver last said what it keeps for graphs
  Mutex driver_free_mutex;                             ///< a leaf: held by whoever writes the next one and live.driver_free_*, which belong together
  std::atomic<std::uint64_t> sampled_taken_bytes{0};   ///< taken_bytes() when the driver was last asked
  Mutex memops_lock;                                   ///< orders SYNC_MEMOPS calls (memops.cpp)
  Mutex lock;
  observe::Timeline timeline CUPOOL_GUARDED_BY(lock);
  bool disabled CUPOOL_GUARDED_BY(lock) = false;
  bool opens_no_pages CUPOOL_GUARDED_BY(lock) = false;   ///< the driver never let the pool use mapped memory here
  bool pages_available CUPOOL_GUARDED_BY(lock) = false;  ///< pages could serve here, but the newest context's blocks lie in segments
  MempoolUses mempools;
  // Under `async`: what the device's default pool of the driver keeps idle (NativeBlocks, IdlePools).
  DriverPoolSample driver_pool;                                   ///< as the driver said last
  std::uint64_t idle_bytes CUPOOL_GUARDED_BY(lock) = 0;           ///< as it is booked: in reserved, and held of the limit
  std::uint64_t idle_covered_bytes CUPOOL_GUARDED_BY(lock) = 0;   ///< of these, what calls that are in the driver now count on
  std::uint64_t idle_kept_bytes CUPOOL_GUARDED_BY(lock) = 0;      ///< of these, what the last trim left: it lies between live blocks
  const void* idle_owner CUPOOL_GUARDED_BY(lock) = nullptr;       ///< the NativeBlocks in whose figures they stand
  std::uint64_t pool_rounding_bytes CUPOOL_GUARDED_BY(lock) = 0;  ///< what the program's own blocks there are rounded up by
  // What the other pools from which the driver serves the program keep idle.
  DriverPoolSample mempools_idle;                                    ///< as the driver said last
  std::uint64_t mempools_covered_bytes CUPOOL_GUARDED_BY(lock) = 0;  ///< of that, what calls that are in the driver now count on
  std::uint64_t leaving_bytes CUPOOL_GUARDED_BY(lock) = 0;           ///< no longer reserved, but held until the driver's free has returned
  std::uint64_t being_freed_bytes CUPOOL_GUARDED_BY(lock) = 0;       ///< of blocks whose free waits in the driver (kBeingFreedFlag)
  std::uint64_t driver_served_bytes CUPOOL_GUARDED_BY(lock) = 0;     ///< Σ DriverBlocks
  DriverBacklog backlog_at_driver CUPOOL_GUARDED_BY(lock);
  std::atomic<bool> has_driver_blocks{false};  ///< has ever had a block in DriverBlocks
  StepEnds steps;                              ///< written under the lock; magazines read below_bytes() without it
  RecentNeed recent_need CUPOOL_GUARDED_BY(lock);
  std::uint64_t grown_at CUPOOL_GUARDED_BY(lock) = 0;         ///< when the pool last took memory, in allocations
  std::uint64_t peak_seen_bytes CUPOOL_GUARDED_BY(lock) = 0;  ///< repeats_itself(): the most that was live when it was last asked,
  std::uint64_t peak_seen_at CUPOOL_GUARDED_BY(lock) = 0;     ///< and how many allocations there had been when it first saw that
};

}  // namespace cupool::device
