// The ledger: who holds a device's memory. Its parts sum to total_bytes, whatever the inputs are.
//
// Pure. What is known exactly comes first, samples and estimates after it; each part takes at most what is left. What no part claims is
// `unattributed` (contexts, the driver's own rounding, and other processes where NVML is absent), or `unknown` where the driver was never asked what
// it has free.
#pragma once

#include <cstdint>
#include <vector>

#include "pool/observe/snapshot.hpp"

namespace cupool::observe {

struct LedgerPart {
  const char* name;
  std::uint64_t bytes;
};

struct Ledger {
  std::vector<LedgerPart> parts;   ///< in the order in which they were taken; `unattributed` last, or behind it `unknown`
  bool clamped = false;            ///< some part of the pool or of the program claimed more than the device has left
  bool driver_free_stale = false;  ///< the last sample of the driver's free bytes did not fit any more
  bool driver_free_known = false;  ///< there is a part `driver_free`
  bool others_known = false;       ///< there is a part `other_processes`
};

Ledger ledger_of(const DeviceSnapshot& device);

/// The current (or peak) value of a counter by its name; 0 when the snapshot has none of that name.
std::uint64_t counter_current(const DeviceSnapshot& device, const char* name);
std::uint64_t counter_peak(const DeviceSnapshot& device, const char* name);

}  // namespace cupool::observe
