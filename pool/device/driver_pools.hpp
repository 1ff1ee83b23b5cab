// DriverPools: the list of the driver's memory pools from which it serves the program itself, for questions about what they keep idle.
//
// A pool that is about to be destroyed is taken out first, which waits for threads that are asking about it: no handle reaches the driver after its
// end. The device's own pool is not listed; it is found by the device.
// Thread rule: thread-safe; called without the device's lock, and holds no lock while the driver works. Source: CUDA Driver API 13.0, Stream Ordered
// Memory Allocator.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <vector>

#include "pool/core/clock.hpp"
#include "pool/core/mutex.hpp"
#include "pool/core/thread_annotations.hpp"
#include "pool/driver/driver_api.hpp"

namespace cupool::device {

/// What pools have reserved and do not use, in bytes.
struct PoolIdle {
  std::uint64_t bytes = 0;
  std::uint64_t kept_bytes = 0;        ///< the part that stays when the program synchronises, below CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
  std::uint64_t named_kept_bytes = 0;  ///< the part of kept_bytes in the pool that was named
  bool counts_requested = false;       ///< the pools count requested sizes: their used bytes are no multiple of the rounding
};

class DriverPools {
 public:
  /// The program has made a pool whose memory is on `device`. Where host memory is out it is not listed.
  void add(CUmemoryPool handle, int device);
  /// Takes the pool out; waits on `clock` while other threads are in the driver with it.
  void remove(CUmemoryPool handle, Clock& clock);

  /// `also_default`: the device's own pool too. `named` (may be null) is the pool that PoolIdle::named_kept_bytes is about.
  PoolIdle ask(const Driver& driver, int device, bool also_default, CUmemoryPool named = nullptr);
  /// Gives idle memory back to the device, pool by pool, until `wanted_bytes` are reached; returns the bytes that went. Waits for nothing: what GPU
  /// work may still touch stays.
  std::uint64_t trim(const Driver& driver, int device, bool also_default, std::uint64_t wanted_bytes);

 private:
  struct Known {
    CUmemoryPool handle = nullptr;
    int device = 0;
    std::uint64_t number = 0;  ///< ascending in the order of add()
    std::uint32_t pins = 0;    ///< threads that are in the driver with this pool
    bool is_ending = false;
  };
  template <class Visit> void for_each(const Driver& driver, int device, bool also_default, Visit&& visit) CUPOOL_EXCLUDES(mutex_);
  CUmemoryPool pin_after(std::uint64_t* number, int device) CUPOOL_EXCLUDES(mutex_);
  void unpin(std::uint64_t number) CUPOOL_EXCLUDES(mutex_);

  Mutex mutex_;                                         ///< a leaf: no other lock is taken under it
  std::vector<Known> pools_ CUPOOL_GUARDED_BY(mutex_);  ///< ordered by number
  std::uint64_t added_ CUPOOL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cupool::device
