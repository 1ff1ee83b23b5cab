// GivingBack: what goes back to the driver: wholly free memory, on a shortage, above a threshold or when it is asked for.
//
// While a thread is in the driver with memory that it gives back, that memory is on no list: who finds none meanwhile waits for the
// thread and looks again (moves.hpp). Never waits for deferred frees: making_room.cpp does.
// Thread rule: the device's lock, let go of around every driver call.
#pragma once

#include <cstdint>

#include "config/options.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/driver_free.hpp"
#include "pool/device/live_figures.hpp"
#include "pool/device/moves.hpp"
#include "pool/device/orphans.hpp"

namespace cupool::device {

class GivingBack {
 public:
  /// `unpooled`: every block is a call of its own to the driver.
  GivingBack(const ContextPools& homes, DriverFree& driver_free, LiveFigures& figures, Moves& moves, Orphans& orphans, config::Policy policy,
             bool unpooled)
      : homes_(homes), driver_free_(driver_free), figures_(figures), moves_(moves), orphans_(orphans), policy_(policy), unpooled_(unpooled) {}

  /// Would giving back everything that is wholly free make room for `bytes`? Asks the driver what it has.
  bool release_would_do(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// Nothing that goes back would wait for work that runs.
  bool may_release(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// Wholly free memory back to the driver, `first`'s before that of the device's other contexts. Returns bytes given back, which are
  /// at least (`at_most`: at most) what is wanted when there is so much.
  std::uint64_t release(DeviceState& device, ContextPool* first, std::uint64_t wanted_bytes, bool at_most = false) CUPOOL_REQUIRES(device.lock);
  /// After a refusal: what was taken from the driver for the request in vain, since others had taken part of what it was believed to have.
  void return_unused(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);
  /// After a free: what CUPOOL_RELEASE_THRESHOLD says is too much, and native blocks whose free waited for a capture.
  /// A native free would have synchronised here, so the driver's free of a region may; one in stream order (`may_block` false) never does.
  void surplus(DeviceState& device, bool may_block = true) CUPOOL_REQUIRES(device.lock);
  /// Of regions that went back in order of a private stream, what the device may not have got to.
  std::uint64_t late_bytes() const;
  /// Waits for that, 2 ms at most for each context. True when any of it is the device's now.
  bool await_late(DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  /// While something captures only what goes back without waiting.
  bool may_give_back(const DeviceState& device, const ContextPool& home) const {
    return !device.services.gate.capturing() || policy_ == config::Policy::async ||
           (home.pooled != nullptr && home.pooled->releases_in_order(device));
  }
  /// Nothing that the device's heaps give back waits for work that runs.
  bool all_release_in_order(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// True when nothing is running that could make the driver's free of a region block: an allocation does not wait natively,
  /// and what runs may itself wait for the thread that allocates.
  static bool is_quiet(DeviceState& device) CUPOOL_REQUIRES(device.lock);

  const ContextPools& homes_;
  DriverFree& driver_free_;
  LiveFigures& figures_;
  Moves& moves_;
  Orphans& orphans_;
  const config::Policy policy_;
  const bool unpooled_;
};

}  // namespace cupool::device
