// Under async a reset may leave freed blocks in the driver's default pool, or take them along, and then their addresses are given out again: here to
// the program's own memory pool, by a stream of another device, before the device has a context again. That block stays the program's.
//! env CUSIM_DEVICES=2
//! case async
//! env CUPOOL_POLICY=async
//! case grow
#include "victim.h"

enum { kBytes = 7000 };

static CUcontext context_of(CUdevice device) {
  CUcontext context = NULL;
  MUST(create_context(&context, 0, device));
  return context;
}

int main(void) {
  CUcontext primary = NULL;
  MUST(cuInit(0));
  MUST(cuDevicePrimaryCtxRetain(&primary, 0));
  MUST(cuCtxSetCurrent(primary));
  CUdeviceptr block = 0;
  MUST(cuMemAlloc_v2(&block, 100));
  MUST(cuDevicePrimaryCtxReset_v2(0));

  CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemoryPool pool = NULL;
  MUST(cuMemPoolCreate(&pool, &properties));
  context_of(1);
  MUST(cuMemAllocFromPoolAsync(&block, kBytes, pool, NULL));
  MUST(cuCtxSynchronize());

  context_of(0);
  CUdeviceptr other = 0;
  MUST(cuMemAlloc_v2(&other, kBytes));
  MUST(cuMemsetD8_v2(block, 1, kBytes));
  MUST(cuMemsetD8_v2(other, 2, kBytes));
  unsigned char byte = 0;
  MUST(cuMemcpyDtoH_v2(&byte, block, 1));
  printf("%d\n", byte);
  MUST(cuMemFree_v2(block));
  MUST(cuMemFree_v2(other));
  return 0;
}
