// What is to be preallocated and the driver refuses, for another reason than that it has no more, is told as what it is; the program is served all the same.
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_PREALLOCATE=1GiB
//! check c["live_bytes"]["current"] == 1048576 and c["failed_allocations"] == 0 and c["reserved_bytes"]["current"] < 67108864
//! check any("gave 0 MiB of 1024 MiB" in warning for warning in report["data_quality"]["warnings"])
//! native same
//! case segments
//! env CUPOOL_BACKING=segments
//! args cuMemAlloc_v2 999
//! stderr cupool\[<pid>\]: warning: CUPOOL_PREALLOCATE: GPU 0 gave 0 MiB of 1024 MiB \(the driver answered 999\)
//! case async
//! env CUPOOL_POLICY=async
//! args cuMemAllocFromPoolAsync 801
//! stderr cupool\[<pid>\]: warning: CUPOOL_PREALLOCATE: GPU 0 gave 0 MiB of 1024 MiB \(the driver answered 801\)
//! case async_without_stream
//! env CUPOOL_POLICY=async
//! args cuStreamCreate 999
//! stderr cupool\[<pid>\]: warning: CUPOOL_PREALLOCATE: GPU 0 gave 0 MiB of 1024 MiB \(the driver answered 999\)
#include "cusim.h"
#include "victim.h"

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  enter_device(0);
  cusim_fail(argv[1], 1, (CUresult)atoi(argv[2]), 1);
  CUdeviceptr block = 0;
  if (cuMemAlloc(&block, MIB) != CUDA_SUCCESS) MUST(cuMemAlloc(&block, MIB));  // natively it is the first that fails
  size_t free_bytes = 0, total_bytes = 0;
  MUST(cuMemGetInfo(&free_bytes, &total_bytes));
  return 0;
}
