// CUPOOL_PREALLOCATE: taken at the first allocation, clamped with one warning, more on demand.
//! native skip
//! check c["failed_allocations"] == 0 and c["allocations"] == 200 and c["frees"] == 200
//! case by_policy
//! env CUPOOL_BACKING=segments
//! env CUPOOL_POLICY=preallocate
//! check calls("cuMemAlloc_v2") == 2 and c["reserved_bytes"]["peak"] == 6 * GiB
//! check d["policy"] == "preallocate" and d["counters"]["driver_calls"]["cuMemAlloc_v2"] == 2
//! case bytes
//! env CUPOOL_BACKING=segments
//! env CUPOOL_PREALLOCATE=1GiB
//! check calls("cuMemAlloc_v2") == 2 and c["reserved_bytes"]["peak"] == GiB
//! case least_of_both
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_PREALLOCATE=min(75%,2GiB)
//! check c["reserved_bytes"]["peak"] == 2 * GiB
//! case minus_one
//! env CUPOOL_PREALLOCATE=-1
//! check c["reserved_bytes"]["peak"] == 6 * GiB
//! case clamped_to_limit
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_LIMIT=1GiB
//! env CUPOOL_PREALLOCATE=4GiB
//! stderr cupool\[<pid>\]: warning: .*
//! check c["reserved_bytes"]["peak"] == GiB and len(warnings) == 1
//! case clamped_to_free
//! env CUPOOL_PREALLOCATE=100GiB
//! stderr cupool\[<pid>\]: warning: .*
//! check c["reserved_bytes"]["peak"] <= 8 * GiB and c["reserved_bytes"]["peak"] > 7 * GiB and len(warnings) == 1
//! case not_with_platform
//! env CUPOOL_POLICY=platform
//! env CUPOOL_PREALLOCATE=1GiB
//! stderr (cupool\[<pid>\]: warning: .*)
//! check calls("cuMemAlloc_v2") == 200
#include "victim.h"

int main(void) {
  enter_device(0);
  for (int i = 0; i < 200; ++i) MUST(cuMemFree(allocate((size_t)(i + 1) * 100 * KIB)));
  return 0;
}
