// Frees that a driver refuses: unknown, twice, in the middle, null. Same codes as natively; no block is harmed.
//! misuse
//! check c["frees"] == 1 and c["live_blocks"]["current"] == 1
//! check c["live_bytes"]["current"] == MiB
#include "victim.h"

int main(void) {
  enter_device(0);
  CUdeviceptr kept = allocate(MIB);
  CUdeviceptr twice = allocate(MIB);
  int on_stack = 0;
  SAY(cuMemFree(0));
  SAY(cuMemFree((CUdeviceptr)0x1234));
  SAY(cuMemFree((CUdeviceptr)(uintptr_t)&on_stack));
  SAY(cuMemFree(kept + 512));
  SAY(cuMemFree(kept + MIB - 1));
  SAY(cuMemFree(twice));
  SAY(cuMemFree(twice));
  SAY(cuMemFree(~(CUdeviceptr)0));
  SAY(cuMemFreeAsync((CUdeviceptr)0x1234, NULL));
  SAY(cuMemFreeHost((void*)(uintptr_t)kept));
  MUST(cuMemsetD8(kept, 1, MIB));
  return 0;
}
