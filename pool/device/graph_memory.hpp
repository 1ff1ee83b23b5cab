// GraphMemory: the memory that the driver keeps for CUDA graphs. What their allocation nodes took at a launch stays with the device's graphs, even
// when all of them are gone, until it is trimmed (CUDA Programming Guide 13.0, "Graph Memory Nodes"). Only the driver knows how much that is, and
// nobody else can use it.
//
// The driver is not asked before the program has made such a graph.
// Thread rule: the device's lock, let go of around every driver call.
#pragma once

#include <cstdint>
#include <optional>

#include "config/options.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/driver_free.hpp"
#include "pool/device/live_figures.hpp"
#include "pool/device/moves.hpp"

namespace cupool::device {

class GraphMemory {
 public:
  GraphMemory(DriverFree& driver_free, const LiveFigures& figures, Moves& moves, config::Policy policy)
      : driver_free_(driver_free), figures_(figures), moves_(moves), policy_(policy) {}

  /// Asks the driver for these bytes; nullopt while something captures and before the program has made such a graph. What a report says is as old as
  /// the last answer.
  static std::optional<std::uint64_t> ask(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// The driver's last answer, but no more than can exist beside `others_bytes`, which the driver has free or this process holds.
  static std::uint64_t bytes_beside(const DeviceState& device, std::uint64_t others_bytes);
  /// Number of executable graphs with memory on this device: their next launch may need what the driver keeps.
  static std::uint64_t living_graphs(const DeviceState& device);
  /// Asks again, and if the answer has changed also for the driver's free memory.
  void renew(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// A driver call may have been served from what was kept for graphs: then less is kept, and the driver's free memory has changed.
  void notice_taken(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// Would the driver have `bytes` together with what it keeps for graphs, and what the pool can give back?
  bool trim_would_do(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// Returns to the device what is kept for graphs that are gone; returns the bytes that went. The driver's call waits for nothing. Used only where
  /// the program would be refused otherwise, and not under `platform`, where every answer is the driver's own.
  /// Not while an executable graph lives: the driver spares only what a graph that runs or waits to run is using (seen on H100 and H200, driver 580),
  /// and a launch that finds its memory gone may be refused, which natively never happens.
  std::uint64_t trim(DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  DriverFree& driver_free_;
  const LiveFigures& figures_;
  Moves& moves_;
  const config::Policy policy_;
};

}  // namespace cupool::device
