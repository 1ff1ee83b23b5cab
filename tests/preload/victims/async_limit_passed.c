// Stream-ordered calls fill the driver's pool, which grows in steps, to the limit. What is freed there serves plain calls at once: neither the next step, which would
// pass the limit, nor idle memory in the way is a reason to refuse what fits.
//! env CUPOOL_POLICY=async
//! check c["failed_allocations"] == 0
//! case small_steps
//! env CUPOOL_LIMIT=62MiB
//! case steps_of_an_h100
//! env CUPOOL_LIMIT=70MiB
//! env CUSIM_POOL_STEP=32MiB
#include "victim.h"

enum { kBlocks = 30 };

int main(void) {
  enter_device(0);
  CUstream stream;
  CUdeviceptr blocks[kBlocks], last, plain;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < kBlocks; ++i) MUST(cuMemAllocAsync(&blocks[i], 2 * MIB, stream));
  MUST(cuMemAllocAsync(&last, 512 * KIB, stream));
  for (int i = 7; i <= 15; i += 4) MUST(cuMemFreeAsync(blocks[i], stream));
  MUST(cuStreamSynchronize(stream));
  for (int i = 0; i < 3; ++i) SAY(cuMemAlloc(&plain, 256 * KIB));
  return 0;
}
