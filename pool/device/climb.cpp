// DevicePool: what comes before and after the rungs of the ladder, and what the program is told in the end. See ladder.cpp.
#include <algorithm>
#include <limits>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/device/ladder.hpp"
#include "pool/device/patience.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;

namespace {

struct EndOfShortage {
  Shortage& shortage;
  const bool& is_short;
  ~EndOfShortage() {
    if (is_short) shortage.end();
  }
};
}  // namespace

/// Has anything been freed that has not yet gone back to the driver or to a heap?
bool DevicePool::has_waiting_frees() {
  return !deferred_.batch_is_empty() || deferred_.oldest() != nullptr || !deferred_.unstamped().empty() ||
         std::any_of(homes_.begin(), homes_.end(), [](const auto& home) { return home->natives.has_waiting(); });
}

/// How much must come back from memory pools that the driver serves, so that limit and driver have `bytes` together with what the pool can give back.
/// 0: nothing is missing, or more than these have idle.
std::uint64_t DevicePool::wanted_of_mempools(std::uint64_t bytes) {
  const std::uint64_t idle_bytes = idle_pools_.ask_others(device_).bytes;
  if (idle_bytes == 0) return 0;
  const std::uint64_t ours_bytes = figures_.sum(device_).wholly_free_bytes;
  const auto missing_of = [&](std::uint64_t room_bytes) {
    const std::uint64_t all_bytes = room_bytes > std::numeric_limits<std::uint64_t>::max() - ours_bytes ? room_bytes : room_bytes + ours_bytes;
    return saturating_sub(bytes, all_bytes);
  };
  const std::uint64_t driver_free_bytes = driver_free_.sample(device_).value_or(device_.total_bytes);
  const std::uint64_t wanted_bytes = std::max(missing_of(device_.limit.headroom_bytes()), missing_of(driver_free_bytes));
  return wanted_bytes <= idle_bytes ? wanted_bytes : 0;
}

/// Could `bytes` be had if all came back that is not live? Asks the driver what it has free before it says no. Precondition: the magazines are
/// closed, so that it is known what is live.
bool DevicePool::could_come(std::uint64_t bytes) {
  if (moves_.are_any()) return true;
  const observe::LiveOutside& outside = device_.live.outside;
  const std::uint64_t outside_bytes = outside.managed.load(std::memory_order_relaxed) + outside.graphs.load(std::memory_order_relaxed);
  // The driver moves managed memory to the host where device memory is needed.
  const std::uint64_t coming_bytes =
      device_.not_live_bytes() + device_.leaving_bytes + giving_back_.late_bytes() + std::min(outside_bytes, device_.limit.headroom_bytes());
  const auto is_enough = [&]() CUPOOL_REQUIRES(device_.lock) { return bytes <= coming_bytes || bytes - coming_bytes <= device_.room_bytes(); };
  return is_enough() || !driver_free_.sample(device_) || is_enough();
}

/// Must the block be an allocation of its own? The program has come to share memory with other processes by handles that exist for cuMemAlloc memory
/// only, and this context's memory is on pages. (With CUPOOL_BACKING=pages the user has asked for that.)
bool DevicePool::wants_own(const ContextPool& home, const AllocationRequest& request) const {
  const PoolServices& services = device_.services;
  if (!services.shares_blocks.load(std::memory_order_relaxed)) [[likely]]
    return false;
  return services.options.backing == config::Backing::automatic && request.stream.identity == 0 && request.bytes != 0 && home.pooled != nullptr &&
         home.pooled->can_move();
}

/// Pins the attempt's context, before the first rung. An error, and nothing pinned: kStaleContext, or the context is still being ended after a while.
Error DevicePool::enter(Attempt& attempt) {
  ContextPool* home = attempt.home;
  Clock& clock = device_.services.clock;
  const std::uint64_t until_ns = clock.now_ns() + kPollBound_ns;
  while (home->context == attempt.context && device_.services.contexts.pin(home, attempt.context) != Pin::held) {
    if (clock.now_ns() >= until_ns) return {CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is being ended"};
    const MutexUnlock unlocked(device_.lock);
    clock.pause(kDriverCallPause_ns);
  }
  if (home->context != attempt.context) return kStaleContext;
  return {};
}

/// At the first use of the device: logs what serves here.
void DevicePool::begin_use() {
  if (used()) return;
  used_.store(true, std::memory_order_relaxed);
  device_.log(config::LogLevel::info, [this] {
    const std::uint64_t limit_bytes = device_.limit.limit_bytes();
    return std::string(device_.live.name) + ", " + observe::human_bytes(device_.total_bytes) + ": policy " + device_.live.policy + ", backing " +
           device_.live.backing + (limit_bytes != 0 ? ", limit " + observe::human_bytes(limit_bytes) : ", no limit");
  });
}

void DevicePool::log_rung(const Attempt& attempt, const char* rung) {
  device_.log(config::LogLevel::debug, [&] {
    const observe::Counters& counters = device_.counters();
    const auto now = [](const observe::Gauge& gauge) { return observe::human_bytes(gauge.now()); };
    return std::string(attempt.api) + " of " + observe::human_bytes(attempt.request.requested_bytes) + " by rung " + rung + ": " +
           now(counters.reserved_bytes) + " reserved, " + now(counters.live_bytes) + " live, " + now(counters.deferred_bytes) + " wait for the GPU";
  });
}

Climbed DevicePool::climb_rungs(Attempt& attempt) {
  preallocation_.await(device_);
  attempt.moves = moves_.ended();
  if (!preallocation_.is_done() && policy_ != config::Policy::platform) preallocation_.take(device_, *attempt.home);
  stream_frees_.stamp_late(device_, attempt.context, attempt.request.stream);
  if (deferred_.batch_is_due() || deferred_.has_over_natively()) {
    const Error error = deferral_.upkeep(device_, attempt.context, false);
    if (error.code != CUDA_SUCCESS) return error;
  }
  for (const Ladder::Rung& rung : Ladder::kRungs) {
    Climbed climbed = rung.climb(*this, attempt);
    if (!climbed.ok()) return climbed;
    if (climbed.value() == nullptr) continue;
    (device_.counters().*rung.served).add();
    if (rung.served != &observe::Counters::rung_hole) log_rung(attempt, rung.name);
    return climbed;
  }
  return nullptr;
}

Result<CUdeviceptr> DevicePool::climb(Attempt& attempt, std::uint16_t thread) {
  if (!may_call_driver()) return Error{CUDA_ERROR_DEINITIALIZED, attempt.api};
  begin_use();
  const Error refused = enter(attempt);
  if (refused.code != CUDA_SUCCESS) {
    if (refused.where != kStaleContext.where) device_.counters().failed_allocations.add();
    return refused;
  }
  const Unpinner unpinner(device_.services.contexts, attempt.home);
  const EndOfShortage end{shortage_, attempt.is_short};
  Climbed climbed = nullptr;
  if (attempt.request.bytes != 0) climbed = climb_rungs(attempt);
  if (climbed.ok() && climbed.value() != nullptr) {
    forget_given_again(*attempt.home);
    const CUdeviceptr address = book(climbed.value(), attempt.request, thread);
    if (unpooled_) driver_free_.sample_first(device_, true);  // a heap asks when it grows
    graph_memory_.notice_taken(device_);
    figures_.publish(device_);
    return address;
  }
  if (climbed.error().where == kDriversOwn.where) return kDriversOwn;
  if (climbed.code() == CUDA_ERROR_DEINITIALIZED) device_.services.stopped.store(true, std::memory_order_relaxed);
  const Error refusal = climbed.ok() ? Refusals::reason_of(device_, attempt.refusal) : climbed.error();
  giving_back_.return_unused(device_, *attempt.home);
  return refusals_.fail(device_, attempt.request.requested_bytes, {attempt.api}, attempt.home, refusal);
}

}  // namespace cupool::device
