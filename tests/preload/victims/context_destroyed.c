// A context is destroyed with blocks in it: they are gone with it, a free of them is refused, a new context starts clean.
//! misuse
//! check c["allocations"] == 3 and c["live_blocks"]["current"] == 1
//! check c["live_bytes"]["current"] == 4 * MiB
#include "victim.h"

int main(void) {
  enter_device(0);
  CUcontext first, second;
  CUdevice device = 0;
  MUST(create_context(&first, 0, device));
  CUdeviceptr lost = allocate(64 * MIB);
  allocate(MIB);
  SAY(cuCtxDestroy(first));
  MUST(create_context(&second, 0, device));
  SAY(cuMemFree(lost));
  CUdeviceptr block = allocate(4 * MIB);
  MUST(cuMemsetD8(block, 1, 4 * MIB));
  MUST(cuCtxSynchronize());
  return 0;
}
