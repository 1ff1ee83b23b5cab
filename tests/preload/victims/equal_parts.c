// All of the device in equal parts, after a small block that came and went, or beside one that stays: natively each has pages of its own.
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
//! case preallocated_beside_a_small_block
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_BACKING=pages
//! env CUSIM_MEMORY=16GiB
//! args kept
#include "victim.h"

static void take(int parts, size_t bytes, CUdeviceptr small) {
  CUdeviceptr blocks[64];
  int taken = 0;
  while (taken < parts && cuMemAlloc(&blocks[taken], bytes) == CUDA_SUCCESS) {
    ++taken;
    if (small != 0) MUST(cuMemFree(small));
    small = 0;
  }
  printf("%d of %d\n", taken, parts);
  while (taken > 0) MUST(cuMemFree(blocks[--taken]));
}

int main(int argc, char** argv) {
  enter_device(0);
  const char* const way = argc > 1 ? argv[1] : "";
  size_t free_bytes = 0, total_bytes = 0;
  if (strcmp(way, "kept") == 0) allocate(4096);
  MUST(cuMemGetInfo(&free_bytes, &total_bytes));
  for (int parts = 2; parts <= 64; parts *= 2) {
    CUdeviceptr small = 0;
    const size_t bytes = free_bytes / parts / (2 * MIB) * (2 * MIB);
    if (strcmp(way, "ordered") == 0) {
      MUST(cuMemAllocAsync(&small, MIB, NULL));
      MUST(cuMemFreeAsync(small, NULL));
    } else MUST(cuMemFree(allocate(MIB)));
    MUST(cuCtxSynchronize());
    take(parts, bytes, 0);
    if (free_bytes == total_bytes) take(parts, bytes, allocate(3 * MIB));
  }
  return 0;
}
