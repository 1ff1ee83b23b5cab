// Host memory is out from the end of a green context on until its device has been reset: that the primary context ended is seen all the same, and
// what is freed in its next life waits behind events of that life.
//! misuse
//! env CUSIM_MEMORY=1GiB
//! check c["live_blocks"]["current"] == 0
#define _GNU_SOURCE
#include "host_memory.h"

#include "victim.h"

static uint64_t requests;

int main(void) {
  CUcontext primary = enter_device(0);
  watch_host_memory("libcupool", &requests);
  CUgreenCtx green = create_green();
  const CUdeviceptr lost = allocate(MIB);
  for (int i = 0; i < 100; ++i) MUST(cuMemFree(allocate(MIB))); /* an event or more */
  fail_host_memory(requests + 1, UINT32_MAX);
  MUST(cuGreenCtxDestroy(green));
  MUST(cuDevicePrimaryCtxReset(0));
  fail_host_memory(UINT64_MAX, 1);
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  for (int i = 0; i < 100; ++i) {
    const CUdeviceptr block = allocate(MIB);
    MUST(cuMemsetD8Async(block, 1, MIB, NULL));
    MUST(cuMemFree(block));
  }
  MUST(cuCtxSynchronize());
  SAY(cuMemFree(lost));
  return 0;
}
