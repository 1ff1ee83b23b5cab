// Memory enough, but in pieces that cannot be joined: the cause says so, and what pins it.
//! ooms 1
//! env CUSIM_MEMORY=1GiB
//! env CUPOOL_PREALLOCATE=1GiB
//! env CUPOOL_BACKING=segments
//! native skip
//! stderr cupool\[<pid>\]: out of memory on GPU 0.*
//! stderr \s+cause +external_fragmentation.*
//! stderr* \s+(holds|elsewhere|try|report|blocks that live on) .*
//! check ooms[0]["ooms"][0]["cause"] == "external_fragmentation"
//! check ooms[0]["devices"][0]["fragmentation"]["external"] > 0.5 and ooms[0]["devices"][0]["pinned_by"]
#include "victim.h"

static int by_address(const void* a, const void* b) {
  const CUdeviceptr left = *(const CUdeviceptr*)a, right = *(const CUdeviceptr*)b;
  return left < right ? -1 : left > right;
}

int main(void) {
  enter_device(0);
  static CUdeviceptr blocks[62];
  CUdeviceptr address = 0;
  for (int i = 0; i < 62; ++i) blocks[i] = allocate(16 * MIB);
  qsort(blocks, 62, sizeof blocks[0], by_address);
  for (int i = 0; i < 62; i += 2) MUST(cuMemFree(blocks[i]));
  MUST(cuCtxSynchronize());
  SAY(cuMemAlloc(&address, 100 * MIB));
  SAY(cuMemAlloc(&address, 16 * MIB));
  return 0;
}
