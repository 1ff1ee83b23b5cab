// ContextPool: what one context of one device holds of the pool. A `cuMemAlloc` region dies with its context, so each
// context has allocators of its own; counters and limit are the device's.
//
// Never freed while the PoolSet lives (threads cache the address); a dead one is used again for the device's next context.
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
  CUcontext context = nullptr;               ///< null: unused
  bool serving = false;                      ///< false while the context is being ended
  std::unique_ptr<DeviceAllocator> pooled;   ///< null under `platform`
  std::uint32_t burials = 0;                 ///< threads in pooled->bury()
  NativeBlocks natives;                      ///< blocks that are allocations of their own
  StreamLanes streams;                       ///< of `pooled`
  std::unique_ptr<KeptBlocks> kept;          ///< of `pooled`; null until a thread keeps blocks
  std::atomic<CUstream> release_stream{nullptr};  ///< private and idle: regions go back in its order

  // under the registry's lock
  struct Registered {
    CUcontext context = nullptr;
    std::uint64_t life = 0;
    std::uint32_t pins = 0;
    bool ending = false;
    std::vector<CUevent> idle_events;
  } registered;
};

}  // namespace cupool::device
