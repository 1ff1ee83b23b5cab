// Drivers of several ages, and partial ones: the program gets its memory and what the library lacks there, it does without (one word at most).
//! stderr* cupool\[<pid>\]: warning: .*cuCtxRecordEvent.*
//! check c["allocations"] == 20 and c["live_blocks"]["current"] == 0 and len(err.splitlines()) <= 1
//! case cuda_11_4
//! env CUSIM_DRIVER_VERSION=11040
//! case cuda_12_0
//! env CUSIM_DRIVER_VERSION=12000
//! case cuda_12_5
//! env CUSIM_DRIVER_VERSION=12050
//! check err == ""
//! case no_virtual_memory
//! env CUSIM_VMM=0
//! check err == "" and d["backing"] == "segments"
//! case partial
//! env CUSIM_MISSING=cuMemGetAddressRange,cuStreamIsCapturing,cuThreadExchangeStreamCaptureMode,cuPointerGetAttribute,cuPointerGetAttributes,cuDeviceGetUuid,cuCtxGetId
//! check err == "" and d["backing"] == "pages"
//! case partial_without_events
//! env CUSIM_MISSING=cuEventCreate,cuEventQuery,cuEventRecord,cuStreamCreate,cuMemAllocAsync,cuMemFreeAsync,cuDevicePrimaryCtxGetState,cuCtxFromGreenCtx,cuDeviceGetName
#include "victim.h"

int main(void) {
  enter_device(0);
  for (int i = 0; i < 20; ++i) {
    CUdeviceptr block = allocate((size_t)(i + 1) * 300 * KIB);
    MUST(cuMemsetD8(block, 1, KIB));
    MUST(cuMemFree(block));
  }
  return 0;
}
