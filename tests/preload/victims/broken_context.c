// A sticky error (an illegal access): every later call returns it as itself, none turns it into out-of-memory.
//! misuse
//! native skip
//! check not ooms and "out of memory" not in err and ": 2\n" not in out
#include "cusim.h"
#include "victim.h"

int main(void) {
  CUcontext context = enter_device(0);
  CUdeviceptr address = 0;
  CUdeviceptr block = allocate(64 * MIB);
  cusim_break_context(context, CUDA_ERROR_ILLEGAL_ADDRESS);
  say_code("synchronize", cuCtxSynchronize());
  cuMemFree(block);
  for (int i = 0; i < 80; ++i) cuMemFree(address), cuMemAlloc(&address, 100 * MIB);
  say_code("allocate", cuMemAlloc(&address, 7 * GIB));
  return 0;
}
