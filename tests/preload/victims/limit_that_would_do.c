// A request above CUPOOL_LIMIT alone: the report gives the limit with which it would pass, which is more than the request where something is held, and
// on pages some more, on segments as much as one more region may have. It is printed as it can be typed.
//! env CUSIM_MEMORY=1GiB
//! case told
//! env CUPOOL_LIMIT=300MiB
//! native skip
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: wanted 301.00 MiB .*
//! stderr .*cause      impossible_request: 1.00 MiB more than CUPOOL_LIMIT alone, 210.00 MiB with what is held
//! stderr \s+holds .*
//! stderr \s+holds most 2 blocks of 100.00 MiB, 200.00 MiB
//! stderr \s+elsewhere .*
//! stderr \s+try .*: CUPOOL_LIMIT=510MiB
//! stderr \s+report .*
//! check "wanted: 2" in out and f"enough_limit_bytes={510 << 20}" in ooms[0]["ooms"][0]["suggestions"][0]["evidence"].split()
//! case with_it
//! env CUPOOL_LIMIT=510MiB
//! check "wanted: 0" in out
//! case told_on_segments
//! env CUPOOL_LIMIT=300MiB
//! env CUPOOL_BACKING=segments
//! native skip
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and f"enough_limit_bytes={702 << 20}" in ooms[0]["ooms"][0]["suggestions"][0]["evidence"].split()
//! case with_it_on_segments
//! env CUPOOL_LIMIT=702MiB
//! env CUPOOL_BACKING=segments
//! check "wanted: 0" in out
#include "victim.h"

int main(void) {
  CUdeviceptr block = 0;
  enter_device(0);
  for (int i = 0; i < 2; ++i) allocate(100 * MIB);
  printf("wanted: %d\n", cuMemAlloc(&block, 301 * MIB));
  return 0;
}
