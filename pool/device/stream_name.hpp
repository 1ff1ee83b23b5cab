// StreamName: an unambiguous name for a stream. A handle is not enough: 0 and the special handles mean a stream of the caller's.
#pragma once

#include <cuda.h>

#include <cstdint>

namespace cupool {

struct StreamName {
  CUstream handle = nullptr;   ///< what a driver call takes; for a default stream CU_STREAM_LEGACY or CU_STREAM_PER_THREAD
  std::uint64_t identity = 0;  ///< never 0: the handle, or odd; unique in its context among living streams, and never again a later thread's
};

/// Is this one of the two default streams, by its special handle? Which one 0 means depends on the variant of the entry point, and is not decided
/// here.
inline bool is_default_stream(CUstream stream) { return stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD; }

/// Is the identity a handle, which may come again for another stream? Those of default streams are odd.
inline bool is_handle(std::uint64_t identity) { return identity != 0 && identity % 2 == 0; }

}  // namespace cupool
