// The way up the ladder: what comes before its rungs and after them, and what the program is told. See ladder.cpp.
#include "pool/device/device_pool.hpp"
#include "pool/device/ladder.hpp"
#include "pool/device/patience.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

using heap::Extent;

namespace {
constexpr std::uint64_t kEnterPause_ns = 20'000;

struct EndOfShortage {
  Shortage& shortage;
  const bool& is_short;
  ~EndOfShortage() {
    if (is_short) shortage.end();
  }
};
}  // namespace

/// Is anything freed that has not gone back to the driver or to a heap yet?
bool DevicePool::has_waiting_frees() {
  return !deferred_.batch_is_empty() || deferred_.oldest() != nullptr || std::any_of(homes_.begin(), homes_.end(), [](const auto& home) { return home->natives.has_waiting(); });
}

/// The program has come to share memory with other processes, by handles that there are for cuMemAlloc memory only, and this context's is on pages. Whoever asks for those has them.
bool DevicePool::wants_own(const ContextPool& home, const AllocationRequest& request) const {
  const PoolServices& services = device_.services;
  if (!services.shares_blocks.load(std::memory_order_relaxed)) [[likely]] return false;
  return services.options.backing == config::Backing::automatic && request.stream.identity == 0 && request.bytes != 0 && home.pooled != nullptr && home.pooled->can_move();
}

/// Before the first rung: the context must be alive and ours. Pinned on success only.
Error DevicePool::enter(Attempt& attempt) {
  ContextPool* home = attempt.home;
  Clock& clock = device_.services.clock;
  const std::uint64_t until_ns = clock.now_ns() + kPollBound_ns;
  while (home->context == attempt.context && device_.services.contexts.pin(home, attempt.context) != Pin::held) {
    if (clock.now_ns() >= until_ns) return {CUDA_ERROR_CONTEXT_IS_DESTROYED, "context is being ended"};
    const MutexUnlock unlocked(device_.lock);
    clock.pause(kEnterPause_ns);
  }
  if (home->context != attempt.context) return kStaleContext;
  return {};
}

/// The first time it is told what serves here.
void DevicePool::begin_use() {
  if (used()) return;
  used_.store(true, std::memory_order_relaxed);
  device_.tell(config::LogLevel::info, [this] {
    const std::uint64_t limit_bytes = device_.limit.limit_bytes();
    return std::string(device_.live.name) + ", " + observe::human_bytes(device_.total_bytes) + ": policy " + device_.live.policy + ", backing " + device_.live.backing +
           (limit_bytes != 0 ? ", limit " + observe::human_bytes(limit_bytes) : ", no limit");
  });
}

void DevicePool::tell_rung(const Attempt& attempt, const char* rung) {
  device_.tell(config::LogLevel::debug, [&] {
    const observe::Counters& counters = device_.counters();
    const auto now = [](const observe::Gauge& gauge) { return observe::human_bytes(gauge.current.load(std::memory_order_relaxed)); };
    return std::string(attempt.api) + " of " + observe::human_bytes(attempt.request.requested_bytes) + " by rung " + rung + ": " + now(counters.reserved_bytes) +
           " reserved, " + now(counters.live_bytes) + " live, " + now(counters.deferred_bytes) + " wait for the GPU";
  });
}

Climbed DevicePool::climb_rungs(Attempt& attempt) {
  preallocation_.await(device_);
  attempt.moves = moves_.ended();
  if (!preallocation_.is_done() && policy_ != config::Policy::platform) preallocation_.take(device_, *attempt.home);
  if (deferred_.batch_is_due()) {
    const Error error = deferral_.upkeep(device_, attempt.context, false);
    if (error.code != CUDA_SUCCESS) return error;
  }
  for (const Ladder::Rung& rung : Ladder::kRungs) {
    Climbed climbed = rung.climb(*this, attempt);
    if (!climbed.ok()) return climbed;
    if (climbed.value() == nullptr) continue;
    (device_.counters().*rung.served).add();
    if (rung.served != &observe::Counters::rung_hole) tell_rung(attempt, rung.name);
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
    if (unpooled_) driver_free_.sample_first(device_, true);  // else growth asks
    figures_.publish(device_);
    return address;
  }
  if (climbed.error().where == kDriversOwn.where) return kDriversOwn;
  if (climbed.code() == CUDA_ERROR_DEINITIALIZED) device_.services.stopped.store(true, std::memory_order_relaxed);
  const Error refusal = climbed.ok() ? Refusals::reason_of(device_, attempt.refusal) : climbed.error();
  return refusals_.fail(device_, attempt.request.requested_bytes, {attempt.api}, attempt.home, refusal);
}

}  // namespace cupool::device
