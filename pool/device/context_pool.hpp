// ContextPool: what one context of one device holds of the pool. A `cuMemAlloc` region dies with its context, so each
// context has allocators of its own; counters and limit are the device's.
//
// After cuCtxDestroy it may go on as an orphan: without a context, but with live blocks of memory pools, which are no context's (CUDA Driver API
// 13.0, cuCtxDestroy). Never freed while the PoolSet lives (threads cache the address); a dead one is used again for the device's next context.
// Thread rule: `lock` members under the device's lock, `registry` members under ContextRegistry's.
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
  std::unique_ptr<DeviceAllocator> pooled;        ///< null under `platform`
  std::uint32_t releasing_abandoned = 0;          ///< threads in pooled->release_abandoned()
  NativeBlocks natives;                           ///< blocks that are allocations of their own
  StreamLanes streams;                            ///< of `pooled`
  std::unique_ptr<KeptBlocks> kept;               ///< of `pooled`; null until a thread keeps blocks
  std::atomic<CUstream> release_stream{nullptr};  ///< private and idle: regions go back in its order
  std::uint64_t late_given_bytes = 0;             ///< Σ of those that the device had not got to when they had been waited for
  std::uint64_t late_arrived_bytes = 0;           ///< of late_given_bytes, what it has got to since
  std::atomic<bool> can_outlive{false};           ///< blocks of memory pools in `pooled` stay when the context is destroyed; written under the lock
  /// Its context was destroyed and blocks of memory pools stayed: nothing else uses it until they are freed
  bool is_orphan = false;
  bool must_empty = false;   ///< an orphan has free memory that may go back
  bool is_emptying = false;  ///< … and a thread gives it back, or is in the driver with it for another reason: it stays

  /// Has anything that figures and reports tell of.
  bool is_in_use() const { return context != nullptr || is_orphan; }

  // under the registry's lock
  struct Registered {
    CUcontext context = nullptr;
    std::uint64_t life = 0;
    std::uint32_t pins = 0;
    bool ending = false;
    std::vector<CUevent> idle_events;
  } registered;
};

using ContextPools = std::vector<std::unique_ptr<ContextPool>>;  ///< of one device

}  // namespace cupool::device
