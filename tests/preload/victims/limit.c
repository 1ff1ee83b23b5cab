// CUPOOL_LIMIT: no way of allocating device memory goes beyond it, and cuMemGetInfo speaks of it.
//! native skip
//! env CUPOOL_LIMIT=1GiB
//! ooms 4
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report) .*)
//! check d["limit_bytes"] == GiB and {o["ooms"][-1]["cause"] for o in ooms} <= {"limit", "impossible_request"}
//! check c["reserved_bytes"]["peak"] <= GiB
//! case grow
//! case platform
//! env CUPOOL_POLICY=platform
//! case percent
//! env CUPOOL_LIMIT=12.5%
//! case listed
//! env CUPOOL_LIMIT=1:2GiB,0:1GiB
#include "victim.h"

static void print_info(void) {
  size_t free_bytes = 0, total_bytes = 0;
  MUST(cuMemGetInfo(&free_bytes, &total_bytes));
  printf("free %zu total %zu MiB\n", free_bytes / MIB, total_bytes / MIB);
}

int main(void) {
  enter_device(0);
  CUdeviceptr address = 0;
  CUarray array = NULL;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = {0};
  CUDA_ARRAY_DESCRIPTOR large = {16384, 16384, CU_AD_FORMAT_FLOAT, 1};  // 1 GiB
  size_t total = 0;
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  print_info();
  MUST(cuDeviceTotalMem(&total, 0));
  printf("total %zu MiB\n", total / MIB);
  SAY(cuDeviceTotalMem(NULL, 0));
  CUdeviceptr held = allocate(512 * MIB);
  print_info();
  SAY(cuMemAlloc(&address, 600 * MIB));
  SAY(cuMemAlloc(&address, 2 * GIB));
  SAY(cuArrayCreate(&array, &large));
  SAY(cuMemCreate(&handle, 600 * MIB, &prop, 0));
  MUST(cuMemFree(held));
  SAY(cuMemAlloc(&address, 1000 * MIB));
  return 0;
}
