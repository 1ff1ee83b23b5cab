// What a memory pool says that it reserves is never free, for programs reckon with both: free + reserved - used is what ComfyUI can load, and
// total - free - reserved what vLLM leaves to others.
//! report present
//! case grow
//! case segments
//! env CUPOOL_BACKING=segments
//! case async
//! env CUPOOL_POLICY=async
//! case preallocated
//! env CUPOOL_POLICY=preallocate
//! case preallocated_on_segments
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_BACKING=segments
//! case platform
//! env CUPOOL_POLICY=platform
#include "victim.h"

static size_t before_bytes;

static void reckon(const char* when, CUmemoryPool pool) {
  size_t free_bytes = 0, total_bytes = 0;
  cuuint64_t reserved = 0, used = 0;
  MUST(cuMemGetInfo(&free_bytes, &total_bytes));
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved));
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
  const size_t taken_bytes = before_bytes - free_bytes;  // by this process, since the beginning
  printf("%s: used %llu MiB, could load %zu MiB, others have %lld MiB\n", when, (unsigned long long)used / MIB, (free_bytes + reserved - used) / MIB,
         ((long long)taken_bytes - (long long)reserved) / (long long)MIB);
}

int main(void) {
  enter_device(0);
  CUmemoryPool pool;
  CUstream stream;
  CUdeviceptr model, step, plain = allocate(300 * MIB);
  size_t total_bytes = 0;
  cuuint64_t threshold = ~(cuuint64_t)0;
  MUST(cuMemFree(plain));
  MUST(cuMemGetInfo(&before_bytes, &total_bytes));
  plain = allocate(300 * MIB);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  MUST(cuMemAllocAsync(&model, 1000 * MIB, stream));
  MUST(cuMemAllocAsync(&step, 2000 * MIB, stream));
  reckon("in a step", pool);
  MUST(cuMemFreeAsync(step, stream));
  MUST(cuStreamSynchronize(stream));
  reckon("after it", pool);
  MUST(cuMemPoolTrimTo(pool, 0));
  reckon("trimmed", pool);
  MUST(cuMemFreeAsync(model, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemFree(plain));
  reckon("at the end", pool);
  return 0;
}
