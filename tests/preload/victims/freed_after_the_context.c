// Blocks are freed after their context was destroyed, as global objects do that are torn down late: each such free is refused, and what the next context
// has is nobody else's, also where the driver's own pool has served both.
//! misuse
//! check all("not allocated" in s for s in sim["violations"]) and c["live_blocks"]["current"] == 0
//! case default
//! case segments
//! env CUPOOL_BACKING=segments
//! case platform
//! env CUPOOL_POLICY=platform
//! case async
//! env CUPOOL_POLICY=async
//! case async_under_a_limit
//! env CUPOOL_POLICY=async
//! env CUPOOL_LIMIT=256MiB
#include "cusim.h"
#include "victim.h"

enum { kBlocks = 8, kNext = 16 };

int main(void) {
  CUcontext first, second;
  CUdeviceptr lost[kBlocks], blocks[kNext];
  CUstream stream;
  MUST(cuInit(0));
  MUST(create_context(&first, 0, 0));
  for (int i = 0; i < kBlocks; ++i) lost[i] = allocate(4 * MIB);
  MUST(cuCtxDestroy(first));
  for (int i = 0; i < kBlocks / 2; ++i) SAY(cuMemFree(lost[i]));
  MUST(create_context(&second, 0, 0));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  SAY(cuMemFree(lost[kBlocks / 2])); /* before the first allocation here */
  for (int i = 0; i < kNext; ++i) {
    if (i % 2 == 0) blocks[i] = allocate(4 * MIB);
    else MUST(cuMemAllocAsync(&blocks[i], 4 * MIB, stream));
    MUST(cusim_launch_fill(stream, blocks[i], 4 * MIB, (unsigned char)(i + 1), 1000));
    for (int k = 0; k < i; ++k)
      if (blocks[k] == blocks[i]) printf("served twice: %d and %d\n", k, i);
  }
  for (int i = 0; i < kNext; ++i) MUST(cusim_launch_check(stream, blocks[i], 4 * MIB, (unsigned char)(i + 1), 1000));
  SAY(cuCtxSynchronize());
  for (int i = 0; i < kNext; ++i) MUST(cuMemFree(blocks[i]));
  MUST(cuCtxSynchronize());
  return 0;
}
