// Under CUPOOL_POLICY=platform memory goes back to the driver also when it is freed in stream order: all of it once the work is over.
//! env CUPOOL_POLICY=platform
//! check calls("cuMemFreeAsync") == 200 and c["deferred_bytes"]["current"] == 0 and c["frees"] == 200
//! check len(d["blocks"]) <= 10
#include "victim.h"

int main(void) {
  enter_device(0);
  CUstream stream;
  size_t free_bytes = 0, total = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 200; ++i) {
    CUdeviceptr address = allocate(40 * MIB); /* together as much as the device has */
    MUST(cuMemFreeAsync(address, stream));
    MUST(cuStreamSynchronize(stream));
  }
  MUST(cuMemGetInfo(&free_bytes, &total));
  printf("most is free: %d\n", free_bytes > total / 2);
  return 0;
}
