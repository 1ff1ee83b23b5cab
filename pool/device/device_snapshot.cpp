// One device's part of a Snapshot, copied under its lock, with a bound on how long the lock is waited for.
#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "pool/device/device_pool.hpp"
#include "pool/observe/ledger.hpp"

namespace cupool::device {

namespace {
void copy_counters(const observe::Counters& counters, observe::DeviceSnapshot& out) {
#define GAUGE(name, unit, doc) out.counters.push_back({#name, true, counters.name.now(), counters.name.highest()});
#define TOTAL(name, unit, doc) out.counters.push_back({#name, false, counters.name.count(), 0});
#include "pool/observe/counters.def"
#undef GAUGE
#undef TOTAL
}

observe::CounterValue& row_named(observe::DeviceSnapshot& out, std::string_view name) {
  return *std::find_if(out.counters.begin(), out.counters.end(), [name](const observe::CounterValue& row) { return row.name == name; });
}

/// Adds what a thread that is inside its magazine has done since its counts were last flushed to the device.
void add_untold(const observe::LiveShard& shard, observe::DeviceSnapshot& out) {
  const std::pair<std::string_view, const std::atomic<std::uint64_t>&> words[] = {{"allocations", shard.allocations},
                                                                                  {"frees", shard.frees},
                                                                                  {"rung_hole", shard.rung_hole},
                                                                                  {"live_bytes", shard.live_bytes},
                                                                                  {"requested_bytes", shard.requested_bytes},
                                                                                  {"live_blocks", shard.live_blocks},
                                                                                  {"deferred_bytes", shard.deferred_bytes}};
  for (const auto& [name, word] : words) row_named(out, name).current += word.load(std::memory_order_relaxed);
}

/// That thread may be in the middle of counting an operation: what is missing is added, so that the sums agree.
void finish_counting(observe::DeviceSnapshot& out) {
  observe::CounterValue& live = row_named(out, "live_bytes");
  observe::CounterValue& requested = row_named(out, "requested_bytes");
  observe::CounterValue& allocations = row_named(out, "allocations");
  live.current = std::max(live.current, requested.current);
  allocations.current =
      std::max(allocations.current, row_named(out, "frees").current + row_named(out, "ended_blocks").current + row_named(out, "live_blocks").current);
  for (observe::CounterValue& row : out.counters) row.peak = row.is_gauge ? std::max(row.peak, row.current) : row.peak;
}

observe::Fragmentation peak_of(const observe::LiveFragmentation& live) {
  const auto get = [](const std::atomic<std::uint64_t>& value) { return value.load(std::memory_order_relaxed); };
  return {get(live.at_peak_free_bytes),           get(live.at_peak_largest_free_bytes), get(live.at_peak_largest_free_remapped_bytes),
          get(live.at_peak_inactive_split_bytes), get(live.at_peak_live_bytes),         get(live.at_peak_requested_bytes),
          get(live.at_peak_reserved_bytes)};
}

observe::Fragmentation now_of(const HeapFigures& now, const observe::DeviceSnapshot& out) {
  return {now.free_bytes,
          now.largest_free_bytes,
          now.largest_free_remapped_bytes,
          now.inactive_split_bytes,
          observe::counter_current(out, "live_bytes"),
          observe::counter_current(out, "requested_bytes"),
          observe::counter_current(out, "reserved_bytes")};
}

void copy_device(const DeviceState& device, observe::DeviceSnapshot& out) {
  const observe::LiveDevice& live = device.live;
  out.ordinal = device.ordinal;
  out.uuid.assign(live.uuid, ::strnlen(live.uuid, sizeof live.uuid));
  out.name = live.name;
  out.policy = live.policy;
  out.backing = live.backing;
  out.total_bytes = device.total_bytes;
  out.limit_bytes = device.limit.limit_bytes();
  out.driver_free_bytes = device.is_driver_sampled() ? device.driver_free_now() : 0;
  out.driver_free_unix_ns = live.driver_free_unix_ns.load(std::memory_order_relaxed);
}

void copy_driver_calls(const observe::LiveDevice& live, observe::DeviceSnapshot& out) {
  for (std::size_t i = 0; i < kDriverCallCount; ++i)
    if (const std::uint64_t count = live.driver_calls[i].load(std::memory_order_relaxed)) out.driver_calls.push_back({kDriverCallNames[i], count});
}

/// Copies what the program has outside the pool. Precondition: copy_device() has run.
void copy_outside(const DeviceState& device, observe::DeviceSnapshot& out) {
  const observe::LiveOutside& outside = device.live.outside;
  const auto get = [](const std::atomic<std::uint64_t>& value) { return value.load(std::memory_order_relaxed); };
  out.outside = {get(outside.arrays), get(outside.program_vmm), get(outside.managed), get(outside.host), get(outside.graphs), get(outside.mempools)};
  // What the driver reports as free after it was asked about graphs is not kept for graphs any more.
  if (out.driver_free_unix_ns >= device.graphs_asked_unix_ns.load(std::memory_order_relaxed))
    out.outside.graphs = GraphMemory::bytes_beside(device, out.driver_free_bytes + device.taken_bytes());
}
}  // namespace

void append_block(const heap::Extent& extent, std::uint32_t region, const TickConverter& time, observe::DeviceSnapshot& out) {
  if (extent.state == heap::ExtentState::free && extent.previous_is_free) {  // holes of two lanes side by side: one hole to a request that needs both
    out.blocks.back().bytes += extent.bytes;
    return;
  }
  // `absent`: its pages are being moved elsewhere.
  const bool free = extent.state == heap::ExtentState::free || extent.state == heap::ExtentState::absent;
  const auto state = free ? observe::BlockState::free : is_counted_live(extent) ? observe::BlockState::live : observe::BlockState::deferred;
  out.blocks.push_back({extent.address, extent.bytes, free ? 0 : extent.requested_bytes, free ? 0 : time.unix_ns(extent.allocated_ticks), region,
                        free ? 0 : extent.site, state});
}

bool DevicePool::snapshot(std::uint64_t deadline_ns, observe::DeviceSnapshot& out) {
  Clock& clock = device_.services.clock;
  for (;;) {
    const bool is_last_try = clock.now_ns() >= deadline_ns;
    if (try_snapshot(is_last_try, out)) return true;
    if (is_last_try) return false;
    clock.pause(kTryPause_ns);
  }
}

/// When a context ends, the driver frees its regions before we know, and other contexts may have the addresses by then: the two must not appear side
/// by side in one report.
bool DevicePool::is_any_ending() const {
  return std::any_of(homes_.begin(), homes_.end(), [](const auto& home) {
    return home->is_in_use() && home->context != nullptr && !home->serving && (home->pooled == nullptr || !home->pooled->can_move());
  });
}

/// Takes the snapshot without waiting. `is_last_try`: leaves out threads that are inside their magazines (a signal handler may keep one there for
/// ever), and accepts contexts that are ending.
bool DevicePool::try_snapshot(bool is_last_try, observe::DeviceSnapshot& out) {
  if (!device_.lock.try_lock()) return false;
  const AdoptedLock lock(device_.lock);
  const bool is_ending = is_any_ending();
  if (is_ending && !is_last_try) return false;
  out.complete = magazines_.close_all(device_, Magazines::BusyOwners::leave_out) && !is_ending;
  if (!out.complete && !is_last_try) return false;
  const TickConverter time(device_.services.start, TickConverter::now());
  if (magazines_.is_peak_new()) figures_.note_peak(device_);
  const HeapFigures now = figures_.sum_of_all_lanes(device_, 1);  // counts every hole
  figures_.publish(device_, now);
  copy_device(device_, out);
  copy_counts(out);
  copy_driver_calls(device_.live, out);
  out.now = now_of(now, out);
  out.at_peak = peak_of(device_.live.fragmentation);
  copy_outside(device_, out);
  copy_blocks(time, out);
  out.timeline_dropped = magazines_.collect_timeline(device_, out.timeline);
  for (observe::Event& event : out.timeline) event.ticks = time.unix_ns(event.ticks);
  return true;
}

void DevicePool::copy_counts(observe::DeviceSnapshot& out) {
  copy_counters(device_.counters(), out);
  for (const auto& magazine : magazines_.all())
    if (magazine->is_open) add_untold(magazine->shard, out);
  if (!out.complete) finish_counting(out);
}

void DevicePool::copy_blocks(const TickConverter& time, observe::DeviceSnapshot& out) {
  // The counters only help to guess the number of rows: a wrong one must not cost the report.
  const observe::Counters& counters = device_.counters();
  out.blocks.reserve(std::min(counters.live_blocks.now(), counters.allocations.count()) * 2);
  for (const auto& home : homes_) {
    if (!home->is_in_use()) continue;
    if (home->pooled != nullptr) home->pooled->append_map(device_, time, out);
    home->natives.append_map(device_, time, out);
  }
  for (const auto& [address, block] : driver_blocks_.all()) {
    const auto region = static_cast<std::uint32_t>(out.regions.size());
    out.regions.push_back({address, block.extent.bytes, reinterpret_cast<std::uint64_t>(block.context)});
    append_block(block.extent, region, time, out);
  }
}

}  // namespace cupool::device
