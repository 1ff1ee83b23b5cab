// What reports, cuMemGetInfo and the limit are told of one device.
#include <algorithm>
#include <limits>

#include "pool/device/context_lanes.hpp"
#include "pool/device/device_pool.hpp"

namespace cupool::device {

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
  if (!ask) return refusals_.fail(device_, requested_bytes, what, nullptr, Refusals::reason_of(device_, {CUDA_ERROR_OUT_OF_MEMORY, kLimitRefusal}));
  CUresult reason = CUDA_ERROR_OUT_OF_MEMORY;
  if (may_call_driver()) {
    const MutexUnlock unlocked(device_.lock);
    reason = ask();
  }
  // [?] A driver may call the size itself invalid; a program that has reached its limit must hear of memory.
  const bool is_other = reason != CUDA_SUCCESS && reason != CUDA_ERROR_INVALID_VALUE && reason != CUDA_ERROR_OUT_OF_MEMORY;
  return refusals_.fail(device_, requested_bytes, what, nullptr, {is_other ? reason : CUDA_ERROR_OUT_OF_MEMORY, kLimitRefusal});
}

void DevicePool::note_refusal(std::uint64_t bytes, const Refused& what) {
  const MutexLock lock(device_.lock);
  refusals_.fail(device_, bytes, what, nullptr, {CUDA_ERROR_OUT_OF_MEMORY, "the driver"});
}

void DevicePool::note_failure() {
  const MutexLock lock(device_.lock);
  device_.counters().failed_allocations.add();
}

void DevicePool::warn_of_refusal(const char* api) {
  const MutexLock lock(device_.lock);
  refusals_.warn(device_, api);
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
