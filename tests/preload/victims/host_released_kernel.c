// A kernel waits for the host, which releases it only after its next allocations: an allocation that waited for the GPU
// without bound would hang. (Natively the free of an unrelated block would hang: so there is no native run.)
//! native skip
//! check c["allocations"] == 101
#include "cusim.h"
#include "victim.h"

int main(void) {
  enter_device(0);
  CUstream stream;
  static volatile uint32_t flag;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr block = allocate(4 * MIB);
  MUST(cusim_launch_wait_host(stream, &flag));
  for (int i = 0; i < 100; ++i) {
    MUST(cuMemFree(block));
    block = allocate(4 * MIB);
  }
  flag = 1;
  MUST(cuCtxSynchronize());
  MUST(cuMemFree(block));
  return 0;
}
