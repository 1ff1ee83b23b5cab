// What a memory pool that the driver serves keeps idle, because the program gave it a release threshold, is held: it counts against the limit, stands in the ledger, is no free memory
// of cuMemGetInfo, serves that pool's next request whatever runs, and goes back before anything else is refused for it.
//! env CUSIM_MEMORY=2GiB
//! env CUPOOL_LIMIT=700MiB
//! native skip
//! check c["failed_allocations"] == 0 and "most used: 600 MiB" in out and "again: 0" in out and "plain: 0" in out
//! check d["outside"]["mempools"] == 0 and d["ledger"]["outside_mempools"] == 0 and calls("cuMemPoolTrimTo") == 1
//! case platform
//! env CUPOOL_POLICY=platform
//! args default
//! case of_its_own
//! env CUPOOL_BACKING=pages
//! args own
//! case of_its_own_on_segments
//! env CUPOOL_BACKING=segments
//! args own
//! case of_its_own_under_async
//! env CUPOOL_POLICY=async
//! args own
//! case context_of_its_own_on_segments
//! env CUPOOL_BACKING=segments
//! args default made
#include "cusim.h"
#include "victim.h"

static uint64_t most_bytes;
static void look(void) {
  if (cusim_used_bytes(0) > most_bytes) most_bytes = cusim_used_bytes(0);
}

int main(int argc, char** argv) {
  CUcontext made;
  CUmemoryPool pool;
  CUstream stream;
  CUdeviceptr block, plain;
  size_t free_bytes = 0, total_bytes = 0;
  cuuint64_t threshold = ~(cuuint64_t)0;
  enter_device(0);
  if (argc > 2) MUST(create_context(&made, 0, 0));
  if (strcmp(argv[1], "own") == 0) {
    CUmemPoolProps properties;
    memset(&properties, 0, sizeof properties);
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.maxSize = 1500 * MIB;
    MUST(cuMemPoolCreate(&pool, &properties));
  } else {
    MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  }
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  MUST(cuMemAllocFromPoolAsync(&block, 600 * MIB, pool, stream));
  MUST(cusim_launch_fill(stream, block, MIB, 1, 50000000));
  MUST(cuMemFreeAsync(block, stream));
  printf("again: %d\n", (int)cuMemAllocFromPoolAsync(&block, 600 * MIB, pool, stream));  // the kernel runs
  look();
  MUST(cuMemFreeAsync(block, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemGetInfo(&free_bytes, &total_bytes));
  printf("free: %zu MiB\n", free_bytes / MIB);
  printf("plain: %d\n", (int)cuMemAlloc(&plain, 600 * MIB));
  look();
  printf("most used: %llu MiB\n", (unsigned long long)(most_bytes / MIB));
  return free_bytes != 100 * MIB;
}
