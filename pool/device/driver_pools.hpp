// DriverPools: the memory pools of the driver from which it serves the program itself, for questions about what they keep and nobody uses.
//
// A pool that is about to be destroyed is taken out first, which waits for who asks it just now: no handle reaches the driver after its end. The
// device's own pool is asked for by the device. Thread-safe; called without the device's lock, and holds none while the driver works. Source: CUDA
// Driver API 13.0, Stream Ordered Memory Allocator.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "pool/core/clock.hpp"
#include "pool/core/mutex.hpp"
#include "pool/core/thread_annotations.hpp"
#include "pool/driver/driver_api.hpp"

namespace cupool::device {

/// What pools reserve and do not use.
struct PoolIdle {
  std::uint64_t bytes = 0;
  std::uint64_t kept_bytes = 0;        ///< of these, what stays when the program synchronises: CU_MEMPOOL_ATTR_RELEASE_THRESHOLD covers it
  std::uint64_t named_kept_bytes = 0;  ///< of these, in the pool that was named
  bool counts_requested = false;       ///< what they use is no multiple of what blocks are rounded to
};

class DriverPools {
 public:
  /// The program made a pool whose memory is `device`'s. Without host memory for it the pool is not asked.
  void add(CUmemoryPool handle, int device);
  /// `clock`: to wait by, for as long as others are in the driver with it.
  void remove(CUmemoryPool handle, Clock& clock);

  /// `also_default`: the device's own pool too. `named` (may be null) is one of them.
  PoolIdle ask(const Driver& driver, int device, bool also_default, CUmemoryPool named = nullptr);
  /// What is idle goes back to the device, pool by pool, until `wanted_bytes` are reached. Returns bytes. Waits for nothing: what work on the GPU may
  /// still touch stays.
  std::uint64_t trim(const Driver& driver, int device, bool also_default, std::uint64_t wanted_bytes);

 private:
  struct Known {
    CUmemoryPool handle = nullptr;
    int device = 0;
    std::uint64_t number = 0;  ///< in the order in which they came
    std::uint32_t pins = 0;    ///< threads that are in the driver with it
    bool is_ending = false;
  };
  template <class Visit> void for_each(const Driver& driver, int device, bool also_default, Visit&& visit) CUPOOL_EXCLUDES(mutex_);
  CUmemoryPool pin_after(std::uint64_t* number, int device) CUPOOL_EXCLUDES(mutex_);
  void unpin(std::uint64_t number) CUPOOL_EXCLUDES(mutex_);

  Mutex mutex_;                                         ///< a leaf
  std::vector<Known> pools_ CUPOOL_GUARDED_BY(mutex_);  ///< by number
  std::uint64_t added_ CUPOOL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cupool::device
