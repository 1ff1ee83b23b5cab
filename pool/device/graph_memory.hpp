// GraphMemory: what the driver keeps for CUDA graphs: memory that their allocation nodes took at a launch stays with the device's graphs, also when
// all of them are gone, until it is trimmed (CUDA Programming Guide 13.0, "Graph Memory Nodes"). Only the driver knows how much that is, and nobody
// else can have it.
//
// Nobody is asked before the program has made such a graph. Thread rule: the device's lock, let go of around every driver call.
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

  /// As the driver says; not while something captures, and only once the program has made such a graph. What is told of it is as old as the last
  /// answer.
  static std::optional<std::uint64_t> ask(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// As the driver said last, and no more than can be beside so many bytes that it has free, or this process holds.
  static std::uint64_t bytes_beside(const DeviceState& device, std::uint64_t others_bytes);
  /// Executable ones with memory on this device: their next launch may need what the driver keeps there.
  static std::uint64_t living_graphs(const DeviceState& device);
  /// Asks, and what the driver has free as well where the answer is another than the last.
  void renew(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// A call was served by what the driver kept for graphs, which it gives to its own calls: then it keeps less, and has something else free.
  void notice_taken(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// Would the driver have `bytes` together with what it keeps for graphs, and what the pool can give back?
  bool trim_would_do(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// What graphs keep that are gone goes back to the device. Not while an executable one lives: the call leaves alone only what a graph uses that
  /// runs or waits to run (H100 and H200, driver 580), and a launch that finds its memory gone may be refused, which natively it never is. Only where
  /// the program would be refused otherwise, and not under `platform`, where every answer is the driver's own. Returns bytes. The call waits for
  /// nothing.
  std::uint64_t trim(DeviceState& device) CUPOOL_REQUIRES(device.lock);

 private:
  DriverFree& driver_free_;
  const LiveFigures& figures_;
  Moves& moves_;
  const config::Policy policy_;
};

}  // namespace cupool::device
