// The kernel has no more mappings for the process (vm.max_map_count): the driver maps nothing more for the pool, and has memory. The driver's own calls serve, of many threads as of one: none
// waits for what another one tries in vain.
//! native same
//! env CUPOOL_BACKING=pages
//! env CUSIM_MEMORY=2GiB
//! env CUSIM_CLOCK=real
//! seconds 30
//! check report["devices"][0]["counters"]["native_fallbacks"] == 1200
//! check report["devices"][0]["counters"]["driver_calls"]["cuMemCreate"] < 12000
//! case map
//! env CUSIM_FAIL=cuMemMap:1:2:1000000
//! case access
//! env CUSIM_FAIL=cuMemSetAccess:1:2:1000000
#include <pthread.h>

#include "victim.h"

static CUcontext shared;

static void* work(void* seed) {
  MUST(cuCtxSetCurrent(shared));
  CUdeviceptr blocks[4] = {0, 0, 0, 0};
  for (size_t i = 0; i < 300; ++i) {
    CUdeviceptr* block = &blocks[i % 4];
    if (*block != 0) MUST(cuMemFree(*block));
    *block = allocate(MIB + (size_t)seed * 4096 + i * 512);
  }
  for (int i = 0; i < 4; ++i) MUST(cuMemFree(blocks[i]));
  return NULL;
}

int main(void) {
  shared = enter_device(0);
  pthread_t threads[4];
  for (size_t i = 0; i < 4; ++i)
    if (pthread_create(&threads[i], NULL, work, (void*)i) != 0) return 1;
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], NULL);
  puts("served");
  return 0;
}
