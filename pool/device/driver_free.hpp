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
  /// Where no context of this device is current either: asked in one that we know. None is begun for it, and no primary one retained: the program's
  /// last release would not be the last, and the context end unseen with ours.
  std::optional<std::uint64_t> ask(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// As sample() once, for the ledger, where nothing else asks. Not while something captures.
  /// `is_of_device`: the calling thread's current context is known to be of this device; else it is asked for its own.
  void sample_first(DeviceState& device, bool is_of_device) CUPOOL_REQUIRES(device.lock);
  /// Within the limit and by the driver's word, which is asked for again before it is no, with what its pools may take at once; or in what these keep
  /// idle, which is nobody else's.
  bool has_room(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// The driver has much more, by its word just now.
  bool has_much_room(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// The calling thread's current context is of this device, and lives: the last release of a primary context leaves it current.
  static bool is_current(DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  static constexpr std::uint64_t kDriversChunk_bytes = 32 * kMiB;  ///< so much more the driver's pool may take for it

  const ContextPools& homes_;
  IdlePools& idle_pools_;
  bool has_asked_ = false;  ///< for the ledger
};

}  // namespace cupool::device
