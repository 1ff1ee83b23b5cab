// A block is freed while a kernel that uses it is still pending, and memory is asked for again at once: nobody's data may change.
// Natively the free waits for the GPU; here the block must not be handed out before the kernel has completed.
//! check c["allocations"] == 129 and c["live_bytes"]["current"] == 0
//! case deferred
//! case sync
//! env CUPOOL_FREE=sync
//! case pressed
//! env CUSIM_MEMORY=64MiB
#include "cusim.h"
#include "victim.h"

int main(void) {
  enter_device(0);
  CUstream other;
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  CUdeviceptr old = allocate(MIB);
  for (int i = 0; i < 128; ++i) {
    MUST(cusim_launch_fill(other, old, MIB, 0xee, 1000000));  // writes the old block when it completes
    MUST(cuMemFree(old));
    CUdeviceptr fresh = allocate(MIB);
    MUST(cuMemsetD8Async(fresh, (unsigned char)i, MIB, NULL));
    MUST(cuStreamSynchronize(NULL));
    cusim_advance_ns(2000000);  // the late kernel lands now
    MUST(cusim_launch_check(NULL, fresh, MIB, (unsigned char)i, 10));
    MUST(cuStreamSynchronize(NULL));
    old = fresh;
  }
  MUST(cuMemFree(old));
  MUST(cuCtxSynchronize());
  printf("mismatched %d\n", (int)cusim_mismatched_bytes());
  return cusim_mismatched_bytes() != 0;
}
