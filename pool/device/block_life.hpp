// BlockLife, PoolBlocks: which of a context's blocks outlive it.
//
// Memory of memory pools (cuMemAllocAsync, cuMemAllocFromPoolAsync) belongs to no context, so cuCtxDestroy leaves it (CUDA Driver API 13.0,
// cuCtxDestroy). What cuMemAlloc gave goes with its context. Plain values.
#pragma once

#include <cstdint>

namespace cupool {

/// How long a stream-ordered allocation must be able to live.
enum class BlockLife : std::uint8_t {
  context,  ///< as long as its context: that is a primary one, whose end takes all of the device's allocations along
  pool,     ///< longer than its context, which cuCtxDestroy may end
};

/// What becomes of the live blocks of memory pools when their context ends.
enum class PoolBlocks : std::uint8_t {
  stay,  ///< cuCtxDestroy
  /// The reset or the last release of a primary context, which "destroys all allocations of the device in the process" (cuDevicePrimaryCtxReset). An
  /// H100 (driver 580) leaves them; ours go, so that memory which a program forgot before cudaDeviceReset is not lost to it.
  go,
};

}  // namespace cupool
