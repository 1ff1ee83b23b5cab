// Blocks that are a driver call of their own take whole pieces of 2 MiB each. Where these are what is missing, the report says so, and what it names
// instead does: the same program under `grow` (and without CUPOOL_IPC=native) has its 900 blocks.
//! env CUSIM_MEMORY=1GiB
//! args 900
//! case platform
//! env CUPOOL_POLICY=platform
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0.*
//! stderr \s+cause .*
//! stderr* \s+\S.*
//! check ooms[0]["ooms"][0]["cause"] == "true_exhaustion" and ooms[0]["ooms"][0]["suggestions"][0]["rule_id"] == "native_rounding" and "CUPOOL_POLICY=grow" in err
//! check ooms[0]["ooms"][0]["evidence"]["native_rounding_bytes"] == 512 * (2 * MiB - 1100 * 1024) and "of that rounding up to 474.00 MiB" in err
//! case ipc_native
//! env CUPOOL_IPC=native
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0.*
//! stderr \s+cause .*
//! stderr* \s+\S.*
//! check ooms[0]["ooms"][0]["suggestions"][0]["rule_id"] == "native_rounding" and "CUPOOL_IPC=native" in err
//! case grow
//! native skip
//! env CUPOOL_POLICY=grow
//! check "900 blocks" in out
//! case held_by_others
//! args 300
//! native skip
//! env CUPOOL_POLICY=platform
//! env CUSIM_CONTEXT_BYTES=600MiB
//! ooms 1
//! stderr* .*
//! check ooms[0]["ooms"][0]["suggestions"][0]["rule_id"] == "native_rounding" and ooms[0]["ooms"][0]["suggestions"][1]["rule_id"] == "look_elsewhere"
#include "victim.h"

int main(int argc, char** argv) {
  const int most = argc > 1 ? atoi(argv[1]) : 0;
  int blocks = 0;
  CUdeviceptr block;
  enter_device(0);
  while (blocks < most && cuMemAlloc(&block, 1100 * KIB) == CUDA_SUCCESS) ++blocks;
  printf("%d blocks\n", blocks);
  return 0;
}
