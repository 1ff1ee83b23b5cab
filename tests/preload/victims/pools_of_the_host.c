// Memory of pools on the host and of managed pools, made by the program or by nobody (cuMemGetDefaultMemPool): no device's. No limit refuses it, it leaves
// cuMemGetInfo as it was, and reports count it as what it is.
//! env CUPOOL_LIMIT=300MiB
//! native skip
//! check c["failed_allocations"] == 0 and c["live_bytes"]["peak"] < 300 * MiB and "kept: 0 MiB" in out and "current: 0" in out
//! check (d["outside"]["host"], d["outside"]["managed"]) == ((0, 700 * MiB) if "of managed memory" in out else (700 * MiB, 0))
//! case default_one
//! args default host
//! case of_a_node
//! args default node
//! case managed
//! args default managed
//! case managed_and_made
//! args made managed
//! case made
//! args made host
//! case current
//! args current host
//! case under_async
//! env CUPOOL_POLICY=async
//! args default host
//! case managed_under_async
//! env CUPOOL_POLICY=async
//! args current managed
//! case under_platform
//! env CUPOOL_POLICY=platform
//! args current node
//! case without_a_limit
//! env CUPOOL_LIMIT=none
//! args default host
#include "victim.h"

static size_t free_bytes(void) {
  size_t bytes = 0, total = 0;
  MUST(cuMemGetInfo(&bytes, &total));
  return bytes;
}

int main(int argc, char** argv) {
  CUmemPoolProps properties;
  CUmemLocation place;
  CUmemoryPool pool = NULL, found = NULL;
  CUdeviceptr blocks[3], plain;
  CUstream stream;
  const int is_managed = argc > 2 && strcmp(argv[2], "managed") == 0;
  const CUmemAllocationType type = is_managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
  memset(&properties, 0, sizeof properties);
  memset(&place, 0, sizeof place);
  enter_device(0);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemFree(allocate(MIB)));
  place.type = is_managed ? CU_MEM_LOCATION_TYPE_DEVICE : strcmp(argv[2], "node") == 0 ? CU_MEM_LOCATION_TYPE_HOST_NUMA : CU_MEM_LOCATION_TYPE_HOST;
  properties.allocType = type;
  properties.location = place;
  if (strcmp(argv[1], "made") == 0) MUST(cuMemPoolCreate(&pool, &properties));
  else if (strcmp(argv[1], "current") == 0) MUST(cuMemGetMemPool(&pool, &place, type));
  else MUST(cuMemGetDefaultMemPool(&pool, &place, type));
  const size_t before = free_bytes();
  for (int i = 0; i < 3; ++i) MUST(cuMemAllocFromPoolAsync(&blocks[i], 700 * MIB, pool, stream));
  MUST(cuPointerGetAttribute(&found, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, blocks[0]));
  printf("its pool: %d%s\n", found == pool, is_managed ? ", of managed memory" : "");
  plain = allocate(200 * MIB);
  MUST(cuMemFree(plain));
  MUST(cuCtxSynchronize());
  MUST(cuMemFreeAsync(blocks[0], stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemFree(blocks[1]));
  printf("kept: %zu MiB\n", (before - free_bytes()) / MIB);
  printf("current: %d\n", (int)cuMemSetMemPool(&place, type, pool));
  return 0;
}
