// Memory of a device's locality domain (CUDA 13.5, a part of the device's memory) is that device's: counted for it and held to its limit.
//! env CUSIM_DEVICES=2
//! env CUSIM_MEMORY=2GiB
//! env CUSIM_DRIVER_VERSION=13050
//! check report["devices"][-1]["outside"]["program_vmm"] == 200 * MiB and report["devices"][-1]["counters"]["live_bytes"]["current"] == 100 * MiB
//! check report["devices"][-1]["ledger"]["outside_program_vmm"] == 200 * MiB
//! case counted
//! case limited
//! native skip
//! env CUPOOL_LIMIT=1:350MiB
//! args more
//! ooms 2
//! stderr* .*
//! check "handle: 2" in out and "pool: 2" in out and {(o["device"], o["api"]) for o in report["ooms"]} == {(1, "cuMemCreate"), (1, "cuMemAllocFromPoolAsync")}
//! case limited_under_platform
//! native skip
//! env CUPOOL_POLICY=platform
//! env CUPOOL_LIMIT=1:350MiB
//! args more
//! ooms 2
//! stderr* .*
//! check "handle: 2" in out and "pool: 2" in out
#include "victim.h"

int main(int argc, char** argv) {
  (void)argv;
  enter_device(1);
  CUmemAllocationProp physical = {.type = CU_MEM_ALLOCATION_TYPE_PINNED};
  CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED};
  physical.location.type = properties.location.type = (CUmemLocationType)6; /* CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN */
  physical.location.id = properties.location.id = 1;                        /* two bytes: device 1, domain 0 */
  CUmemGenericAllocationHandle handle = 0;
  CUmemoryPool pool = NULL;
  CUdeviceptr block = 0;
  MUST(cuMemCreate(&handle, 200 * MIB, &physical, 0));
  MUST(cuMemPoolCreate(&pool, &properties));
  MUST(cuMemAllocFromPoolAsync(&block, 100 * MIB, pool, NULL));
  MUST(cuCtxSynchronize());
  if (argc > 1) {
    printf("handle: %d\n", (int)cuMemCreate(&handle, 60 * MIB, &physical, 0));
    printf("pool: %d\n", (int)cuMemAllocFromPoolAsync(&block, 60 * MIB, pool, NULL));
  }
  return 0;
}
