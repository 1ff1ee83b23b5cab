// An export that host memory is too short for is refused: a handle that is given is one that can be opened (by another process).
//! env CUSIM_MEMORY=1GiB
//! env CUPOOL_BACKING=segments
//! env CUPOOL_LOG=off
//! check c["live_blocks"]["current"] == 0 and c["allocations"] == c["frees"]
#define _GNU_SOURCE
#include "host_memory.h"

#include "victim.h"

static uint64_t requests;

int main(void) {
  enter_device(0);
  watch_host_memory("libcupool", &requests);
  for (unsigned nth = 1; nth <= 12; ++nth) {
    const CUdeviceptr block = allocate(MIB + nth);
    CUipcMemHandle handle;
    CUdeviceptr opened = 0;
    memset(&handle, 0x5a, sizeof handle);
    fail_host_memory(requests + nth, UINT32_MAX);
    const CUresult exported = cuIpcGetMemHandle(&handle, block);
    fail_host_memory(UINT64_MAX, 1);
    if (exported != CUDA_SUCCESS && exported != CUDA_ERROR_OUT_OF_MEMORY) printf("cuIpcGetMemHandle, request %u: %d\n", nth, (int)exported);
    if (exported == CUDA_SUCCESS) { /* the exporter itself may not open it */
      const CUresult code = cuIpcOpenMemHandle(&opened, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
      if (code != CUDA_ERROR_INVALID_CONTEXT) printf("cuIpcOpenMemHandle, request %u: %d\n", nth, (int)code);
    }
    MUST(cuMemFree(block));
  }
  return 0;
}
