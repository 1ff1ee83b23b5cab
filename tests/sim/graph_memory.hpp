// GraphMemory: memory that a graph owns (allocation and free nodes, by hand or captured).
//
// Its address is fixed when its node is created; its bytes come with a launch (or an upload) and stay with the device's graph memory until
// cuDeviceGraphMemTrim. It is live in two senses: for the host from a launch to its free, which decides what calls answer, and for the device between
// the runs of its two nodes, which decides what may touch it. It outlives its graph while it is live. Graphs never share bytes, as real ones may.
// Source: CUDA programming guide 13.0, "Graph Memory Nodes". Thread rule: guarded by the simulator's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "tests/sim/allocation.hpp"

namespace cusim {

struct GraphMemory {
  CUdeviceptr base = 0;
  std::size_t bytes = 0;
  std::uint64_t reserved_bytes = 0;  ///< of the address range
  int device = 0;
  Context* context = nullptr;  ///< null once that context has ended
  CUmemPoolProps properties{};
  std::vector<CUmemAccessDesc> descriptors;
  std::map<int, CUmemAccess_flags> access;  ///< of devices other than its own
  std::uint64_t owner = 0;                  ///< id of the graph of its allocation node
  std::set<std::uint64_t> freed_by;         ///< ids of the graphs that have a free node for it
  bool live = false;                        ///< for the host
  bool on_device = false;                   ///< for the device
  Allocation* backing = nullptr;
  OperationPtr freed;     ///< the last free in stream order
  OperationPtr last_use;  ///< end of the last launch that names it

  bool freed_by_owner() const { return freed_by.count(owner) != 0; }
  bool freed_by_other() const { return freed_by.size() > (freed_by_owner() ? 1U : 0U); }
  bool is_busy() const { return live || on_device || (last_use != nullptr && !last_use->done); }
};

/// What the device keeps for graphs.
struct GraphPool {
  std::multimap<std::size_t, Allocation*> vacant;  ///< by bytes; of graphs that are gone
  std::uint64_t reserved = 0, reserved_high = 0, used_high = 0;
};

}  // namespace cusim
