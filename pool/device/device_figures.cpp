// What reports, cuMemGetInfo and the limit are told of one device.
#include <algorithm>
#include <limits>
#include <new>
#include <string_view>

#include "pool/device/context_lanes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using observe::OomRecord;

namespace {
bool counts_against_limit(OutsideKind kind) {
  return kind == OutsideKind::array || kind == OutsideKind::program_vmm;
}

std::atomic<std::uint64_t>& outside_of(observe::LiveOutside& outside, OutsideKind kind) {
  switch (kind) {
    case OutsideKind::array: return outside.arrays;
    case OutsideKind::program_vmm: return outside.program_vmm;
    case OutsideKind::managed: return outside.managed;
    case OutsideKind::host:
    case OutsideKind::kCount: break;
  }
  return outside.host;
}
}  // namespace

std::uint64_t DevicePool::plain_bytes() {
  const MutexLock lock(device_.lock);
  const std::uint64_t live_bytes = device_.counters().live_bytes.current.load(std::memory_order_relaxed);
  return live_bytes - std::min(live_bytes, device_.driver_served_bytes);
}

std::uint64_t DevicePool::held_outside_bytes() const {
  const observe::LiveOutside& outside = device_.live.outside;
  return outside.arrays.load(std::memory_order_relaxed) + outside.program_vmm.load(std::memory_order_relaxed) + outside.managed.load(std::memory_order_relaxed) +
         outside.graphs.load(std::memory_order_relaxed);
}

/// Of what waits for the GPU: what stream-ordered calls freed, or blocks of memory pools. CUPOOL_FREE does not change how long that waits.
std::uint64_t DevicePool::deferred_in_order_bytes() {
  std::uint64_t bytes = 0;
  deferred_.for_each([&bytes](const heap::Extent& extent) { bytes += (extent.flags & kUsedAgainFlag) != 0 || mempool_of(extent) != 0 ? extent.bytes : 0; });
  for (const auto& home : homes_) bytes += home->streams.deferred_bytes();
  return bytes;
}

/// Books a failed allocation; out of memory with the evidence for its cause. `home` is null for memory outside the pool. Returns what the program is told.
Error DevicePool::fail(std::uint64_t requested_bytes, const Refused& what, const ContextPool* home, Error refusal) {
  device_.counters().failed_allocations.add();
  if (refusal.code != CUDA_ERROR_OUT_OF_MEMORY) return refusal;
  try {
    note_oom(requested_bytes, what, home, refusal);
  } catch (const std::bad_alloc&) {  // there is no telling of it; it is refused all the same
  }
  return refusal;
}

void DevicePool::note_oom(std::uint64_t requested_bytes, const Refused& what, const ContextPool* home, const Error& refusal) {
  magazines_.close_all(device_);
  if (policy_ == config::Policy::async && may_call_driver()) idle_pools_.trim_ours(device_, 0, ~std::uint64_t{0});  // what is idle still lies between live blocks
  OomRecord oom;
  if (may_call_driver()) oom.evidence.driver_free_bytes = home != nullptr ? driver_free_.sample(device_) : driver_free_.ask(device_);
  static_cast<void>(GraphMemory::ask(device_));
  const PoolIdle mempools = idle_pools_.ask_others(device_);
  oom.time_unix_ns = unix_now_ns();
  oom.device = device_.ordinal;
  oom.api = what.api;
  oom.requested_bytes = requested_bytes;
  oom.result = static_cast<int>(refusal.code);
  const HeapFigures now = figures_.sum(device_);
  observe::OomEvidence& evidence = oom.evidence;
  evidence.request_bytes = round_request(requested_bytes) != 0 ? round_request(requested_bytes) : requested_bytes;
  evidence.is_managed = what.is_managed;
  evidence.mempool_max_bytes = what.mempool.max_bytes;
  evidence.mempool_used_bytes = what.mempool.used_bytes;
  evidence.device_total_bytes = device_.total_bytes;
  evidence.holes_known = policy_ != config::Policy::async;
  evidence.pool_free_bytes = now.free_bytes;
  evidence.releasable_bytes = now.wholly_free_bytes;
  evidence.releasable_with_deferred_bytes = 0;
  for (const auto& one : homes_) {
    if (!one->is_in_use()) continue;
    *evidence.releasable_with_deferred_bytes += one->natives.survey(device_, evidence).wholly_free_bytes;
    if (one->pooled == nullptr) continue;
    const HeapFigures projected = one->pooled->survey(device_, evidence);
    *evidence.releasable_with_deferred_bytes += projected.wholly_free_bytes;
    // A hole of another context's heap is no use to this one, and none is to memory outside the pool: only what would go back to the driver is.
    if (one.get() != home) continue;
    const HeapFigures own = one->pooled->figures(device_);
    evidence.largest_free_bytes = std::max(evidence.largest_free_bytes, own.largest_free_bytes);
    evidence.largest_free_remapped_bytes = std::max(evidence.largest_free_remapped_bytes, own.largest_free_remapped_bytes);
    evidence.largest_free_with_deferred_bytes = std::max(evidence.largest_free_with_deferred_bytes, projected.largest_free_remapped_bytes);
  }
  if (home == nullptr) {
    evidence.is_outside_pool = true;
    if (evidence.holes_known) evidence.largest_free_bytes = evidence.largest_free_remapped_bytes = evidence.releasable_bytes;
    evidence.largest_free_with_deferred_bytes = *evidence.releasable_with_deferred_bytes;
  }
  evidence.pages_available = device_.pages_available;
  evidence.deferred_bytes = device_.counters().deferred_bytes.current.load(std::memory_order_relaxed) + being_freed_bytes_ + giving_back_.late_bytes();
  *evidence.releasable_with_deferred_bytes += giving_back_.late_bytes();
  evidence.mempool_idle_bytes = mempools.bytes;
  evidence.own_outside_bytes = held_outside_bytes() + mempools.bytes;
  evidence.graph_bytes = device_.live.outside.graphs.load(std::memory_order_relaxed);
  evidence.living_graphs = GraphMemory::living_graphs(device_);
  evidence.limit_bytes = device_.limit.limit_bytes();
  evidence.held_bytes = device_.limit.held_bytes();
  evidence.refused_by_limit = std::string_view(refusal.where) == kLimitRefusal;
  evidence.capturing = capturing();
  evidence.deferred_in_order_bytes = deferred_in_order_bytes() + giving_back_.late_bytes();
  if (evidence.driver_free_bytes) {
    // While something captures the answer about graphs is an old one.
    const std::uint64_t stale_bytes = evidence.graph_bytes - std::min(GraphMemory::bytes_beside(device_, *evidence.driver_free_bytes + evidence.held_bytes), evidence.graph_bytes);
    evidence.graph_bytes -= stale_bytes;
    evidence.own_outside_bytes -= std::min(stale_bytes, evidence.own_outside_bytes);
    // Managed memory is where it was last touched: on this device at most what is left, as in the ledger.
    const std::uint64_t booked_idle_bytes = device_.live.outside.mempools.load(std::memory_order_relaxed);  // in what is held
    const std::uint64_t other_idle_bytes = mempools.bytes - std::min(booked_idle_bytes, mempools.bytes);
    const std::uint64_t known_bytes = *evidence.driver_free_bytes + evidence.held_bytes + evidence.graph_bytes + other_idle_bytes;
    const std::uint64_t left_bytes = device_.total_bytes - std::min(known_bytes, device_.total_bytes);
    const std::uint64_t managed_bytes = device_.live.outside.managed.load(std::memory_order_relaxed);
    const std::uint64_t elsewhere_bytes = managed_bytes - std::min(managed_bytes, left_bytes);
    evidence.own_outside_bytes -= std::min(elsewhere_bytes, evidence.own_outside_bytes);
    const std::uint64_t known_left_bytes = managed_bytes + giving_back_.late_bytes();
    evidence.unattributed_bytes = left_bytes - std::min(known_left_bytes, left_bytes);
  }
  device_.timeline.record({ticks(), evidence.driver_free_bytes.value_or(0), evidence.request_bytes, requested_bytes, 0, 0, observe::EventKind::oom, 0});
  device_.services.ooms.add(std::move(oom));
  figures_.publish(device_);
}

/// Of a limit, and of a size that overflows, the driver knows nothing. Never recorded as out of memory when it has another reason.
Error DevicePool::reason_of_refusal(Error refusal) {
  const std::string_view where = refusal.where;
  if (refusal.code != CUDA_ERROR_OUT_OF_MEMORY || (!where.empty() && where != kLimitRefusal) || !may_call_driver()) return refusal;
  const MutexUnlock unlocked(device_.lock);
  const RelaxedCaptureMode relaxed(device_.driver);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const CUresult code = device_.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  const bool is_lost = code == CUDA_ERROR_UNKNOWN || code == CUDA_ERROR_DEVICE_UNAVAILABLE;  // the device: every call answers so
  return is_of_earlier_work(code) || is_context_gone(code) || is_lost ? Error{code, "cuMemGetInfo_v2"} : refusal;
}

/// Room within the limit for memory outside the pool, charged; false: there is none.
bool DevicePool::make_way(std::uint64_t bytes) {
  const MutexLock lock(device_.lock);
  // What was freed and is no longer in use is empty pool memory too.
  magazines_.close_all(device_);
  stream_frees_.drain_lanes(device_);
  static_cast<void>(deferral_.close_epoch(device_, nullptr, Deferral::Closing::late));
  stream_frees_.retire_all(device_, nullptr, false);
  // Empty pool memory counts as held: it goes before the program is refused, unless that could block. The driver may refuse to take it once,
  // or always in the way that is tried first.
  constexpr int kAttempts = 6;
  for (int attempt = 0; attempt < kAttempts && may_call_driver() && giving_back_.release_would_do(device_, bytes) && giving_back_.may_release(device_); ++attempt) {
    const std::uint64_t headroom_bytes = device_.limit.headroom_bytes();
    giving_back_.release(device_, nullptr, bytes > headroom_bytes ? bytes - headroom_bytes : 1);
    if (device_.limit.charge(bytes)) return true;
  }
  return false;
}

Status DevicePool::charge_outside(OutsideKind kind, std::uint64_t bytes, const char* api, const PoolSet::AskDriver& ask) {
  if (kind != OutsideKind::host) used_.store(true, std::memory_order_relaxed);
  return counts_against_limit(kind) ? charge(bytes, bytes, [api] { return Refused{api}; }, ask, [&] { return device_.limit.charge(bytes); }) : Status{};
}

/// `bytes` of the limit, for a call that the driver is to serve: empty pool memory makes way for it.
Status DevicePool::charge(std::uint64_t bytes, std::uint64_t requested_bytes, const std::function<Refused()>& tell, const PoolSet::AskDriver& ask,
                          const std::function<bool()>& take) {
  if (take() || make_way(bytes)) return {};
  // Natively the frees that still wait had waited; and under `async` it is the driver's pool that keeps idle memory.
  const std::uint64_t until_ns = device_.services.clock.now_ns() + kPollBound_ns;
  constexpr int kMostTries = 100;  // other threads may go on giving back what others take
  bool is_more = bytes <= device_.limit.limit_bytes();
  for (int tries = 0; is_more && tries < kMostTries; ++tries) {
    // Of the driver's pool no more than what is missing: what stays there serves what comes next.
    const std::uint64_t missing_bytes = bytes - std::min(device_.limit.headroom_bytes(), bytes);
    is_more = give_back_idle(until_ns, 0, true, policy_ == config::Policy::async ? missing_bytes : std::numeric_limits<std::uint64_t>::max()) != 0;
    if (take()) return {};
  }
  const Refused what = tell();
  const MutexLock lock(device_.lock);
  if (!ask) return fail(requested_bytes, what, nullptr, reason_of_refusal({CUDA_ERROR_OUT_OF_MEMORY, kLimitRefusal}));
  CUresult reason = CUDA_ERROR_OUT_OF_MEMORY;
  if (may_call_driver()) {
    const MutexUnlock unlocked(device_.lock);
    reason = ask();
  }
  // [?] A driver may call the size itself invalid; a program that has reached its limit must hear of memory.
  const bool is_other = reason != CUDA_SUCCESS && reason != CUDA_ERROR_INVALID_VALUE && reason != CUDA_ERROR_OUT_OF_MEMORY;
  return fail(requested_bytes, what, nullptr, {is_other ? reason : CUDA_ERROR_OUT_OF_MEMORY, kLimitRefusal});
}

void DevicePool::note_refusal(std::uint64_t bytes, const Refused& what) {
  const MutexLock lock(device_.lock);
  fail(bytes, what, nullptr, {CUDA_ERROR_OUT_OF_MEMORY, "the driver"});
}

void DevicePool::note_failure() {
  const MutexLock lock(device_.lock);
  device_.counters().failed_allocations.add();
}

void DevicePool::warn_of_refusal(const char* api) {
  constexpr std::uint32_t kMostTold = 8;
  const MutexLock lock(device_.lock);
  if (refusals_told_++ >= kMostTold || !may_call_driver()) return;
  magazines_.close_all(device_);
  const std::optional<std::uint64_t> driver_free_bytes = driver_free_.ask(device_);
  const auto mib = [](std::uint64_t bytes) { return std::to_string(bytes / kMiB) + " MiB"; };
  const std::uint64_t reserved_bytes = device_.counters().reserved_bytes.current.load(std::memory_order_relaxed);
  device_.services.warn(std::string(api) + ": the driver has not enough memory on GPU " + std::to_string(device_.ordinal) + " for it (" +
                                (driver_free_bytes ? mib(*driver_free_bytes) + " free" : "free: unknown") + "); the pool has " + mib(reserved_bytes) + ", of these " +
                                mib(figures_.sum(device_).free_bytes) + " free beside other blocks");
}

void DevicePool::book_outside(OutsideKind kind, std::int64_t bytes) {
  const MutexLock lock(device_.lock);
  std::atomic<std::uint64_t>& gauge = outside_of(device_.live.outside, kind);
  gauge.store(gauge.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
  if (counts_against_limit(kind)) device_.counters().outside_bytes.add(bytes);
  if (bytes > 0 && kind != OutsideKind::host) driver_free_.sample_first(device_, false);
  if (bytes > 0) graph_memory_.notice_taken(device_);
}

void DevicePool::refund_outside(OutsideKind kind, std::uint64_t bytes) {
  if (counts_against_limit(kind)) device_.limit.refund(bytes);
}

/// Regions that the driver is still to free are waited for a while; then they count as its free memory, as far as it does not count them already, which nobody can ask.
void DevicePool::count_late(std::size_t* free_bytes) {
  constexpr int kMostWaits = 25;  // of 2 ms
  if (giving_back_.late_bytes() == 0) return;
  for (int waits = 0; waits < kMostWaits && giving_back_.late_bytes() != 0; ++waits) static_cast<void>(giving_back_.await_late(device_));
  *free_bytes = driver_free_.sample(device_).value_or(*free_bytes);
  const std::uint64_t held_bytes = std::min(device_.limit.held_bytes(), device_.total_bytes);
  *free_bytes = std::max<std::uint64_t>(*free_bytes, std::min(*free_bytes + giving_back_.late_bytes(), device_.total_bytes - held_bytes));
}

void DevicePool::adjust_mem_info(CUcontext context, std::size_t* free_bytes, std::size_t* total_bytes) {
  if (used()) idle_pools_.tell_ours(device_, 0, true);  // above a threshold the driver's pool gave it back when the program last waited
  idle_pools_.tell_others(device_, true);
  device_.publish_driver_free(*free_bytes);  // of the same moment
  const MutexLock lock(device_.lock);
  magazines_.close_all(device_);
  count_late(free_bytes);
  const auto is_in_use = [](const auto& home) { return home->is_in_use(); };
  if (std::count_if(homes_.begin(), homes_.end(), is_in_use) > 1 && may_call_driver()) {  // what is over in another context's regions lets them go back
    static_cast<void>(deferral_.close_epoch(device_, nullptr, Deferral::Closing::late));
    stream_frees_.retire_all(device_, nullptr, false);
  }
  const std::uint64_t limit_bytes = device_.limit.limit_bytes();
  if (limit_bytes != 0) *total_bytes = std::min<std::size_t>(*total_bytes, limit_bytes);
  std::uint64_t pool_free_bytes = 0;
  for (const auto& home : homes_) {
    if (!home->is_in_use()) continue;
    // Of other contexts what would go back to the driver for this one: lanes are emptied for that.
    pool_free_bytes += home->context == context ? figures_of(*home, device_).free_bytes : figures_of_all_lanes_of(*home, device_, 1).wholly_free_bytes;
  }
  // Natively the free would have waited, so what waits for the GPU is as good as free.
  pool_free_bytes += device_.counters().deferred_bytes.current.load(std::memory_order_relaxed);
  // Whole blocks only: what is promised here must be had by one allocation, which is rounded up.
  const std::uint64_t headroom_bytes = align_down(device_.limit.headroom_bytes(), kBlockAlignment_bytes);
  const std::uint64_t from_driver_bytes = std::min<std::uint64_t>(*free_bytes, headroom_bytes);
  *free_bytes = std::min<std::size_t>(*total_bytes, from_driver_bytes + pool_free_bytes);
}

std::string DevicePool::check() {
  const MutexLock lock(device_.lock);
  if (std::string broken = magazines_.check(device_); !broken.empty()) return broken;
  std::uint64_t reserved_bytes = driver_blocks_.bytes();
  for (const auto& home : homes_) {
    if (!home->is_in_use()) continue;
    if (std::string broken = lanes::check_stamps(device_, *home); !broken.empty()) return broken;
    for (DeviceAllocator* allocator : {home->pooled.get(), static_cast<DeviceAllocator*>(&home->natives)}) {
      if (allocator == nullptr) continue;
      if (std::string broken = allocator->check(device_); !broken.empty()) return broken;
      reserved_bytes += allocator->figures(device_).region_bytes;
    }
  }
  const observe::Counters& counters = device_.counters();
  if (device_.driver_served_bytes != driver_blocks_.bytes()) return "what the driver serves is not the sum of its blocks";
  if (reserved_bytes != counters.reserved_bytes.current.load()) return "reserved_bytes is not the sum of the regions";
  if (reserved_bytes + device_.leaving_bytes + counters.outside_bytes.current.load() != device_.limit.held_bytes()) return "held bytes are not what is reserved and outside";
  std::uint64_t stamped_bytes = 0;
  for (const auto& home : homes_) stamped_bytes += home->streams.deferred_bytes();
  return deferred_.check(counters.deferred_bytes.current.load() - stamped_bytes);
}

}  // namespace cupool::device
