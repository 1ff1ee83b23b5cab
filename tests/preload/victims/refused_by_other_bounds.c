// The driver refuses for bounds that are neither the device's nor CUPOOL_LIMIT: managed memory, and a memory pool that the program made with a size of
// its own. Neither bound is blamed, and the pool's is named.
//! ooms 1
//! check ooms[0]["ooms"][-1]["cause"] == "driver_refused" and ooms[0]["ooms"][-1]["shortfall_bytes"] == 0
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report) .*)
//! env CUSIM_MEMORY=4GiB
//! case managed_above_the_device
//! args managed
//! native skip
//! env CUSIM_FAIL=cuMemAllocManaged:1:2:2
//! check ooms[0]["ooms"][-1]["evidence"]["managed"] and [x["rule_id"] for x in ooms[0]["ooms"][-1]["suggestions"]] == ["managed_memory"]
//! case managed_above_the_limit
//! args managed
//! native skip
//! env CUSIM_FAIL=cuMemAllocManaged:1:2:2
//! env CUPOOL_LIMIT=1GiB
//! check ooms[0]["ooms"][-1]["evidence"]["managed"] and [x["rule_id"] for x in ooms[0]["ooms"][-1]["suggestions"]] == ["managed_memory"]
//! case named_pool
//! check ooms[0]["ooms"][-1]["evidence"]["mempool_max_bytes"] == 1 << 30 and [x["rule_id"] for x in ooms[0]["ooms"][-1]["suggestions"]] == ["mempool_max"]
//! case current_pool
//! args current
//! check ooms[0]["ooms"][-1]["evidence"]["mempool_max_bytes"] == 1 << 30 and [x["rule_id"] for x in ooms[0]["ooms"][-1]["suggestions"]] == ["mempool_max"]
#include "victim.h"

int main(int count, char** names) {
  enter_device(0);
  CUdeviceptr block = 0;
  if (count > 1 && strcmp(names[1], "managed") == 0) {
    allocate(MIB);
    SAY(cuMemAllocManaged(&block, 6 * GIB, CU_MEM_ATTACH_GLOBAL));
    return 0;
  }
  CUmemPoolProps properties;
  CUmemoryPool pool;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.maxSize = GIB;
  MUST(cuMemPoolCreate(&pool, &properties));
  if (count > 1) MUST(cuDeviceSetMemPool(0, pool));
  const int is_current = count > 1;
  MUST(is_current ? cuMemAllocAsync(&block, GIB - MIB, 0) : cuMemAllocFromPoolAsync(&block, GIB - MIB, pool, 0));
  SAY(is_current ? cuMemAllocAsync(&block, 256 * MIB, 0) : cuMemAllocFromPoolAsync(&block, 256 * MIB, pool, 0));
  return 0;
}
