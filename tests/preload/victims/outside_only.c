// Memory that the pool does not serve: device memory makes a report, pinned host memory alone does not.
//! case host
//! args host
//! report absent
//! check files == []
//! case async
//! args async
//! env CUPOOL_POLICY=platform
//! check c["allocations"] == 1 and c["frees"] == 1 and report["data_quality"]["unpooled_apis_seen"] == []
//! check c["live_bytes"] == {"current": 0, "peak": MiB} and c["reserved_bytes"] == {"current": 0, "peak": MiB} and c["outside_bytes"]["peak"] == 0
//! check "unknown" not in d["ledger"] and d["ledger"]["driver_free"] > 0.9 * d["total_bytes"]
//! case array
//! args array
//! check report["data_quality"]["unpooled_apis_seen"] == ["cuArrayCreate_v2"]
//! check c["outside_bytes"]["peak"] == 64 * 32 * 8 and c["outside_bytes"]["current"] == 0
//! check "unknown" not in d["ledger"] and d["ledger"]["driver_free"] > 0.9 * d["total_bytes"]
//! case mapped_after_release
//! args mapped_after_release
//! check report["data_quality"]["unpooled_apis_seen"] == ["cuMemCreate"]
//! check c["outside_bytes"]["peak"] == 2 * MiB and c["outside_bytes"]["current"] == 2 * MiB
//! check d["ledger"]["unattributed"] == 0 and d["ledger"]["driver_free"] == d["total_bytes"] - 2 * MiB
//! case unmapped_after_release
//! args unmapped_after_release
//! check c["outside_bytes"]["peak"] == 2 * MiB and c["outside_bytes"]["current"] == 0
//! case over_the_limit
//! args async
//! env CUPOOL_LIMIT=512KiB
//! env CUPOOL_POLICY=platform
//! native skip
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: .*
//! stderr* \s+(cause|holds|elsewhere|try|report) .*
//! check report["ooms"][0]["api"] == "cuMemAllocAsync" and report["ooms"][0]["cause"] == "impossible_request"
#include "victim.h"

static void take_physical(int unmap) {
  CUmemAllocationProp properties = {0};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuMemCreate(&handle, 2 * MIB, &properties, 0));
  MUST(cuMemAddressReserve(&address, 2 * MIB, 0, 0, 0));
  MUST(cuMemMap(address, 2 * MIB, 0, handle, 0));
  MUST(cuMemRelease(handle)); /* the mapping still holds it */
  if (unmap) MUST(cuMemUnmap(address, 2 * MIB));
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  enter_device(0);
  if (strcmp(what, "host") == 0) {
    void* memory = NULL;
    MUST(cuMemHostAlloc(&memory, MIB, 0));
    MUST(cuMemFreeHost(memory));
  } else if (strcmp(what, "async") == 0) {
    CUstream stream;
    CUdeviceptr block = 0;
    MUST(cuStreamCreate(&stream, 0));
    if (SAY(cuMemAllocAsync(&block, MIB, stream)) == 0) MUST(cuMemFreeAsync(block, stream));
  } else if (strcmp(what, "array") == 0) {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR shape = {64, 32, CU_AD_FORMAT_FLOAT, 2};
    MUST(cuArrayCreate(&array, &shape));
    MUST(cuArrayDestroy(array));
  } else {
    take_physical(strcmp(what, "unmapped_after_release") == 0);
  }
  return 0;
}
