// What the simulated driver was called for so far, by what the bench scripts tell apart. Looked up: the benches link no simulator.
#pragma once

#include <cstdint>
#include <optional>

namespace bench {

struct DriverCalls {
  std::uint64_t memory = 0;  ///< take, give back or map memory or addresses
  std::uint64_t waits = 0;   ///< the host waits for the device
  std::uint64_t events = 0;  ///< record, query, create or destroy events, or make a stream wait for one
};

/// Counts of this process; nullopt where libcuda.so.1 is not the simulated driver.
std::optional<DriverCalls> driver_calls();

}  // namespace bench
