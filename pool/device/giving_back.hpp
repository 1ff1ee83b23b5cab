// GivingBack: returns wholly free memory to the driver: on a shortage, above CUPOOL_RELEASE_THRESHOLD, or when the program asks for it.
//
// While a thread is in the driver with memory that it returns, that memory is on no list: a thread that finds none meanwhile waits for it and looks
// again (moves.hpp). Never waits for deferred frees; MakingRoom does.
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
  /// `unpooled`: every block is a driver call of its own.
  GivingBack(const ContextPools& homes, DriverFree& driver_free, LiveFigures& figures, Moves& moves, Orphans& orphans, config::Policy policy,
             bool unpooled)
      : homes_(homes), driver_free_(driver_free), figures_(figures), moves_(moves), orphans_(orphans), policy_(policy), unpooled_(unpooled) {}

  /// Would giving back everything that is wholly free make room for `bytes`? Asks the driver what it has.
  bool release_would_do(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// Would nothing that goes back wait for running work?
  bool may_release(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// Returns wholly free memory to the driver, that of `first` before that of the device's other contexts. Returns the bytes that went: at least
  /// `wanted_bytes` (with `at_most`: at most) if there is so much.
  std::uint64_t release(DeviceState& device, ContextPool* first, std::uint64_t wanted_bytes, bool at_most = false) CUPOOL_REQUIRES(device.lock);
  /// After a refusal: returns what was taken from the driver for the request in vain, because other processes had taken part of what it seemed to
  /// have.
  void return_unused(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);
  /// After a free: returns what exceeds CUPOOL_RELEASE_THRESHOLD, and native blocks whose free waited for a capture to end. A native free would have
  /// synchronised here, so the driver's free of a region may; a call in stream order (`may_block` false) never does.
  void surplus(DeviceState& device, bool may_block = true) CUPOOL_REQUIRES(device.lock);
  /// Bytes of regions that went back in the order of a private stream and that the device may not have got to yet.
  std::uint64_t late_bytes() const;
  /// Waits for these, at most 2 ms for each context. True when any of them is the device's now.
  bool await_late(DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  /// May memory of `home` go back now? While something captures only if it goes without waiting.
  bool may_give_back(const DeviceState& device, const ContextPool& home) const {
    return !device.services.gate.capturing() || policy_ == config::Policy::async ||
           (home.pooled != nullptr && home.pooled->releases_in_order(device));
  }
  /// Does nothing that the device's heaps return wait for running work?
  bool all_release_in_order(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Is nothing running that could make the driver's free of a region block? A native allocation does not wait, and what runs may itself wait for the
  /// allocating thread.
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
