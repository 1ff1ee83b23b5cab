// Refusals: what the program is told when an allocation, or memory outside the pool, is refused, and the evidence for the cause, which reports
// classify.
//
// refusals.cpp says what the program is told, oom_evidence.cpp collects the evidence. The caller has tried to make room before.
// Thread rule: the device's lock, let go of around every driver call.
#pragma once

#include <cstdint>

#include "config/options.hpp"
#include "pool/core/result.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/driver_free.hpp"
#include "pool/device/giving_back.hpp"
#include "pool/device/idle_pools.hpp"
#include "pool/device/live_figures.hpp"
#include "pool/device/magazines.hpp"
#include "pool/device/pool_set.hpp"
#include "pool/observe/snapshot.hpp"

namespace cupool::device {

class Refusals {
 public:
  Refusals(const ContextPools& homes, const DeferredFrees& deferred, Magazines& magazines, LiveFigures& figures, IdlePools& idle_pools,
           DriverFree& driver_free, const GivingBack& giving_back, config::Policy policy)
      : homes_(homes),
        deferred_(deferred),
        magazines_(magazines),
        figures_(figures),
        idle_pools_(idle_pools),
        driver_free_(driver_free),
        giving_back_(giving_back),
        policy_(policy) {}

  // refusals.cpp
  /// Books a failed allocation; an out of memory with the evidence for its cause. `home` is null for memory outside the pool. Returns what the
  /// program is told.
  Error fail(DeviceState& device, std::uint64_t requested_bytes, const Refused& what, const ContextPool* home, Error refusal)
      CUPOOL_REQUIRES(device.lock);
  /// What the driver would have said first, where it was not asked: an error of the context. Calls the driver, without the lock.
  static Error reason_of(DeviceState& device, Error refusal) CUPOOL_REQUIRES(device.lock);
  /// As fail(), where the limit refuses a call that the driver was to serve. `ask`: asks the driver what it says to the call itself; called without
  /// the lock.
  Error fail_by_limit(DeviceState& device, std::uint64_t requested_bytes, const Refused& what, const PoolSet::AskDriver& ask)
      CUPOOL_REQUIRES(device.lock);
  /// The driver had no memory for a call whose need is not known: logs a warning, the first few times.
  void warn(DeviceState& device, const char* api) CUPOOL_REQUIRES(device.lock);

 private:
  static constexpr std::uint32_t kMostTold = 8;

  // oom_evidence.cpp
  /// Throws std::bad_alloc.
  void note_oom(DeviceState& device, std::uint64_t requested_bytes, const Refused& what, const ContextPool* home, const Error& refusal)
      CUPOOL_REQUIRES(device.lock);
  static DriverBacklog::Sums ask_backlog(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  void ask_driver(DeviceState& device, const ContextPool* home, observe::OomEvidence& evidence) CUPOOL_REQUIRES(device.lock);
  void add_holes(DeviceState& device, const ContextPool* home, observe::OomEvidence& evidence) const CUPOOL_REQUIRES(device.lock);
  void add_deferred(DeviceState& device, observe::OomEvidence& evidence) const CUPOOL_REQUIRES(device.lock);
  std::uint64_t deferred_in_order_bytes() const;

  const ContextPools& homes_;
  const DeferredFrees& deferred_;
  Magazines& magazines_;
  LiveFigures& figures_;
  IdlePools& idle_pools_;
  DriverFree& driver_free_;
  const GivingBack& giving_back_;
  const config::Policy policy_;
  std::uint32_t told_ = 0;  ///< warnings logged so far
};

}  // namespace cupool::device
