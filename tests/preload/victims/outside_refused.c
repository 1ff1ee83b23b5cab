// Memory outside the pool that the driver refuses for want of room is an out-of-memory event like any other, with its report and its ten lines.
//! env CUSIM_MEMORY=256MiB
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: wanted .*
//! stderr* (  (cause|holds|elsewhere|try|report| ) .*)
//! check c["failed_allocations"] == 1 and len(report["ooms"]) == 1
//! case array
//! args array
//! check ooms[0]["ooms"][0]["api"] == "cuArrayCreate_v2" and ooms[0]["ooms"][0]["requested_bytes"] == 64 * MiB
//! check ooms[0]["ooms"][0]["cause"] == "true_exhaustion"
//! case own_physical_memory
//! args physical
//! check ooms[0]["ooms"][0]["api"] == "cuMemCreate" and ooms[0]["ooms"][0]["requested_bytes"] == 64 * MiB
//! case in_pieces
//! args pieces
//! env CUPOOL_BACKING=segments
//! check ooms[0]["ooms"][0]["cause"] == "external_fragmentation" and ooms[0]["ooms"][0]["shortfall_bytes"] == 62 * MiB  # the driver has two
//! case stream_ordered_under_async
//! args ordered
//! env CUPOOL_POLICY=async
//! check ooms[0]["ooms"][0]["api"] == "cuMemAllocAsync" and ooms[0]["ooms"][0]["cause"] == "true_exhaustion"
//! check c["live_bytes"]["current"] == 240 * MiB and [b[1] for b in d["blocks"]] == [40 * MiB] * 6
//! case stream_ordered_under_platform
//! args ordered
//! env CUPOOL_POLICY=platform
//! check ooms[0]["ooms"][0]["cause"] == "true_exhaustion"
//! check c["live_bytes"]["current"] == 240 * MiB and [b[1] for b in d["blocks"]] == [40 * MiB] * 6
#include "victim.h"

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  enter_device(0);
  CUdeviceptr blocks[256];
  int count = 0;
  if (strcmp(what, "ordered") == 0) {
    CUdeviceptr block;
    for (int i = 0; i < 6; ++i) MUST(cuMemAllocAsync(&block, 40 * MIB, 0));
    SAY(cuMemAllocAsync(&block, 64 * MIB, 0));
    return 0;
  }
  if (strcmp(what, "pieces") == 0) { /* half of what is taken is free, nowhere a whole region */
    while (count < 200 && cuMemAlloc(&blocks[count], MIB) == CUDA_SUCCESS) ++count;
    for (int i = 0; i < count; i += 2) MUST(cuMemFree(blocks[i]));
    MUST(cuCtxSynchronize());
  } else {
    while (count < 25 && cuMemAlloc(&blocks[count], 8 * MIB) == CUDA_SUCCESS) ++count;
  }
  if (strcmp(what, "physical") == 0) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp prop;
    memset(&prop, 0, sizeof prop);
    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    SAY(cuMemCreate(&handle, 64 * MIB, &prop, 0));
  } else {
    CUarray array;
    CUDA_ARRAY_DESCRIPTOR description = {4096, 4096, CU_AD_FORMAT_FLOAT, 1};
    SAY(cuArrayCreate(&array, &description));
  }
  return 0;
}
