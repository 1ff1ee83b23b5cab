// MemoryPool: a pool of stream-ordered memory (cuMemPool*). Thread rule: guarded by the simulator's lock.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include <cuda.h>

#include "tests/sim/allocation.hpp"

namespace cusim {

/// Bytes of a pool that no allocation holds: a range of device memory that stays reserved until trimmed.
struct PooledRange {
  Allocation* backing = nullptr;  ///< the device memory behind it
  OperationPtr freed;             ///< not to be touched before this completes, except in stream order
  std::uint64_t freed_on = 0;     ///< id of the stream whose order the free followed
};

struct MemoryPool {
  std::uint64_t handle = 0;
  int device = 0;
  bool is_default = false;
  std::uint64_t release_threshold = 0;
  int reuse_follow_events = 1;
  int reuse_opportunistic = 1;
  int reuse_internal = 1;
  std::uint64_t max_bytes = 0;
  std::uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
  std::map<int, CUmemAccess_flags> access;  ///< of devices other than its own
  std::multimap<std::size_t, PooledRange> vacant;  ///< by bytes
  bool destroyed = false;  ///< waits for its last allocation
};

}  // namespace cusim
