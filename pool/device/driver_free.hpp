// DriverFree: asks the driver how much of a device's memory is free, for the ledger and before memory is given back or refused.
//
// The answer is stored in DeviceState (publish_driver_free); what the driver's pools keep idle is asked for at the same moment.
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

  /// Asks the driver and publishes the answer, in bytes; nullopt when it does not say. Precondition: the caller's current context is on this device.
  std::optional<std::uint64_t> sample(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// As sample(), but where no context of this device is current it asks in one that the pool knows. No context is created for it and no primary
  /// context retained: the program's last release would not be the last one then, and the end of the context would pass unseen.
  std::optional<std::uint64_t> ask(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// As sample(), once, for the ledger where nothing else asks. Not while something captures. `is_of_device`: the calling thread's current context is
  /// known to be of this device; otherwise it is asked for its own.
  void sample_first(DeviceState& device, bool is_of_device) CUPOOL_REQUIRES(device.lock);
  /// Do `bytes` fit within the limit and what the driver has free (asked again before the answer is no, with what its own pool may take at once), or
  /// in what its pools keep idle for nobody else?
  bool has_room(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// Has the driver much more than `bytes` free? It is asked now.
  bool has_much_room(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// Is the calling thread's current context a living one of this device? (The last release of a primary context leaves it current.)
  static bool is_current(DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  static constexpr std::uint64_t kDriversChunk_bytes = 32 * kMiB;  ///< how much more than asked for the driver's pool may take for a block

  const ContextPools& homes_;
  IdlePools& idle_pools_;
  bool has_asked_ = false;  ///< sample_first() has asked
};

}  // namespace cupool::device
