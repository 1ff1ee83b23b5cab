// DriverFree: questions to the driver what it has free of a device's memory, for the ledger and for who is about to give back or to give up.
//
// The answer is DeviceState's (publish_driver_free); what the driver's pools keep idle is asked for at the same moment.
// Thread rule: the device's lock, let go of around every driver call.
#pragma once

#include <cstdint>
#include <optional>

#include "pool/device/context_pool.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/idle_pools.hpp"

namespace cupool::device {

class DriverFree {
 public:
  DriverFree(const ContextPools& homes, IdlePools& idle_pools) : homes_(homes), idle_pools_(idle_pools) {}

  /// Asks the driver (the caller's current context is on this device) and publishes; nullopt when it does not say.
  std::optional<std::uint64_t> sample(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// Where no context of this device is current either: asked in one that we know. None is begun for it, and no primary one retained: the program's last release would not be the last, and
  /// the context end unseen with ours.
  std::optional<std::uint64_t> ask(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// As sample() once, for the ledger, where nothing else asks. Not while something captures.
  /// `is_of_device`: the calling thread's current context is known to be of this device; else it is asked for its own.
  void sample_first(DeviceState& device, bool is_of_device) CUPOOL_REQUIRES(device.lock);
  /// The calling thread's current context is of this device, and lives: the last release of a primary context leaves it current.
  static bool is_current(DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  const ContextPools& homes_;
  IdlePools& idle_pools_;
  bool has_asked_ = false;  ///< for the ledger
};

}  // namespace cupool::device
