// Memory from a memory pool of device 1, or a handle of device 1, asked for while a context of device 0 is current: it is held to the limit of device 1 and booked there, and
// when it is refused device 1 is asked what it has left.
//! env CUSIM_DEVICES=2
//! env CUSIM_MEMORY=1GiB,2GiB
//! check all(d["counters"]["live_bytes"]["peak"] == 0 for d in report["devices"] if d["ordinal"] == 0)
//! case served
//! args own 100
//! check report["devices"][-1]["ordinal"] == 1 and report["devices"][-1]["counters"]["live_bytes"]["current"] == 100 * MiB
//! case the_default_pool
//! args default 100
//! check report["devices"][-1]["ordinal"] == 1 and report["devices"][-1]["counters"]["live_bytes"]["current"] == 100 * MiB
//! case limit_of_the_current_device
//! env CUPOOL_LIMIT=0:50MiB
//! args own 100
//! check report["devices"][-1]["ordinal"] == 1 and report["devices"][-1]["counters"]["live_bytes"]["current"] == 100 * MiB
//! case limit_of_its_device
//! env CUPOOL_LIMIT=1:50MiB
//! native skip
//! args own 100
//! ooms 1
//! stderr* .*
//! check "100 MiB: 2" in out and [(o["device"], o["cause"]) for o in report["ooms"]] == [(1, "impossible_request")]
//! case refused
//! args own 1600 1000
//! ooms 1
//! stderr* .*
//! check "1000 MiB: 2" in out and [(o["device"], o["cause"], o["shortfall_bytes"]) for o in report["ooms"]] == [(1, "true_exhaustion", 552 * MiB)]
//! case refused_async
//! env CUPOOL_POLICY=async
//! args own 1600 1000
//! ooms 1
//! stderr* .*
//! check [(o["device"], o["cause"], o["shortfall_bytes"]) for o in report["ooms"]] == [(1, "true_exhaustion", 552 * MiB)]
//! case refused_platform
//! env CUPOOL_POLICY=platform
//! args own 1600 1000
//! ooms 1
//! stderr* .*
//! check [(o["device"], o["cause"], o["shortfall_bytes"]) for o in report["ooms"]] == [(1, "true_exhaustion", 552 * MiB)]
//! case refused_with_properties
//! args sized 1600 1000
//! ooms 1
//! stderr* .*
//! check [(o["device"], o["cause"], o["shortfall_bytes"]) for o in report["ooms"]] == [(1, "true_exhaustion", 552 * MiB)]
//! case handle_refused
//! args handle 100 2000
//! ooms 1
//! stderr* .*
//! check [(o["device"], o["cause"], o["shortfall_bytes"]) for o in report["ooms"]] == [(1, "non_pool_memory", 52 * MiB)]
//! case handle_refused_beside_blocks
//! args handle_beside_blocks 100 2000
//! ooms 1
//! stderr* .*
//! check [(o["device"], o["shortfall_bytes"]) for o in report["ooms"]] == [(1, 52 * MiB)]
#include "victim.h"

int main(int argc, char** argv) {
  enter_device(1);
  if (strstr(argv[1], "beside_blocks") != NULL) MUST(cuMemFree(allocate(MIB))); /* a context that the pool knows */
  const CUcontext zero = enter_device(0);
  CUmemPoolProps properties = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
  CUmemAllocationProp physical = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 1}};
  CUmemoryPool pool = NULL;
  if (strcmp(argv[1], "sized") == 0) properties.maxSize = 64 * GIB;
  if (strcmp(argv[1], "default") == 0) MUST(cuDeviceGetDefaultMemPool(&pool, 1));
  else if (strncmp(argv[1], "handle", 6) != 0) MUST(cuMemPoolCreate(&pool, &properties));
  for (int i = 2; i < argc; ++i) {
    const size_t bytes = strtoul(argv[i], NULL, 10) * MIB;
    CUdeviceptr block = 0;
    CUmemGenericAllocationHandle handle = 0;
    const CUresult result = pool != NULL ? cuMemAllocFromPoolAsync(&block, bytes, pool, NULL) : cuMemCreate(&handle, bytes, &physical, 0);
    printf("%s MiB: %d\n", argv[i], result);
  }
  CUcontext current = NULL;
  MUST(cuCtxGetCurrent(&current));
  printf("still in device 0's: %d\n", current == zero);
  return 0;
}
