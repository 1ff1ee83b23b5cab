// SYNC_MEMOPS on blocks that lie side by side, and on a large one: as natively each block has its own, whatever the memory behind it.
//! check c["live_blocks"]["current"] == 0 and c["live_bytes"]["current"] == 0 and c["allocations"] == 5 and c["frees"] == 5
//! case default
//! case async
//! env CUPOOL_POLICY=async
//! case platform
//! env CUPOOL_POLICY=platform
//! case segments
//! env CUPOOL_BACKING=segments
//! case pages
//! env CUPOOL_BACKING=pages
//! case pages_of_8_mib
//! env CUPOOL_BACKING=pages
//! env CUSIM_GRANULARITY=8MiB
#include "victim.h"

static void tell(const char* what, const CUdeviceptr* blocks) {
  printf("%s:", what);
  for (int i = 0; i < 3; ++i) {
    unsigned on = 9;
    MUST(cuPointerGetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, blocks[i] + 100));
    printf(" %u", on);
  }
  printf("\n");
}

int main(void) {
  enter_device(0);
  CUdeviceptr blocks[3] = {allocate(4 * KIB), allocate(40 * MIB), allocate(4 * KIB)};
  const unsigned on = 1, off = 0;
  tell("at first", blocks);
  SAY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, blocks[1] + 30 * MIB));
  tell("the large one", blocks);
  SAY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, blocks[0]));
  SAY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, blocks[0]));
  tell("and a small one", blocks);
  SAY(cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, blocks[1]));
  tell("off again", blocks);
  SAY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, blocks[1]));
  MUST(cuMemFree(blocks[1]));
  blocks[1] = allocate(40 * MIB);
  tell("a new one", blocks);
  MUST(cuMemFree(blocks[0]));
  blocks[0] = allocate(4 * KIB);
  tell("all new", blocks);
  SAY(cuPointerSetAttribute(NULL, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, blocks[1]));
  SAY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_BUFFER_ID, blocks[1]));
  for (int i = 0; i < 3; ++i) SAY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, blocks[i]));
  for (int i = 0; i < 3; ++i) MUST(cuMemFree(blocks[i]));
  SAY(cuDevicePrimaryCtxRelease(0)); /* what was freed goes with the context, counted once */
  return 0;
}
