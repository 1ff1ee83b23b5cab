// Before cuInit, before a context, and with none current any more: the driver's own answers.
//! check c["frees"] == 2 and "cuMemFree(address): 0" in out and c["live_blocks"]["current"] == 0
//! misuse
//! check len(sim["violations"]) == 2 and all("of an address that is not allocated" in s for s in sim["violations"])
#include "victim.h"

/* Everything else that takes, gives or asks about memory. */
static void ask_others(CUdeviceptr address) {
  CUdeviceptr out = 0;
  size_t pitch = 0;
  void* host = NULL;
  CUarray array = NULL;
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUipcMemHandle handle = {{0}};
  CUDA_ARRAY_DESCRIPTOR shape = {16, 16, CU_AD_FORMAT_FLOAT, 1};
  const unsigned one = 1;
  SAY(cuMemAllocPitch(&out, &pitch, 100, 10, 4));
  SAY(cuMemAllocPitch(&out, &pitch, 100, 10, 3));
  SAY(cuMemAllocManaged(&out, MIB, CU_MEM_ATTACH_GLOBAL));
  SAY(cuMemHostAlloc(&host, 4096, 0));
  SAY(cuArrayCreate(&array, &shape));
  SAY(cuMemAllocAsync(&out, MIB, NULL));
  SAY(cuMemAllocAsync(&out, MIB, CU_STREAM_PER_THREAD));
  SAY(cuMemFreeAsync(address, NULL));
  SAY(cuMemFreeAsync(address, CU_STREAM_PER_THREAD));
  SAY(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_RELAXED));
  SAY(cuStreamEndCapture(CU_STREAM_PER_THREAD, &graph));
  SAY(cuStreamCreate(&stream, 0));
  SAY(cuPointerSetAttribute(&one, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address));
  SAY(cuIpcGetMemHandle(&handle, address));
  SAY(cuIpcOpenMemHandle(&out, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
  SAY(cuIpcCloseMemHandle(address));
  SAY(cuCtxSynchronize());
}

static void ask(CUdeviceptr address) {
  CUdeviceptr out = 0, base = 0;
  size_t bytes = 0, total = 0;
  CUmemorytype type;
  SAY(cuMemAlloc(&out, MIB));
  SAY(cuMemAlloc(NULL, MIB));
  SAY(cuMemAlloc(&out, 0));
  SAY(cuMemGetInfo(&bytes, &total));
  SAY(cuMemGetInfo(NULL, NULL));
  SAY(cuMemGetAddressRange(&base, &bytes, address));
  SAY(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address));
  ask_others(address);
  SAY(cuMemFree(address)); /* needs no context: a live block is gone */
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
  ask(block); /* a live one */
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemFree(allocate(MIB)));
  return 0;
}
