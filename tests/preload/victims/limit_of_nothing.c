// A share of the device that comes to less than a byte is a limit all the same, not none.
//! native skip
//! env CUPOOL_LIMIT=0.000000001%
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report) .*)
//! check d["limit_bytes"] == 1 and c["reserved_bytes"]["peak"] == 0 and out.split() == ["refused", "2,", "total", "1"]
#include "victim.h"

int main(void) {
  enter_device(0);
  CUdeviceptr block = 0;
  size_t total_bytes = 0;
  const CUresult refused = cuMemAlloc(&block, 512);
  MUST(cuDeviceTotalMem(&total_bytes, 0));
  printf("refused %d, total %zu\n", (int)refused, total_bytes);
  return 0;
}
