// A device full of small blocks of two streams, all of which are freed, and the program waits for the context: what follows finds all of it in one piece.
//! native skip
//! env CUSIM_MEMORY=256MiB
//! check out.split() == ["128"] * 3 and ooms == []
//! case pages
//! env CUPOOL_BACKING=pages
//! case segments
//! env CUPOOL_BACKING=segments
#include "victim.h"

enum { kMost = 512, kWhole = 128 };
static const size_t kSmall = 700 << 10;

int main(void) {
  CUstream streams[2];
  CUdeviceptr blocks[kMost];
  enter_device(0);
  for (int i = 0; i < 2; ++i) MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  for (int round = 0; round < 3; ++round) {
    const int small = (int)(250 * MIB / kSmall);
    for (int i = 0; i < small; ++i) MUST(cuMemAllocAsync(&blocks[i], kSmall, streams[i % 2]));
    for (int step = 0; step < 7; ++step)
      for (int i = step; i < small; i += 7) MUST(cuMemFreeAsync(blocks[i], streams[i % 2]));
    MUST(cuCtxSynchronize());
    int large = 0;
    while (large < kWhole && cuMemAlloc(&blocks[large], 2 * MIB) == CUDA_SUCCESS) ++large;
    printf("%d\n", large);
    for (int i = 0; i < large; ++i) MUST(cuMemFree(blocks[i]));
    MUST(cuCtxSynchronize());
  }
  return 0;
}
