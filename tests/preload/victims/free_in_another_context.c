// Regions are one context's: what another has free between its blocks is no use to this one, and the report says whose it is.
//! env CUSIM_MEMORY=1GiB
//! native skip
//! case on_segments
//! env CUPOOL_BACKING=segments
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! check "other_contexts" in [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]]
//! check ooms[0]["ooms"][0]["evidence"]["other_context_free_bytes"] >= 500 * MiB and "another context" in err
//! case on_pages
//! env CUPOOL_BACKING=pages
//! check "wanted: 0" in out
#include "victim.h"

enum { kBlocks = 240 };

int main(void) {
  static CUdeviceptr blocks[kBlocks];
  CUcontext first = NULL;
  CUdeviceptr block = 0;
  MUST(cuInit(0));
  MUST(create_context(&first, 0, 0));
  for (int i = 0; i < kBlocks; ++i) {
    blocks[i] = allocate(3 * MIB);
    allocate(64 * KIB);
  }
  for (int i = 0; i < kBlocks; ++i) MUST(cuMemFree(blocks[i]));
  MUST(cuCtxSynchronize());
  enter_device(0);
  printf("wanted: %d\n", cuMemAlloc(&block, 400 * MIB));
  return 0;
}
