// CUPOOL_LOG: by default nothing is said; info says what was set up, debug what the pool decides and why, trace which addresses came and went. None of
// it is a warning of the report.
//! check warnings == []
//! case by_default
//! case info
//! env CUPOOL_LOG=info
//! env CUPOOL_LIMIT=1GiB
//! stderr cupool\[<pid>\]: cupool [0-9.]+, driver for CUDA 13\.0; report to /.*
//! stderr cupool\[<pid>\]: GPU 0: .*, 8\.00 GiB: policy grow, backing pages, limit 1\.00 GiB
//! stderr cupool\[<pid>\]: report: /.*
//! case preallocated
//! env CUPOOL_LOG=info
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_PREALLOCATE=25%
//! env CUPOOL_BACKING=segments
//! stderr cupool\[<pid>\]: cupool [0-9.]+, driver for CUDA 13\.0; report to /.*
//! stderr cupool\[<pid>\]: GPU 0: .*, 8\.00 GiB: policy preallocate, backing segments, no limit
//! stderr cupool\[<pid>\]: GPU 0: 2\.00 GiB preallocated
//! stderr cupool\[<pid>\]: report: /.*
//! case debug
//! env CUPOOL_LOG=debug
//! env CUPOOL_RELEASE_THRESHOLD=0
//! stderr cupool\[<pid>\]: cupool [0-9.]+, driver for CUDA 13\.0; report to /.*
//! stderr cupool\[<pid>\]: GPU 0: context 0x[0-9a-f]+ is served
//! stderr cupool\[<pid>\]: GPU 0: .*: policy grow, backing pages, no limit
//! stderr cupool\[<pid>\]: GPU 0: cuMemAlloc_v2 of 100\.00 MiB by rung grow: 1[0-9]+\.00 MiB reserved, 0 bytes live, 0 bytes wait for the GPU
//! stderr cupool\[<pid>\]: GPU 0: 1[0-9]+\.00 MiB went back to the driver
//! stderr cupool\[<pid>\]: GPU 0: cuMemAlloc_v2 of 1\.00 MiB by rung grow: 2\.00 MiB reserved, 0 bytes live, 0 bytes wait for the GPU
//! stderr cupool\[<pid>\]: GPU 0: context 0x[0-9a-f]+ has ended
//! stderr cupool\[<pid>\]: report: /.*
//! case trace
//! env CUPOOL_LOG=trace
//! env CUPOOL_BACKING=segments
//! env CUPOOL_POLICY=platform
//! stderr cupool\[<pid>\]: cupool [0-9.]+, driver for CUDA 13\.0; report to /.*
//! stderr cupool\[<pid>\]: GPU 0: context 0x[0-9a-f]+ is served
//! stderr cupool\[<pid>\]: GPU 0: .*: policy platform, backing native, no limit
//! stderr cupool\[<pid>\]: GPU 0: 100\.00 MiB at 0x[0-9a-f]+ came
//! stderr cupool\[<pid>\]: GPU 0: cuMemAlloc_v2 of 100\.00 MiB by rung grow: .*
//! stderr cupool\[<pid>\]: GPU 0: 100\.00 MiB at 0x[0-9a-f]+ went
//! stderr cupool\[<pid>\]: GPU 0: 1\.00 MiB at 0x[0-9a-f]+ came
//! stderr cupool\[<pid>\]: GPU 0: cuMemAlloc_v2 of 1\.00 MiB by rung grow: .*
//! stderr cupool\[<pid>\]: GPU 0: 1\.00 MiB at 0x[0-9a-f]+ went
//! stderr cupool\[<pid>\]: GPU 0: context 0x[0-9a-f]+ has ended
//! stderr cupool\[<pid>\]: report: /.*
#include "victim.h"

int main(void) {
  enter_device(0);
  const CUdeviceptr large = allocate(100 * MIB);
  MUST(cuMemFree(large));
  MUST(cuCtxSynchronize());
  allocate(MIB);
  MUST(cuDevicePrimaryCtxReset(0));
  return 0;
}
