// Two devices: each has its pool and its counters; a block may be freed while the other device's context is current.
//! env CUSIM_DEVICES=2
//! check [x["counters"]["allocations"] for x in report["devices"]] == [2, 1]
//! check [x["counters"]["frees"] for x in report["devices"]] == [2, 1]
//! check [x["ordinal"] for x in report["devices"]] == [0, 1] and report["devices"][0]["uuid"] != report["devices"][1]["uuid"]
//! case default
//! case reversed_visibility
//! env CUDA_VISIBLE_DEVICES=1,0
#include "victim.h"

int main(void) {
  CUcontext zero = enter_device(0);
  CUdeviceptr a = allocate(MIB), b = allocate(MIB);
  CUcontext one = enter_device(1);
  CUdeviceptr c = allocate(2 * MIB);
  int ordinal = -1;
  MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, a));
  printf("a on %d\n", ordinal);
  MUST(cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, c));
  printf("c on %d\n", ordinal);
  SAY(cuMemFree(a));
  MUST(cuCtxSetCurrent(zero));
  SAY(cuMemFree(c));
  SAY(cuMemFree(b));
  MUST(cuCtxSetCurrent(one));
  SAY(cuCtxSynchronize());
  return 0;
}
