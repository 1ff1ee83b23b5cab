// DeviceState: what every part of one device's pool shares. PoolServices: what all devices share.
//
// Plain members in one place, so that the parts take one reference and clang can check the lock by name.
// Thread rule: as annotated; what has no annotation is read-only after construction or thread-safe itself.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "config/options.hpp"
#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/core/mutex.hpp"
#include "pool/device/block_flags.hpp"
#include "pool/device/capture_gate.hpp"
#include "pool/device/context_registry.hpp"
#include "pool/device/driver_backlog.hpp"
#include "pool/device/driver_pools.hpp"
#include "pool/device/limit_account.hpp"
#include "pool/device/message.hpp"
#include "pool/device/oom_log.hpp"
#include "pool/device/owner_lock.hpp"
#include "pool/device/owner_map.hpp"
#include "pool/device/step_ends.hpp"
#include "pool/driver/driver_api.hpp"
#include "pool/heap/extent.hpp"
#include "pool/observe/human_bytes.hpp"
#include "pool/observe/live_page.hpp"
#include "pool/observe/snapshot.hpp"
#include "pool/observe/timeline.hpp"

namespace cupool::device {

/// A list that any thread may add to; bounded, the newest are kept.
template <class T> class Mailbox {
 public:
  explicit Mailbox(std::size_t capacity) : capacity_(capacity) {}
  void add(T item) {
    const MutexLock lock(mutex_);
    if (items_.size() == capacity_) items_.erase(items_.begin());
    items_.push_back(std::move(item));
    is_empty_.store(false, std::memory_order_release);
  }
  /// Dropped where half of the room is taken: the rest is for items that must not be pushed out by such ones.
  void add_while_half_empty(T item) {
    {
      const MutexLock lock(mutex_);
      if (items_.size() >= capacity_ / 2) return;
    }
    add(std::move(item));
  }
  bool empty() const { return is_empty_.load(std::memory_order_acquire); }  ///< lock-free
  /// Nothing while another thread is at it: what there is stays for later.
  std::vector<T> take() {
    if (!mutex_.try_lock()) return {};
    const AdoptedLock lock(mutex_);
    is_empty_.store(true, std::memory_order_release);
    return std::exchange(items_, {});
  }

 private:
  const std::size_t capacity_;
  Mutex mutex_;
  std::vector<T> items_ CUPOOL_GUARDED_BY(mutex_);
  std::atomic<bool> is_empty_{true};
};

/// One per PoolSet.
struct PoolServices {
  PoolServices(const DriverApi& driver_api, const config::Options& pool_options, Clock& pool_clock, observe::TraceSink* trace_sink)
      : api(driver_api), options(pool_options), clock(pool_clock), trace(trace_sink) {}

  const DriverApi& api;
  const config::Options options;
  Clock& clock;
  observe::TraceSink* const trace;             ///< null: nothing is traced
  std::span<const observe::LiveDevice> lives;  ///< of all devices that the process uses, those that are in_use
  const TickConverter::Moment start = TickConverter::now();
  OwnerMap owners;
  ContextRegistry contexts;
  DriverPools driver_pools;  ///< those that the program made
  CaptureGate gate;
  OwnerFences fences;                              ///< of the threads' magazines
  std::atomic<bool> stopped{false};                ///< no driver call from here on
  std::atomic<bool> no_context_events{false};      ///< the driver has no cuCtxRecordEvent, or says that it does not support it
  std::atomic<std::uint32_t> refused_events{0};    ///< of those that cover a context, in a row, for no reason that is known to pass
  std::atomic<bool> cannot_free_in_order{false};   ///< cuMemFreeAsync does not take what cuMemAlloc gave
  std::atomic<std::uint32_t> refused_in_order{0};  ///< by cuMemFreeAsync, since it last took a region
  std::atomic<std::uint64_t> driver_blocks_made{0};
  std::atomic<std::uint64_t> freed_at_driver{0};                                ///< frees in the order of streams that DriverBacklogs know, ever
  std::atomic<std::uint64_t> given_back{0};                                     ///< how often memory of some device went back to the driver
  std::atomic<bool> has_lanes{false};                                           ///< some context's memory was freed in the order of a stream
  std::atomic<bool> devices_linked{false};                                      ///< the program enabled peer access somewhere
  std::atomic<bool> graphs_take_memory{false};                                  ///< the program has made a graph with an allocation node
  std::atomic<std::uint32_t> graph_launches{0};                                 ///< since then
  std::array<std::atomic<std::int32_t>, observe::kMaxDevices> living_graphs{};  ///< executable ones that may have such a node, of each device
  std::atomic<bool> keeps_to_segments{false};                                   ///< the program may export blocks: no pages under `auto`
  std::atomic<bool> shares_blocks{false};   ///< and has come to that: no pages for what it asks for from now on either
  std::atomic<bool> exports_ranges{false};  ///< the program may ask for dma-buf descriptors: large blocks begin on host pages
  Mailbox<Message> messages{64};
  OomLog ooms{256};

  bool may_call_driver() const { return !stopped.load(std::memory_order_relaxed); }
  /// Does the driver have events that cover a whole context (cuCtxRecordEvent, CUDA 12.5), as far as is known?
  bool has_context_events() const { return !no_context_events.load(std::memory_order_relaxed); }
  /// A free synchronises: asked for, or the driver has no event that covers a context.
  bool synchronises() const {
    return options.free == config::FreeMode::sync || (options.free == config::FreeMode::deferred && !has_context_events());
  }
  /// What the user must know, and finds in the report.
  void warn(std::string text) { messages.add({config::LogLevel::warn, std::move(text)}); }
  /// What the user has asked for by CUPOOL_LOG. `make()` gives the text; it is not called where nobody listens. A line too many is lost, and so is
  /// one for which there is no host memory.
  template <class Make> void log(config::LogLevel level, Make&& make) noexcept {
    if (options.log > level) [[likely]]
      return;
    try {
      messages.add_while_half_empty({level, make()});
    } catch (...) {}
  }
};

/// What the driver's default pool of one device keeps idle, as it said last. The contexts of a device share the pool: of two answers the one to
/// whoever asked later stands, for it knows what the other's calls did.
class DriverPoolSample {
 public:
  /// To be had before the driver is asked.
  std::uint64_t ticket() { return tickets_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  void update(std::uint64_t ticket, std::uint64_t idle_bytes) {
    const MutexLock lock(mutex_);
    if (ticket < newest_) return;
    newest_ = ticket;
    idle_bytes_.store(idle_bytes, std::memory_order_relaxed);
  }
  /// What the pool says is used: a driver that counts what was asked for says so by the first odd number.
  void note_used(std::uint64_t used_bytes) {
    if (used_bytes % kBlockAlignment_bytes != 0) counts_asked_.store(true, std::memory_order_relaxed);
  }
  bool counts_asked() const { return counts_asked_.load(std::memory_order_relaxed); }
  /// Nobody was asked: the last answer, with `bytes` more or fewer.
  void reckon(std::int64_t bytes) {
    const MutexLock lock(mutex_);
    const std::uint64_t idle_bytes = idle_bytes_.load(std::memory_order_relaxed);
    const std::uint64_t taken_bytes = bytes < 0 ? static_cast<std::uint64_t>(-bytes) : 0;
    idle_bytes_.store(bytes < 0 ? saturating_sub(idle_bytes, taken_bytes) : idle_bytes + static_cast<std::uint64_t>(bytes),
                      std::memory_order_relaxed);
  }
  std::uint64_t idle_bytes() const { return idle_bytes_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> tickets_{0};
  std::atomic<std::uint64_t> idle_bytes_{0};
  std::atomic<bool> counts_asked_{false};  ///< and not what blocks are rounded to (H100 and H200, driver 580)
  Mutex mutex_;
  std::uint64_t newest_ CUPOOL_GUARDED_BY(mutex_) = 0;
};

/// What the program was served in the name of one memory pool. Written under the device's lock; what magazines have not told yet comes on top.
struct MempoolUse {
  std::atomic<std::uint64_t> used_bytes{0};
  std::atomic<std::uint64_t> used_high_bytes{0};      ///< since the program reset that
  std::atomic<std::uint64_t> reserved_high_bytes{0};  ///< likewise; a pool reserves what it uses
  std::uint64_t lower_high_bytes() const {
    return std::min(used_high_bytes.load(std::memory_order_relaxed), reserved_high_bytes.load(std::memory_order_relaxed));
  }
};
using MempoolUses = std::array<MempoolUse, 64>;  ///< index 0 is unused

/// One per device.
struct DeviceState {
  /// Of everything: while the pool has less, a miss asks for what was freed lately, and magazines may stay open
  static constexpr std::uint64_t kAskShare = 8;
  /// After a wait of the program's own, what was freed has an event when it is as much as this share of what the pool holds.
  static constexpr std::uint64_t kEarlyShare = 128;
  static constexpr std::uint64_t kLeastEarly_bytes = 4 * kMiB;

  DeviceState(PoolServices& pool_services, int device_ordinal, observe::LiveDevice& live_device, std::uint64_t device_total_bytes,
              std::uint64_t limit_bytes)
      : services(pool_services),
        ordinal(device_ordinal),
        live(live_device),
        driver(pool_services.api, live_device.driver_calls),
        total_bytes(device_total_bytes),
        limit(limit_bytes),
        timeline(pool_services.options.timeline_events, pool_services.trace, device_ordinal) {}

  observe::Counters& counters() { return live.counters; }

  /// Notes one thing that happened. `thread` 0: the pool itself.
  /// `stream`: identity of the one that a stream-ordered call named; 0: none.
  void note(observe::EventKind kind, std::uint64_t at_ticks, const heap::Extent& extent, std::uint16_t thread, std::uint64_t stream = 0)
      CUPOOL_REQUIRES(lock) {
    timeline.record(
        {at_ticks, extent.address, extent.bytes, extent.requested_bytes, extent.site, thread, kind, static_cast<std::uint8_t>(stream != 0)}, stream);
  }
  /// A free that is complete when it is made.
  void note_freed(const heap::Extent& extent, std::uint16_t thread, std::uint64_t stream = 0) CUPOOL_REQUIRES(lock) {
    const std::uint64_t now = ticks();
    note(observe::EventKind::free_requested, now, extent, thread, stream);
    note(observe::EventKind::free_completed, now, extent, thread, stream);
  }
  /// One more live block, or one less (`sign` -1). The peaks are not looked at.
  void count_live(const heap::Extent& extent, std::int64_t sign) CUPOOL_REQUIRES(lock) {
    live.counters.live_bytes.shift(sign * static_cast<std::int64_t>(extent.bytes));
    live.counters.requested_bytes.shift(sign * static_cast<std::int64_t>(extent.requested_bytes));
    live.counters.live_blocks.shift(sign);
    const std::uint8_t mempool = mempool_of(extent);
    if (mempool == 0) return;
    std::atomic<std::uint64_t>& used_bytes = mempools[mempool].used_bytes;
    used_bytes.store(used_bytes.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(sign) * extent.bytes, std::memory_order_relaxed);
  }
  /// The program has freed it.
  void count_free(const heap::Extent& extent) CUPOOL_REQUIRES(lock) {
    live.counters.frees.add();
    count_live(extent, -1);
  }
  void note_region(observe::EventKind kind, std::uint64_t address, std::uint64_t bytes) CUPOOL_REQUIRES(lock) {
    timeline.record({ticks(), address, bytes, bytes, 0, 0, kind, 0});
    const char* const what = kind == observe::EventKind::region_create ? " came" : " went";
    log(config::LogLevel::trace, [&] { return observe::human_bytes(bytes) + " at " + observe::human_address(address) + what; });
  }
  /// As PoolServices::log, about this device.
  template <class Make> void log(config::LogLevel level, Make&& make) noexcept {
    services.log(level, [&] { return "GPU " + std::to_string(ordinal) + ": " + make(); });
  }

  /// What the driver said is free just now: for the ledger and the live page. `unbooked_bytes`: taken before it was asked, and in the books later.
  void publish_driver_free(std::uint64_t bytes, std::uint64_t unbooked_bytes = 0) {
    const MutexLock sample_guard(driver_free_mutex);
    sampled_taken_bytes.store(taken_bytes() + unbooked_bytes, std::memory_order_relaxed);
    live.driver_free_bytes.store(bytes, std::memory_order_relaxed);
    live.driver_free_unix_ns.store(unix_now_ns(), std::memory_order_relaxed);
  }
  /// What it has now, as far as is known here: its last answer, less what this process took since then, or with what it gave back.
  std::uint64_t driver_free_now() const {
    const std::uint64_t said_bytes = live.driver_free_bytes.load(std::memory_order_relaxed) + sampled_taken_bytes.load(std::memory_order_relaxed);
    return std::min(saturating_sub(said_bytes, taken_bytes()), total_bytes);
  }
  /// For who reads the live page and does not know what was taken since: the same answer, as of now.
  void renew_driver_free() {
    if (!driver_free_mutex.try_lock()) return;  // a report waits for nobody
    const AdoptedLock sample_guard(driver_free_mutex);
    const std::uint64_t said_bytes = live.driver_free_bytes.load(std::memory_order_relaxed) + sampled_taken_bytes.load(std::memory_order_relaxed);
    const std::uint64_t now_bytes = taken_bytes();
    const bool is_known = live.driver_free_unix_ns.load(std::memory_order_relaxed) != 0;
    if (!is_known || now_bytes > said_bytes || said_bytes - now_bytes > total_bytes) return;  // or of another moment: it comes back
    sampled_taken_bytes.store(now_bytes, std::memory_order_relaxed);
    live.driver_free_bytes.store(said_bytes - now_bytes, std::memory_order_relaxed);
  }
  /// More was taken since than the driver said was free: it had something else to give.
  bool has_given_more_than_free() const {
    const std::uint64_t said_bytes = live.driver_free_bytes.load(std::memory_order_relaxed) + sampled_taken_bytes.load(std::memory_order_relaxed);
    return live.driver_free_unix_ns.load(std::memory_order_relaxed) != 0 && taken_bytes() > said_bytes;
  }
  std::uint64_t taken_bytes() const { return live.counters.reserved_bytes.now() + live.counters.outside_bytes.now(); }

  /// The most that was ever live is what it was as many allocations ago as came before it. Asked by misses.
  bool repeats_itself() CUPOOL_REQUIRES(lock) {
    const std::uint64_t allocations = counters().allocations.count();
    const std::uint64_t now_bytes = peak_live_bytes();
    if (std::exchange(peak_seen_bytes, now_bytes) != now_bytes) peak_seen_at = allocations;
    return allocations / 2 >= peak_seen_at;
  }

  /// The most that was ever live.
  std::uint64_t peak_live_bytes() const { return live.counters.live_bytes.highest(); }

  /// What could still be taken from the driver, as far as is known without asking it.
  std::uint64_t room_bytes() const CUPOOL_REQUIRES(lock) {
    const std::uint64_t reserved_bytes = live.counters.reserved_bytes.now();
    const bool is_sampled = live.driver_free_unix_ns.load(std::memory_order_relaxed) != 0;
    const std::uint64_t driver_free_bytes = is_sampled ? driver_free_now() : saturating_sub(total_bytes, reserved_bytes);
    return std::min(driver_free_bytes, limit.headroom_bytes());
  }
  /// The pool has less than one `share`th of what it has or may still get.
  bool has_plenty(std::uint64_t share) const CUPOOL_REQUIRES(lock) {
    const std::uint64_t reserved_bytes = live.counters.reserved_bytes.now();
    return reserved_bytes < (room_bytes() + reserved_bytes) / share;
  }
  /// What the program has never needed at once so far, of all that it could have: in the pool, or not yet taken from the driver.
  std::uint64_t spare_bytes() const CUPOOL_REQUIRES(lock) {
    const std::uint64_t most_bytes = room_bytes() + live.counters.reserved_bytes.now();
    return saturating_sub(most_bytes, peak_live_bytes());
  }
  std::uint64_t not_live_bytes() const {
    const std::uint64_t reserved_bytes = live.counters.reserved_bytes.now();
    return saturating_sub(reserved_bytes, live.counters.live_bytes.now());
  }
  /// Less is not worth an event of its own.
  std::uint64_t least_early_bytes() const { return std::max(kLeastEarly_bytes, live.counters.reserved_bytes.now() / kEarlyShare); }

  /// Regions go back to the driver in the order of a private stream, so that nothing else is waited for.
  bool frees_in_order() const {
    return driver.has_cuMemFreeAsync() && driver.has_cuStreamCreate() && driver.has_cuStreamDestroy_v2() && driver.has_cuStreamSynchronize() &&
           !services.cannot_free_in_order.load(std::memory_order_relaxed);
  }

  /// `bytes` more (or fewer) of the device's memory are the pool's.
  void add_reserved(std::int64_t bytes) CUPOOL_REQUIRES(lock) { counters().reserved_bytes.add(bytes); }
  /// … are the driver's own blocks (DriverBlocks): held, but not for the pool to use, to give back or to show as its own.
  void add_driver_served(std::int64_t bytes) CUPOOL_REQUIRES(lock) {
    counters().reserved_bytes.add(bytes);
    driver_served_bytes += static_cast<std::uint64_t>(bytes);
  }
  /// Of what is reserved.
  std::uint64_t pooled_bytes() CUPOOL_REQUIRES(lock) { return counters().reserved_bytes.now() - driver_served_bytes; }

  /// An always-on check failed: from here on this device pools nothing (what is out stays valid and is never reused).
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
  std::atomic<std::uint64_t> graphs_asked_unix_ns{0};  ///< when the driver last said what it keeps for graphs
  Mutex driver_free_mutex;                             ///< a leaf: whoever writes the two that follow from each other
  std::atomic<std::uint64_t> sampled_taken_bytes{0};   ///< taken_bytes() when the driver was last asked
  Mutex memops_lock;
  Mutex lock;
  observe::Timeline timeline CUPOOL_GUARDED_BY(lock);
  bool disabled CUPOOL_GUARDED_BY(lock) = false;
  bool opens_no_pages CUPOOL_GUARDED_BY(lock) = false;   ///< the driver never let the pool use mapped memory here
  bool pages_available CUPOOL_GUARDED_BY(lock) = false;  ///< and the newest context's blocks lie in segments
  MempoolUses mempools;
  /// Under `async`: what the driver's pool keeps idle, as reserved and limit know it, and which blocks' books tell of it.
  DriverPoolSample driver_pool;
  std::uint64_t idle_bytes CUPOOL_GUARDED_BY(lock) = 0;
  std::uint64_t pool_rounding_bytes CUPOOL_GUARDED_BY(lock) = 0;  ///< of the program's own blocks there
  std::uint64_t idle_covered_bytes CUPOOL_GUARDED_BY(lock) = 0;  ///< of them, what threads that are in the driver may be served from, and nobody else
  std::uint64_t idle_kept_bytes CUPOOL_GUARDED_BY(lock) = 0;     ///< of it, what the last trim left: it lies between live blocks
  const void* idle_owner CUPOOL_GUARDED_BY(lock) = nullptr;
  /// What the pools from which the driver serves the program itself keep idle. Of that, what threads that are in the driver may be served from, and
  /// nobody else.
  DriverPoolSample mempools_idle;
  std::uint64_t mempools_covered_bytes CUPOOL_GUARDED_BY(lock) = 0;
  /// So much a pool of the driver's took beyond the limit for calls that were refused for it, and has not given back, as far as is known.
  std::uint64_t taken_back_bytes CUPOOL_GUARDED_BY(lock) = 0;
  std::uint64_t leaving_bytes CUPOOL_GUARDED_BY(lock) = 0;      ///< held until the driver's free has returned, but reserved no more
  std::uint64_t being_freed_bytes CUPOOL_GUARDED_BY(lock) = 0;  ///< of blocks whose free waits in the driver (kBeingFreedFlag)
  std::uint64_t driver_served_bytes CUPOOL_GUARDED_BY(lock) = 0;
  DriverBacklog backlog_at_driver CUPOOL_GUARDED_BY(lock);
  std::atomic<bool> has_driver_blocks{false};                 ///< had one ever
  StepEnds steps;                                             ///< written under the lock; whoever frees without it may read where the next one is
  std::uint64_t peak_seen_bytes CUPOOL_GUARDED_BY(lock) = 0;  ///< most that was live, when a miss last looked
  std::uint64_t peak_seen_at CUPOOL_GUARDED_BY(lock) = 0;     ///< the allocations then, of the first look that saw it
};

}  // namespace cupool::device
