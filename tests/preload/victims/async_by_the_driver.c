// CUPOOL_POLICY=async where the driver's pool cannot serve (the whole context waits for an event): each block that cuMemAlloc gave instead is a native fallback.
//! env CUPOOL_POLICY=async
//! native skip
//! check c["native_fallbacks"] == 10 == int(out.split()[0])
#include "cusim.h"
#include "victim.h"

int main(void) {
  const CUcontext context = enter_device(0);
  CUstream stream = NULL;
  CUevent event = NULL;
  volatile uint32_t flag = 0;
  allocate(4096);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, 0));
  MUST(cusim_launch_wait_host(stream, &flag));
  MUST(cuEventRecord(event, stream));
  MUST(cuCtxWaitEvent(context, event));
  const uint64_t before = cusim_calls("cuMemAlloc_v2");
  for (int i = 0; i < 10; ++i) allocate(4 * MIB);
  printf("%llu\n", (unsigned long long)(cusim_calls("cuMemAlloc_v2") - before));
  flag = 1;
  MUST(cuCtxSynchronize());
  return 0;
}
