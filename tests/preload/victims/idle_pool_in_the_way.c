// Idle memory of the program's own memory pool is no reason to refuse: natively cuMemCreate and cuMemAlloc have it, and here everything has. What does not go back, because work may still use it, is named.
//! native skip
//! env CUSIM_MEMORY=1GiB
//! case given_back
//! args idle
//! check all(f"{what}: 0" in out for what in ("array", "plain", "physical")) and c["failed_allocations"] == 0
//! case given_back_under_platform
//! args idle
//! env CUPOOL_POLICY=platform
//! check all(f"{what}: 0" in out for what in ("array", "plain", "physical")) and c["failed_allocations"] == 0
//! case behind_work
//! args busy
//! ooms 1
//! stderr* .*
//! check "array: 2" in out and ooms[0]["ooms"][0]["cause"] == "deferred_free" and ooms[0]["ooms"][0]["evidence"]["deferred_at_driver_bytes"] == 600 * MiB
//! check "synchronize_first" in [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] and ooms[0]["devices"][0]["ledger"]["outside_mempools"] == 600 * MiB
#include "cusim.h"
#include "victim.h"

static CUmemoryPool pool;
static CUstream stream;

static void leave_idle(void) {
  CUdeviceptr block;
  MUST(cuMemAllocFromPoolAsync(&block, 600 * MIB, pool, stream));
  MUST(cuMemFreeAsync(block, stream));
}

static CUresult make_array(CUarray* array) {
  CUDA_ARRAY3D_DESCRIPTOR shape;
  memset(&shape, 0, sizeof shape);
  shape.Width = 16384;
  shape.Height = 32000;
  shape.Format = CU_AD_FORMAT_UNSIGNED_INT8;
  shape.NumChannels = 1;
  return cuArray3DCreate(array, &shape);
}

int main(int argc, char** argv) {
  enter_device(0);
  CUarray array;
  CUdeviceptr plain;
  CUmemGenericAllocationHandle physical;
  CUmemAllocationProp property;
  CUmemPoolProps properties;
  static volatile uint32_t flag;
  cuuint64_t threshold = ~(cuuint64_t)0;
  memset(&property, 0, sizeof property);
  property.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  property.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.maxSize = 800 * MIB;
  MUST(cuMemPoolCreate(&pool, &properties));
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if (argc > 1 && strcmp(argv[1], "busy") == 0) {
    MUST(cusim_launch_wait_host(stream, &flag));
    leave_idle();
    printf("array: %d\n", (int)make_array(&array));
    flag = 1;
    MUST(cuCtxSynchronize());
    return 0;
  }
  leave_idle();
  MUST(cuStreamSynchronize(stream));
  const CUresult made = make_array(&array);
  printf("array: %d\n", (int)made);
  if (made == CUDA_SUCCESS) MUST(cuArrayDestroy(array));
  leave_idle();
  MUST(cuStreamSynchronize(stream));
  const CUresult taken = cuMemAlloc(&plain, 500 * MIB);
  printf("plain: %d\n", (int)taken);
  if (taken == CUDA_SUCCESS) MUST(cuMemFree(plain));
  leave_idle();
  MUST(cuStreamSynchronize(stream));
  printf("physical: %d\n", (int)cuMemCreate(&physical, 500 * MIB, &property, 0));
  return 0;
}
