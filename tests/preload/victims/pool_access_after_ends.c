// The end of one context of a device takes nothing from another one there: a peer goes on reaching its plain blocks, whatever the program does with the
// access of the device's memory pool.
//! env CUSIM_DEVICES=2
//! check c["live_blocks"]["current"] == 0 or report["devices"][1]["counters"]["live_blocks"]["current"] == 0
//! case default
//! case segments
//! env CUPOOL_BACKING=segments
//! case async
//! env CUPOOL_POLICY=async
#include "cusim.h"
#include "victim.h"

int main(void) {
  CUcontext home = enter_device(1), peer = NULL, other = NULL;
  CUdeviceptr block = 0;
  CUmemoryPool pool;
  CUmemAccessDesc access = {0};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 0;
  MUST(cuMemAlloc(&block, MIB));
  MUST(cuMemsetD8(block, 5, MIB));
  MUST(cuCtxSynchronize());
  MUST(cuDevicePrimaryCtxRetain(&peer, 0));
  MUST(cuCtxSetCurrent(peer));
  MUST(cuCtxEnablePeerAccess(home, 0));
  for (int round = 0; round < 2; ++round) {
    MUST(cuCtxCreate_v2(&other, 0, 1));
    MUST(cuCtxDestroy(other));
    MUST(cuCtxSetCurrent(peer));
    MUST(cuDeviceGetDefaultMemPool(&pool, 1));
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    SAY(cuMemPoolSetAccess(pool, &access, 1));
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    SAY(cuMemPoolSetAccess(pool, &access, 1));
    SAY(cusim_launch_fill(0, block, MIB, 9 + round, 1000));
    SAY(cuCtxSynchronize());
    unsigned char byte = 0;
    SAY(cuMemcpyDtoH(&byte, block + 5, 1));
    printf("byte %d\n", byte);
  }
  MUST(cuCtxSetCurrent(home));
  SAY(cuMemFree(block));
  return 0;
}
