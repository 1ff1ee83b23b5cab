// BlockLife, PoolBlocks: what of a context's blocks outlives it.
//
// Memory of pools (cuMemAllocAsync, cuMemAllocFromPoolAsync) is no context's: cuCtxDestroy leaves it (CUDA Driver API 13.0, cuCtxDestroy). What is
// allocated by cuMemAlloc goes with its context.
#pragma once

#include <cstdint>

namespace cupool {

/// Of one stream-ordered allocation.
enum class BlockLife : std::uint8_t {
  context,  ///< only with all of the device's may its context end: the primary's
  pool,     ///< cuCtxDestroy may end its context, and it stays
};

/// Of the blocks of memory pools at the end of their context.
enum class PoolBlocks : std::uint8_t {
  stay,  ///< cuCtxDestroy
  /// The reset or the last release of a primary context: it "destroys all allocations of the device in the process" (cuDevicePrimaryCtxReset). An
  /// H100 (driver 580) leaves them; ours go, so that what a program forgets before cudaDeviceReset is not lost to it.
  go,
};

}  // namespace cupool
