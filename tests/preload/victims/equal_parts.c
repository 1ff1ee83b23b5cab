// All of the device in equal parts, after a small block that came and went: natively each has pages of its own.
//! native same
//! case pages
//! env CUPOOL_BACKING=pages
//! env CUSIM_MEMORY=256MiB
//! case pages_in_order
//! env CUPOOL_BACKING=pages
//! env CUSIM_MEMORY=256MiB
//! args ordered
//! case preallocated
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_BACKING=pages
//! env CUSIM_MEMORY=256MiB
#include "victim.h"

static void take(int parts, CUdeviceptr small) {
  size_t free_bytes = 0, total_bytes = 0;
  CUdeviceptr blocks[64];
  int taken = 0;
  MUST(cuMemGetInfo(&free_bytes, &total_bytes));
  while (taken < parts && cuMemAlloc(&blocks[taken], total_bytes / parts) == CUDA_SUCCESS) {
    ++taken;
    if (small != 0) MUST(cuMemFree(small));
    small = 0;
  }
  printf("%d of %d\n", taken, parts);
  while (taken > 0) MUST(cuMemFree(blocks[--taken]));
}

int main(int argc, char** argv) {
  enter_device(0);
  for (int parts = 2; parts <= 64; parts *= 2) {
    CUdeviceptr small = 0;
    if (argc > 1 && strcmp(argv[1], "ordered") == 0) {
      MUST(cuMemAllocAsync(&small, MIB, NULL));
      MUST(cuMemFreeAsync(small, NULL));
    } else MUST(cuMemFree(allocate(MIB)));
    MUST(cuCtxSynchronize());
    take(parts, 0);
    take(parts, allocate(3 * MIB));
  }
  return 0;
}
