// Memory enough, but beside live blocks in every page: the cause says so, how much is stranded, and which small blocks hold it.
//! ooms 1
//! env CUSIM_MEMORY=64MiB
//! env CUPOOL_BACKING=pages
//! native skip
//! stderr cupool\[<pid>\]: out of memory on GPU 0.*
//! stderr \s+cause +external_fragmentation: enough is free but in pages that hold something else: what can move is short by 6.50 MiB
//! stderr* \s+(holds|elsewhere|try|report|where small blocks) .*
//! check ooms[0]["ooms"][0]["cause"] == "external_fragmentation"
//! check ooms[0]["ooms"][0]["evidence"]["can_remap"] and ooms[0]["ooms"][0]["evidence"]["stranded_bytes"] == ooms[0]["ooms"][0]["evidence"]["pool_free_bytes"] >= 48 << 20
//! check not any("preallocate" in one["message"] for one in ooms[0]["ooms"][0]["suggestions"])
//! check ooms[0]["devices"][0]["pinned_by"][0]["handles"] == 1 and ooms[0]["devices"][0]["pinned_by"][0]["bytes"] == 1 << 19
//! check ooms[0]["devices"][0]["pages"]["tiers"][0]["stranded_bytes"] == 48 << 20
#include "victim.h"

int main(void) {
  enter_device(0);
  static CUdeviceptr large[32];
  CUdeviceptr address = 0;
  for (int i = 0; i < 32; ++i) {
    large[i] = allocate(3 * MIB / 2);
    allocate(MIB / 2);
  }
  for (int i = 0; i < 32; ++i) MUST(cuMemFree(large[i]));
  MUST(cuCtxSynchronize());
  SAY(cuMemAlloc(&address, 8 * MIB));
  SAY(cuMemAlloc(&address, MIB));
  return 0;
}
