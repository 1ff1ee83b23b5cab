// Host memory is out while a second device's context comes and is given access to the first one's: it may be refused, but what is answered with success
// is given, also where the pool is the driver's own.
//! env CUSIM_DEVICES=2
//! check all(x["counters"]["live_blocks"]["current"] == 0 for x in report["devices"])
//! case default
//! case pages
//! env CUPOOL_BACKING=pages
//! case async
//! env CUPOOL_POLICY=async
#define _GNU_SOURCE
#include "host_memory.h"

#include "cusim.h"
#include "victim.h"

static uint64_t requests;

int main(void) {
  CUcontext first = enter_device(0), second = NULL;
  CUstream stream;
  watch_host_memory("libcupool", &requests);
  const CUdeviceptr block = allocate(MIB);
  fail_host_memory(requests + 1, UINT32_MAX);
  const CUresult retained = cuDevicePrimaryCtxRetain(&second, 1);
  const CUresult entered = cuCtxSetCurrent(second);
  CUresult enabled = cuCtxEnablePeerAccess(first, 0);
  fail_host_memory(UINT64_MAX, 1);
  if (enabled == CUDA_ERROR_OUT_OF_MEMORY) enabled = cuCtxEnablePeerAccess(first, 0);
  SAY(retained);
  SAY(entered);
  SAY(enabled);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  SAY(cusim_launch_fill(stream, block, MIB, 7, 1000));
  SAY(cusim_launch_check(stream, block, MIB, 7, 1000));
  SAY(cuStreamSynchronize(stream));
  SAY(cuMemFree(block));
  return 0;
}
