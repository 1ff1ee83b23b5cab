// A driver that opens no mapped memory: what the context asks for is the driver's own from then on, in stream order as well. A block that was freed on a stream is that stream's
// again at once, whatever runs elsewhere, as natively.
//! env CUPOOL_BACKING=pages
//! env CUSIM_FAIL=cuMemSetAccess:1:999:1000000
//! native same
//! stderr cupool\[<pid>\]: warning: GPU 0: the driver does not open mapped memory .*
//! env CUSIM_MEMORY=256MiB
#include "cusim.h"
#include "victim.h"

int main(void) {
  enter_device(0);
  CUstream busy = NULL, stream = NULL;
  volatile uint32_t flag = 0;
  MUST(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 20; ++i) MUST(cuMemFree(allocate(MIB)));
  MUST(cuCtxSynchronize());
  MUST(cusim_launch_wait_host(busy, &flag));
  for (int i = 0; i < 3; ++i) {
    CUdeviceptr block = 0;
    printf("%d\n", cuMemAllocAsync(&block, 200 * MIB, stream));
    MUST(cuMemFreeAsync(block, stream));
  }
  flag = 1;
  MUST(cuCtxSynchronize());
  return 0;
}
