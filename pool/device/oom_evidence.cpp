// Evidence for the cause of an out of memory, by topic: the request, the holes, what waits for the GPU, what lies outside the pool. See refusals.hpp.
#include <algorithm>
#include <string_view>
#include <utility>

#include "pool/core/bytes.hpp"
#include "pool/device/freeing_in_order.hpp"
#include "pool/device/graph_memory.hpp"
#include "pool/device/refusals.hpp"

namespace cupool::device {

using observe::OomEvidence;
using observe::OomRecord;

namespace {
void add_request(std::uint64_t requested_bytes, const Refused& what, const Error& refusal, OomEvidence& evidence) {
  evidence.request_bytes = round_request(requested_bytes) != 0 ? round_request(requested_bytes) : requested_bytes;
  evidence.is_managed = what.is_managed;
  evidence.mempool_max_bytes = what.mempool.max_bytes;
  evidence.mempool_used_bytes = what.mempool.used_bytes;
  evidence.refused_by_limit = std::string_view(refusal.where) == kLimitRefusal;
}

void add_device(const DeviceState& device, OomEvidence& evidence) CUPOOL_REQUIRES(device.lock) {
  evidence.device_total_bytes = device.total_bytes;
  evidence.pages_available = device.pages_available;
  evidence.limit_bytes = device.limit.limit_bytes();
  evidence.held_bytes = device.limit.held_bytes();
  evidence.capturing = device.services.gate.capturing();
  if (const auto& amount = device.services.options.preallocate) evidence.preallocate_bytes = amount->resolve(device.total_bytes);
}

std::uint64_t held_outside_bytes(const observe::LiveOutside& outside) {
  return outside.arrays.load(std::memory_order_relaxed) + outside.program_vmm.load(std::memory_order_relaxed) +
         outside.managed.load(std::memory_order_relaxed) + outside.graphs.load(std::memory_order_relaxed);
}

/// Adds what lies outside the pool. Precondition: `evidence.mempool_idle_bytes` is set.
void add_outside(const DeviceState& device, OomEvidence& evidence) {
  evidence.own_outside_bytes = held_outside_bytes(device.live.outside) + evidence.mempool_idle_bytes;
  evidence.graph_bytes = device.live.outside.graphs.load(std::memory_order_relaxed);
  evidence.living_graphs = GraphMemory::living_graphs(device);
}

/// Free bytes of another device, at the driver and in the pool, as far as is known. Takes no lock of that device.
std::uint64_t free_bytes_of(const observe::LiveDevice& live) {
  const std::uint64_t reserved_bytes = live.counters.reserved_bytes.now();
  const std::uint64_t used_bytes = live.counters.live_bytes.now() + live.counters.deferred_bytes.now();
  const std::uint64_t pool_bytes = saturating_sub(reserved_bytes, used_bytes);
  const std::uint64_t held_bytes = reserved_bytes + live.counters.outside_bytes.now();
  const std::uint64_t headroom_bytes = live.limit_bytes == 0 ? ~std::uint64_t{0} : saturating_sub(live.limit_bytes, held_bytes);
  return pool_bytes + std::min(live.driver_free_bytes.load(std::memory_order_relaxed), headroom_bytes);
}

void add_other_devices(const DeviceState& device, OomEvidence& evidence) {
  for (const observe::LiveDevice& live : device.services.lives) {
    if (live.in_use.load(std::memory_order_acquire) == 0 || live.ordinal < 0 || live.ordinal == device.ordinal) continue;
    if (live.driver_free_unix_ns.load(std::memory_order_relaxed) == 0) continue;
    const std::uint64_t free_bytes = free_bytes_of(live);
    if (evidence.other_device && free_bytes <= evidence.other_device_free_bytes) continue;
    evidence.other_device = static_cast<std::uint64_t>(live.ordinal);
    evidence.other_device_free_bytes = free_bytes;
  }
}

/// Attributes what remains of the device beside the driver's free memory: figures that cannot all be on the device are reduced, and the rest belongs
/// to no one known. `late_bytes`: see GivingBack.
void attribute_rest(const DeviceState& device, std::uint64_t driver_free_bytes, std::uint64_t late_bytes, OomEvidence& evidence) {
  // While something captures, the answer about graphs is an old one.
  const std::uint64_t stale_bytes = saturating_sub(evidence.graph_bytes, GraphMemory::bytes_beside(device, driver_free_bytes + evidence.held_bytes));
  evidence.graph_bytes -= stale_bytes;
  evidence.own_outside_bytes -= std::min(stale_bytes, evidence.own_outside_bytes);
  // Managed memory lies where it was last touched: at most what is left is on this device, as in the ledger.
  const std::uint64_t booked_idle_bytes = device.live.outside.mempools.load(std::memory_order_relaxed);  // part of what is held
  const std::uint64_t other_idle_bytes = saturating_sub(evidence.mempool_idle_bytes, booked_idle_bytes);
  const std::uint64_t known_bytes = driver_free_bytes + evidence.held_bytes + evidence.graph_bytes + other_idle_bytes;
  const std::uint64_t left_bytes = saturating_sub(device.total_bytes, known_bytes);
  const std::uint64_t managed_bytes = device.live.outside.managed.load(std::memory_order_relaxed);
  const std::uint64_t elsewhere_bytes = saturating_sub(managed_bytes, left_bytes);
  evidence.own_outside_bytes -= std::min(elsewhere_bytes, evidence.own_outside_bytes);
  const std::uint64_t known_left_bytes = managed_bytes + late_bytes;
  evidence.unattributed_bytes = saturating_sub(left_bytes, known_left_bytes);
}

/// Moves what the driver reports as idle, or as no one's, but streams may still use, to what waits for the GPU.
void add_backlog_at_driver(const DeviceState& device, DriverBacklog::Sums backlog, OomEvidence& evidence) {
  const auto take = [](std::uint64_t& from_bytes, std::uint64_t& backlog_bytes) {
    const std::uint64_t bytes = std::min(from_bytes, backlog_bytes);
    from_bytes -= bytes;
    backlog_bytes -= bytes;
    return bytes;
  };
  const std::uint64_t ours_bytes = evidence.holes_known ? 0 : take(evidence.pool_free_bytes, backlog.pooled_bytes);
  const std::uint64_t others_bytes = take(evidence.mempool_idle_bytes, backlog.pooled_bytes);
  evidence.own_outside_bytes -= std::min(others_bytes, evidence.own_outside_bytes);
  const std::uint64_t plain_bytes = evidence.unattributed_bytes ? take(*evidence.unattributed_bytes, backlog.plain_bytes) : 0;
  const std::uint64_t all_bytes = ours_bytes + others_bytes + plain_bytes;
  for (std::uint64_t* part :
       {&evidence.largest_free_bytes, &evidence.largest_free_remapped_bytes, &evidence.releasable_bytes, &evidence.other_context_free_bytes})
    *part = std::min(*part, evidence.pool_free_bytes);
  evidence.deferred_at_driver_bytes = all_bytes;
  evidence.deferred_unheld_bytes = saturating_sub(others_bytes, device.live.outside.mempools.load(std::memory_order_relaxed)) + plain_bytes;
  evidence.deferred_bytes += all_bytes;
  *evidence.deferred_in_order_bytes += all_bytes;
  // What went from idle to waiting may have been among what could go back.
  const std::uint64_t most_bytes = evidence.pool_free_bytes + evidence.deferred_bytes;
  evidence.releasable_with_deferred_bytes = std::min(*evidence.releasable_with_deferred_bytes + all_bytes, most_bytes);
}
}  // namespace

void Refusals::note_oom(DeviceState& device, std::uint64_t requested_bytes, const Refused& what, const ContextPool* home, const Error& refusal) {
  magazines_.close_all(device);
  OomRecord oom;
  OomEvidence& evidence = oom.evidence;
  const DriverBacklog::Sums backlog = ask_backlog(device);
  ask_driver(device, home, evidence);
  oom.time_unix_ns = unix_now_ns();
  oom.device = device.ordinal;
  oom.api = what.api;
  oom.requested_bytes = requested_bytes;
  oom.allocations_before = device.counters().allocations.count();
  oom.result = static_cast<int>(refusal.code);
  add_request(requested_bytes, what, refusal, evidence);
  add_device(device, evidence);
  evidence.live_peak_bytes = device.counters().live_bytes.highest();
  add_other_devices(device, evidence);
  add_holes(device, home, evidence);
  add_deferred(device, evidence);
  add_outside(device, evidence);
  if (evidence.driver_free_bytes) attribute_rest(device, *evidence.driver_free_bytes, giving_back_.late_bytes(), evidence);
  add_backlog_at_driver(device, backlog, evidence);
  evidence.native_rounding_bytes = std::min(evidence.native_rounding_bytes, evidence.unattributed_bytes.value_or(0));
  device.timeline.record(
      {ticks(), evidence.driver_free_bytes.value_or(0), evidence.request_bytes, requested_bytes, 0, 0, observe::EventKind::oom, 0});
  device.services.ooms.add(std::move(oom));
  figures_.publish(device);
}

/// What may still be under way of the frees that went to the driver; nothing where the device is idle.
DriverBacklog::Sums Refusals::ask_backlog(DeviceState& device) {
  const DriverBacklog::Sums sums = device.backlog_at_driver.sums();
  if (sums.pooled_bytes + sums.plain_bytes == 0 || !device.services.may_call_driver() || !in_order::can_look(device)) return sums;
  const std::uint64_t newest = device.backlog_at_driver.newest();
  bool is_quiet = false;
  {
    const MutexUnlock unlocked(device.lock);
    is_quiet = in_order::is_quiet(device, &device);
  }
  if (is_quiet) device.backlog_at_driver.is_over(newest);
  return device.backlog_at_driver.sums();
}

void Refusals::ask_driver(DeviceState& device, const ContextPool* home, OomEvidence& evidence) {
  // What is idle after that lies between live blocks.
  if (policy_ == config::Policy::async && device.services.may_call_driver()) idle_pools_.trim_ours(device, 0, kEverything_bytes);
  if (device.services.may_call_driver()) evidence.driver_free_bytes = home != nullptr ? driver_free_.sample(device) : driver_free_.ask(device);
  static_cast<void>(GraphMemory::ask(device));
  evidence.mempool_idle_bytes = idle_pools_.ask_others(device).bytes;
}

/// Adds what the pool has free and where, and what it would have if every deferred free had completed.
void Refusals::add_holes(DeviceState& device, const ContextPool* home, OomEvidence& evidence) const {
  const HeapFigures now = figures_.sum(device);
  evidence.holes_known = policy_ != config::Policy::async;
  evidence.pool_free_bytes = now.free_bytes;
  evidence.releasable_bytes = now.wholly_free_bytes;
  evidence.releasable_with_deferred_bytes = 0;
  for (const auto& one : homes_) {
    if (!one->is_in_use()) continue;
    *evidence.releasable_with_deferred_bytes += one->natives.survey(device, evidence).wholly_free_bytes;
    evidence.native_rounding_bytes += one->natives.rounding_bytes();
    if (one->pooled == nullptr) continue;
    const HeapFigures projected = one->pooled->survey(device, evidence);
    *evidence.releasable_with_deferred_bytes += projected.wholly_free_bytes;
    // A hole in another context's heap cannot serve this context, and none can serve memory outside the pool: only what would go back to the driver
    // counts.
    const HeapFigures own = one->pooled->figures(device);
    if (home != nullptr && one.get() != home) evidence.other_context_free_bytes += own.free_bytes;
    if (one.get() != home) continue;
    evidence.largest_free_bytes = std::max(evidence.largest_free_bytes, own.largest_free_bytes);
    evidence.largest_free_remapped_bytes = std::max(evidence.largest_free_remapped_bytes, own.largest_free_remapped_bytes);
    evidence.largest_free_with_deferred_bytes = std::max(evidence.largest_free_with_deferred_bytes, projected.largest_free_remapped_bytes);
  }
  if (home != nullptr) return;
  evidence.is_outside_pool = true;
  if (evidence.holes_known) evidence.largest_free_bytes = evidence.largest_free_remapped_bytes = evidence.releasable_bytes;
  evidence.largest_free_with_deferred_bytes = *evidence.releasable_with_deferred_bytes;
}

void Refusals::add_deferred(DeviceState& device, OomEvidence& evidence) const {
  const std::uint64_t late_bytes = giving_back_.late_bytes();
  evidence.deferred_bytes = device.counters().deferred_bytes.now() + device.being_freed_bytes + late_bytes;
  *evidence.releasable_with_deferred_bytes += late_bytes;
  evidence.deferred_in_order_bytes = deferred_in_order_bytes() + late_bytes;
}

/// The part of what waits for the GPU that was freed in stream order, or belongs to memory pools: CUPOOL_FREE does not change how long that waits.
std::uint64_t Refusals::deferred_in_order_bytes() const {
  std::uint64_t bytes = 0;
  deferred_.for_each(
      [&bytes](const heap::Extent& extent) { bytes += (extent.flags & kFreedInOrderFlag) != 0 || mempool_of(extent) != 0 ? extent.bytes : 0; });
  for (const UnstampedFrees::Free& free : deferred_.unstamped().all()) bytes += free.extent->bytes;
  for (const auto& home : homes_) bytes += home->streams.deferred_bytes();
  return bytes;
}

}  // namespace cupool::device
