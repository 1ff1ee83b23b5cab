// Before cuInit, before a context, and with none current any more: the driver's own answers.
//! check c["frees"] == 1 and c["live_blocks"]["current"] == 0
#include "victim.h"

static void ask(CUdeviceptr address) {
  CUdeviceptr out = 0, base = 0;
  size_t bytes = 0, total = 0;
  CUmemorytype type;
  SAY(cuMemAlloc(&out, MIB));
  SAY(cuMemAlloc(NULL, MIB));
  SAY(cuMemAlloc(&out, 0));
  SAY(cuMemFree(address));
  SAY(cuMemGetInfo(&bytes, &total));
  SAY(cuMemGetInfo(NULL, NULL));
  SAY(cuMemGetAddressRange(&base, &bytes, address));
  SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
}

int main(void) {
  ask(0x1234);
  MUST(cuInit(0));
  ask(0x1234);
  CUcontext context = enter_device(0);
  CUdeviceptr block = allocate(MIB);
  MUST(cuCtxSetCurrent(NULL));
  CUdeviceptr out = 0;
  SAY(cuMemAlloc(&out, MIB));
  SAY(cuMemFree(0x1234));
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemFree(block));
  return 0;
}
