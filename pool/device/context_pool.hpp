// ContextPool: what one context of one device holds of the pool. (Variables call it `home`: the pool in which a block lies.)
//
// A cuMemAlloc region dies with its context, so each context has allocators of its own; counters and limit are the device's. After cuCtxDestroy a
// ContextPool may go on as an orphan: without a context, but with live blocks of memory pools, which belong to no context (CUDA Driver API 13.0,
// cuCtxDestroy). It is never freed while the PoolSet lives, because threads cache its address; one without a context serves the device's next one.
// Thread rule: as the two groups of members say.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "pool/device/device_allocator.hpp"
#include "pool/device/magazine.hpp"
#include "pool/device/native_blocks.hpp"
#include "pool/device/stream_lanes.hpp"

namespace cupool::device {

class DevicePool;

struct ContextPool {
  ContextPool(DevicePool& owning_pool, DeviceState& owning_device, std::unique_ptr<BlockSource> source)
      : pool(owning_pool), device(owning_device), natives(std::move(source)) {}

  DevicePool& pool;
  DeviceState& device;

  // under the device's lock
  CUcontext context = nullptr;                    ///< null: unused
  bool serving = false;                           ///< false while the context is being ended
  std::unique_ptr<DeviceAllocator> pooled;        ///< the heap; null under `platform` and `async`
  std::uint32_t releasing_abandoned = 0;          ///< how many threads are in pooled->release_abandoned()
  NativeBlocks natives;                           ///< blocks that are allocations of their own
  StreamLanes streams;                            ///< whose lanes are in `pooled`
  std::unique_ptr<KeptBlocks> kept;               ///< what magazines keep of `pooled`; null until a thread keeps blocks
  std::atomic<CUstream> release_stream{nullptr};  ///< private and idle: regions go back to the driver in its order (freeing_in_order.hpp)
  std::uint64_t late_given_bytes = 0;             ///< Σ regions that went back so and were not yet the device's when their wait ended,
  std::uint64_t late_arrived_bytes = 0;           ///< and of these, what has become the device's since
  std::atomic<bool> can_outlive{false};  ///< blocks of memory pools in `pooled` can stay when the context is destroyed; read without the lock
  bool is_orphan = false;                ///< its context was destroyed and blocks of memory pools stayed
  bool has_adopted = false;              ///< it was an orphan when its context came: some of its blocks may be older than that
  bool must_empty = false;               ///< an orphan: it has free memory that may go back
  bool is_emptying = false;  ///< an orphan: a thread gives that back, or is in the driver with it for another reason, so that it must stay

  /// Does it hold anything that figures and reports tell of?
  bool is_in_use() const { return context != nullptr || is_orphan; }

  // under the registry's lock
  struct Registered {
    CUcontext context = nullptr;
    std::uint64_t life = 0;            ///< the number of the context among those that this has served
    std::uint32_t pins = 0;            ///< how many threads may be in the driver with the context
    bool ending = false;               ///< a thread is ending the context
    std::vector<CUevent> idle_events;  ///< of the context, to be recorded again
  } registered;
};

using ContextPools = std::vector<std::unique_ptr<ContextPool>>;  ///< of one device

}  // namespace cupool::device
