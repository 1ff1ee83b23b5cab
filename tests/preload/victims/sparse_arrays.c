// Physical memory that is mapped into a sparse array is held after its release, until it is unmapped there or the array is gone.
//! env CUSIM_MEMORY=2GiB
//! env CUPOOL_LIMIT=600MiB
//! native skip
//! check c["failed_allocations"] == d["outside"]["program_vmm"] // (500 * MiB) and "map: 0" in out
//! case unmapped
//! args unmapped
//! check d["outside"]["program_vmm"] == 0 and "more: 0" in out
//! case array_destroyed
//! args destroyed
//! check d["outside"]["program_vmm"] == 0 and "more: 0" in out
//! case context_destroyed
//! args context
//! check d["outside"]["program_vmm"] == 0 and "more: 0" in out
//! case mipmapped
//! args mipmapped
//! check d["outside"]["program_vmm"] == 0 and "more: 0" in out
//! case kept
//! args kept
//! ooms 1
//! stderr* .*
//! check d["outside"]["program_vmm"] == 500 * MiB and "more: 2" in out and d["ledger"]["outside_program_vmm"] == 500 * MiB
//! case kept_under_platform
//! env CUPOOL_POLICY=platform
//! args kept
//! ooms 1
//! stderr* .*
//! check d["outside"]["program_vmm"] == 500 * MiB and "more: 2" in out
#include "victim.h"

static CUmemGenericAllocationHandle tile_pool(size_t bytes, CUresult* result) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, 0}};
  CUmemGenericAllocationHandle handle = 0;
  properties.allocFlags.usage = CU_MEM_CREATE_USAGE_TILE_POOL;
  *result = cuMemCreate(&handle, bytes, &properties, 0);
  return handle;
}

int main(int argc, char** argv) {
  (void)argc;
  const char* what = argv[1];
  CUcontext made = NULL, primary = enter_device(0);
  CUDA_ARRAY3D_DESCRIPTOR shape = {.Width = 1024, .Height = 1024, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1, .Flags = CUDA_ARRAY3D_SPARSE};
  CUarrayMapInfo change;
  CUresult result;
  MUST(cuMemFree(allocate(1000)));
  if (strcmp(what, "context") == 0) MUST(create_context(&made, 0, 0));
  memset(&change, 0, sizeof change);
  if (strcmp(what, "mipmapped") == 0) {
    change.resourceType = CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    MUST(cuMipmappedArrayCreate(&change.resource.mipmap, &shape, 3));
  } else {
    change.resourceType = CU_RESOURCE_TYPE_ARRAY;
    MUST(cuArray3DCreate(&change.resource.array, &shape));
  }
  change.subresource.sparseLevel.extentWidth = change.subresource.sparseLevel.extentHeight = 128;
  change.subresource.sparseLevel.extentDepth = 1;
  change.memOperationType = CU_MEM_OPERATION_TYPE_MAP;
  change.deviceBitMask = 1;
  change.memHandle.memHandle = tile_pool(500 * MIB, &result);
  printf("create: %d\n", result);
  printf("map: %d\n", (int)cuMemMapArrayAsync(&change, 1, NULL));
  MUST(cuMemRelease(change.memHandle.memHandle));
  if (strcmp(what, "unmapped") == 0) {
    change.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP;
    change.memHandle.memHandle = 0;
    MUST(cuMemMapArrayAsync(&change, 1, NULL));
    MUST(cuCtxSynchronize());
  } else if (strcmp(what, "destroyed") == 0) {
    MUST(cuArrayDestroy(change.resource.array));
  } else if (strcmp(what, "mipmapped") == 0) {
    MUST(cuMipmappedArrayDestroy(change.resource.mipmap));
  } else if (strcmp(what, "context") == 0) {
    MUST(cuCtxDestroy(made));
    MUST(cuCtxSetCurrent(primary));
  }
  const CUmemGenericAllocationHandle more = tile_pool(500 * MIB, &result);
  printf("more: %d\n", result);
  if (more != 0) MUST(cuMemRelease(more));
  return 0;
}
