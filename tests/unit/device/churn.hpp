// What the tests of magazines share: blocks of one size that come and go, and what of it the device has not been told.
#pragma once

#include <cstdint>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

namespace cupool::test {

/// What the threads' shards say and the counters do not.
inline std::uint64_t untold_allocations(Rig& rig) {
  std::uint64_t count = 0;
  for (std::size_t i = 0; i < observe::kLiveShards; ++i)
    count += std::launder(reinterpret_cast<observe::LiveShard*>(rig.live().shards + i * sizeof(observe::LiveShard)))->allocations.load();
  return count;
}

/// What threads have freed and the device was not told of.
inline std::uint64_t untold_deferred_bytes(Rig& rig) {
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < observe::kLiveShards; ++i)
    bytes += std::launder(reinterpret_cast<observe::LiveShard*>(rig.live().shards + i * sizeof(observe::LiveShard)))->deferred_bytes.load();
  return bytes;
}

/// Blocks of one size, freed and allocated again until the thread's magazine has them. For any thread: Catch is for one.
inline void churn(Rig& rig, std::vector<CUdeviceptr>& ring, std::size_t bytes, int pairs) {
  CUcontext context = nullptr;
  cuCtxGetCurrent(&context);
  for (int i = 0; i < pairs; ++i) {
    CUdeviceptr& slot = ring[static_cast<std::size_t>(i) % ring.size()];
    if (slot != 0 && rig.pools().free(slot).outcome != FreeOutcome::freed) throw std::logic_error("a free failed");
    slot = rig.pools().allocate(context, bytes, "cuMemAlloc_v2").value();
    if (slot == 0) throw std::logic_error("an allocation failed");
  }
}

inline void free_them(Rig& rig, const std::vector<CUdeviceptr>& blocks) {
  for (const CUdeviceptr block : blocks)
    if (rig.pools().free(block).outcome != FreeOutcome::freed) throw std::logic_error("a free failed");
}

inline std::uint64_t counter_named(const observe::Snapshot& snapshot, const char* name) {
  for (const observe::CounterValue& value : snapshot.devices.at(0).counters)
    if (value.name == std::string(name)) return value.current;
  FAIL("no counter " << name);
  return 0;
}

}  // namespace cupool::test
