// Stream-ordered calls follow the stream they name, not the current context: its device, its context, and no context at all.
//! env CUSIM_DEVICES=2
//! check all(each["counters"]["live_blocks"]["current"] == 0 for each in report["devices"])
//! case default
//! check [each["counters"]["allocations"] for each in report["devices"]] == [4, 2] and report["data_quality"]["unpooled_apis_seen"] == ["cuMemAllocAsync"]
//! case pages
//! env CUPOOL_BACKING=pages
//! check [each["counters"]["allocations"] for each in report["devices"]] == [4, 2] and report["data_quality"]["unpooled_apis_seen"] == []
#include "victim.h"

static void describe(const char* what, CUdeviceptr address) {
  int device = -1;
  CUcontext owner = NULL;
  size_t bytes = 0;
  CUdeviceptr base = 0;
  SAY(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address));
  SAY(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address));
  int range = cuMemGetAddressRange(&base, &bytes, address + 10);
  printf("%s: device %d, range %d, %d, %zu\n", what, device, range, base == address, bytes);
}

int main(void) {
  CUcontext here = enter_device(0), there, created;
  CUstream on_there, on_created;
  CUdeviceptr address = 0;
  MUST(cuDevicePrimaryCtxRetain(&there, 1));
  MUST(cuCtxPushCurrent(there));
  MUST(cuStreamCreate(&on_there, CU_STREAM_NON_BLOCKING));
  MUST(cuCtxPopCurrent(&there));
  MUST(create_context(&created, 0, 0));
  MUST(cuStreamCreate(&on_created, CU_STREAM_NON_BLOCKING));
  MUST(cuCtxPopCurrent(&created));
  MUST(cuCtxSetCurrent(here));
  SAY(cuMemAllocAsync(&address, MIB, on_there));
  describe("another device", address);
  SAY(cuMemsetD8Async(address, 1, MIB, on_there));
  SAY(cuMemFreeAsync(address, on_there));
  SAY(cuMemAllocAsync(&address, MIB, on_created));
  describe("another context", address);
  SAY(cuMemFreeAsync(address, NULL)); /* in a stream of another context than it came from */
  SAY(cuCtxSynchronize());
  MUST(cuCtxSetCurrent(NULL));
  SAY(cuMemAllocAsync(&address, MIB, on_created));
  SAY(cuMemFreeAsync(address, on_created));
  SAY(cuMemAllocAsync(&address, MIB, on_there));
  SAY(cuMemFreeAsync(address, on_there));
  SAY(cuMemAllocAsync(&address, MIB, NULL));
  SAY(cuMemAllocAsync(&address, MIB, CU_STREAM_PER_THREAD));
  MUST(cuCtxSetCurrent(created));
  SAY(cuMemAllocAsync(&address, MIB, on_created));
  SAY(cuCtxDestroy(created)); /* the memory stays */
  MUST(cuCtxSetCurrent(here));
  SAY(cuMemsetD8(address, 1, MIB));
  SAY(cuCtxSynchronize()); /* the free does not wait */
  SAY(cuMemFree(address));
  MUST(cuMemFree(allocate(MIB)));
  return 0;
}
