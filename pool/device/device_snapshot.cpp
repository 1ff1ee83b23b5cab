// One device's part of a Snapshot: copied under the lock, with a bound on how long the lock is waited for.
#include <cstring>

#include "pool/device/device_pool.hpp"

namespace cupool::device {

namespace {
constexpr std::uint64_t kTryPause_ns = 100'000;

void copy_counters(const observe::Counters& counters, observe::DeviceSnapshot& out) {
#define GAUGE(name, unit, doc) out.counters.push_back({#name, true, counters.name.current.load(std::memory_order_relaxed), counters.name.peak.load(std::memory_order_relaxed)});
#define TOTAL(name, unit, doc) out.counters.push_back({#name, false, counters.name.value.load(std::memory_order_relaxed), 0});
#include "pool/observe/counters.def"
#undef GAUGE
#undef TOTAL
}

observe::Fragmentation peak_of(const observe::LiveFragmentation& live) {
  const auto get = [](const std::atomic<std::uint64_t>& value) { return value.load(std::memory_order_relaxed); };
  return {get(live.at_peak_free_bytes),     get(live.at_peak_largest_free_bytes), get(live.at_peak_largest_free_remapped_bytes),
          get(live.at_peak_inactive_split_bytes), get(live.at_peak_live_bytes),   get(live.at_peak_requested_bytes),
          get(live.at_peak_reserved_bytes)};
}
}  // namespace

void append_block(const heap::Extent& extent, std::uint32_t region, const TickConverter& time, observe::DeviceSnapshot& out) {
  const bool free = extent.state == heap::ExtentState::free || extent.state == heap::ExtentState::absent;  // the latter: on its way elsewhere
  const auto state = free ? observe::BlockState::free : is_counted_live(extent) ? observe::BlockState::live : observe::BlockState::deferred;
  out.blocks.push_back({extent.address, extent.bytes, free ? 0 : extent.requested_bytes, free ? 0 : time.unix_ns(extent.allocated_ticks), region, free ? 0 : extent.site, state});
}

bool DevicePool::snapshot(std::uint64_t deadline_ns, observe::DeviceSnapshot& out) {
  Clock& clock = device_.services.clock;
  while (!device_.lock.try_lock()) {
    if (clock.now_ns() >= deadline_ns) return false;
    clock.pause(kTryPause_ns);
  }
  const AdoptedLock lock(device_.lock);
  close_magazines();
  const TickConverter time(device_.services.start, TickConverter::now());
  if (peak_is_new_) sample_peak();
  publish_figures();
  const observe::LiveDevice& live = device_.live;
  const observe::Counters& counters = device_.counters();
  out.ordinal = device_.ordinal;
  out.uuid.assign(live.uuid, ::strnlen(live.uuid, sizeof live.uuid));
  out.name = live.name;
  out.policy = live.policy;
  out.backing = live.backing;
  out.total_bytes = device_.total_bytes;
  out.limit_bytes = device_.limit.limit_bytes();
  out.driver_free_bytes = live.driver_free_unix_ns.load(std::memory_order_relaxed) != 0 ? device_.driver_free_now() : 0;
  out.driver_free_unix_ns = live.driver_free_unix_ns.load(std::memory_order_relaxed);
  copy_counters(counters, out);
  for (std::size_t i = 0; i < kDriverCallCount; ++i)
    if (const std::uint64_t count = live.driver_calls[i].load(std::memory_order_relaxed)) out.driver_calls.push_back({kDriverCallNames[i], count});
  const HeapFigures now = figures();
  out.now = {now.free_bytes, now.largest_free_bytes, now.largest_free_remapped_bytes, now.inactive_split_bytes,
             counters.live_bytes.current.load(std::memory_order_relaxed), counters.requested_bytes.current.load(std::memory_order_relaxed),
             counters.reserved_bytes.current.load(std::memory_order_relaxed)};
  out.at_peak = peak_of(live.fragmentation);
  out.outside = {live.outside.arrays.load(std::memory_order_relaxed), live.outside.program_vmm.load(std::memory_order_relaxed),
                 live.outside.driver_pools.load(std::memory_order_relaxed), live.outside.managed.load(std::memory_order_relaxed),
                 live.outside.host.load(std::memory_order_relaxed)};
  out.blocks.reserve(counters.live_blocks.current.load(std::memory_order_relaxed) * 2);
  for (const auto& home : homes_) {
    if (home->context == nullptr) continue;
    if (home->pooled != nullptr) home->pooled->append_map(device_, time, out);
    home->natives.append_map(device_, time, out);
  }
  out.timeline_dropped = collect_timeline(out.timeline);
  for (observe::Event& event : out.timeline) event.ticks = time.unix_ns(event.ticks);
  return true;
}

}  // namespace cupool::device
