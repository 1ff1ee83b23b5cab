// A memory pool that the program made with a maxSize has no room for a request that CUPOOL_LIMIT, or a full device, refuses first: that is named, as what has to
// be raised whatever else is done. What its blocks have counts.
//! native skip
//! env CUSIM_MEMORY=1GiB
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! check ooms[0]["ooms"][-1]["suggestions"][0]["rule_id"] == "mempool_max" and [x["level"] for x in ooms[0]["ooms"][-1]["suggestions"]].count("fix") == 1
//! case limit
//! args 200 0 300 300
//! env CUPOOL_LIMIT=500MiB
//! check ooms[0]["ooms"][-1]["cause"] == "limit" and ooms[0]["ooms"][-1]["evidence"]["mempool_max_bytes"] == 200 * MiB
//! case limit_on_segments
//! args 200 0 300 300
//! env CUPOOL_LIMIT=500MiB
//! env CUPOOL_BACKING=segments
//! check ooms[0]["ooms"][-1]["cause"] == "limit" and ooms[0]["ooms"][-1]["evidence"]["mempool_max_bytes"] == 200 * MiB
//! case limit_under_async
//! args 200 0 300 300
//! env CUPOOL_LIMIT=500MiB
//! env CUPOOL_POLICY=async
//! check ooms[0]["ooms"][-1]["cause"] == "limit" and ooms[0]["ooms"][-1]["evidence"]["mempool_max_bytes"] == 200 * MiB
//! case limit_under_platform
//! args 200 0 300 300
//! env CUPOOL_LIMIT=500MiB
//! env CUPOOL_POLICY=platform
//! check ooms[0]["ooms"][-1]["cause"] == "limit" and ooms[0]["ooms"][-1]["evidence"]["mempool_max_bytes"] == 200 * MiB
//! case limit_with_live_blocks
//! args 300 200 200 200
//! env CUPOOL_LIMIT=500MiB
//! check ooms[0]["ooms"][-1]["cause"] == "limit" and ooms[0]["ooms"][-1]["evidence"]["mempool_used_bytes"] == 200 * MiB
//! case above_the_limit
//! args 300 200 200 0
//! env CUPOOL_LIMIT=250MiB
//! check ooms[0]["ooms"][-1]["cause"] == "limit" and ooms[0]["ooms"][-1]["evidence"]["mempool_used_bytes"] == 200 * MiB
//! case request_above_the_limit
//! args 300 100 400 0
//! env CUPOOL_LIMIT=350MiB
//! check ooms[0]["ooms"][-1]["cause"] == "impossible_request" and ooms[0]["ooms"][-1]["evidence"]["mempool_used_bytes"] == 100 * MiB
//! case full_device
//! args 300 0 400 700
//! check ooms[0]["ooms"][-1]["cause"] == "true_exhaustion" and ooms[0]["ooms"][-1]["evidence"]["mempool_max_bytes"] == 300 * MiB
//! case full_device_under_platform
//! args 300 0 400 700
//! env CUPOOL_POLICY=platform
//! check ooms[0]["ooms"][-1]["cause"] == "true_exhaustion" and ooms[0]["ooms"][-1]["evidence"]["mempool_max_bytes"] == 300 * MiB
#include "victim.h"

/* In MiB: the pool's maxSize, what of it is live, what is wanted of it, and what is live elsewhere. */
int main(int count, char** figures) {
  if (count < 5) return 1;
  const size_t max = strtoull(figures[1], NULL, 10), live = strtoull(figures[2], NULL, 10), wanted = strtoull(figures[3], NULL, 10),
               others = strtoull(figures[4], NULL, 10);
  enter_device(0);
  CUmemPoolProps properties;
  CUmemoryPool pool;
  CUdeviceptr block = 0;
  for (size_t i = 0; i < others / 100; ++i) allocate(100 * MIB);
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.maxSize = max * MIB;
  MUST(cuMemPoolCreate(&pool, &properties));
  if (live != 0) MUST(cuMemAllocFromPoolAsync(&block, live * MIB, pool, 0));
  SAY(cuMemAllocFromPoolAsync(&block, wanted * MIB, pool, 0));
  return 0;
}
