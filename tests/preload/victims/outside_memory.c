// Memory that is not pooled, counted while it lives: managed, host, arrays, the program's own physical memory.
//! check d["outside"] == {"arrays": 16 * MiB, "program_vmm": 32 * MiB, "mempools": 0, "graphs": 0, "managed": 8 * MiB, "host": 4 * MiB}
//! check c["allocations"] == 0 or c["live_blocks"]["current"] == 0
//! check sum(d["ledger"].values()) == d["total_bytes"] and d["ledger"]["outside_arrays"] == 16 * MiB and d["ledger"]["outside_program_vmm"] == 32 * MiB
#include "victim.h"

/* A second reference to memory, which lives on when that one is released. */
static void retain_and_release(CUmemGenericAllocationHandle handle) {
  CUdeviceptr address;
  CUmemGenericAllocationHandle again;
  MUST(cuMemAddressReserve(&address, 32 * MIB, 0, 0, 0));
  MUST(cuMemMap(address, 32 * MIB, 0, handle, 0));
  SAY(cuMemRetainAllocationHandle(&again, (void*)(uintptr_t)address));
  MUST(cuMemUnmap(address, 32 * MIB));
  SAY(cuMemRelease(again));
  MUST(cuMemAddressFree(address, 32 * MIB));
}

int main(void) {
  enter_device(0);
  CUdeviceptr managed[2];
  void* host[2];
  CUarray arrays[2];
  CUmemGenericAllocationHandle handles[2];
  CUmemAllocationProp prop;
  memset(&prop, 0, sizeof prop);
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  CUDA_ARRAY_DESCRIPTOR description = {2048, 2048, CU_AD_FORMAT_FLOAT, 1};
  for (int i = 0; i < 2; ++i) {
    SAY(cuMemAllocManaged(&managed[i], 8 * MIB, CU_MEM_ATTACH_GLOBAL));
    SAY(cuMemHostAlloc(&host[i], 4 * MIB, 0));
    SAY(cuArrayCreate(&arrays[i], &description));
    SAY(cuMemCreate(&handles[i], 32 * MIB, &prop, 0));
  }
  SAY(cuMemFree(managed[0]));
  SAY(cuMemFreeHost(host[0]));
  SAY(cuArrayDestroy(arrays[0]));
  SAY(cuMemRelease(handles[0]));
  retain_and_release(handles[1]);
  MUST(cuMemFree(allocate(1000)));
  return 0;
}
