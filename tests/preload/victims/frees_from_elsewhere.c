// A stream-ordered block comes from the pool of its stream's context, and what a free gives back is that stream's again, whatever context is current in the
// thread: another device's, or none. Before CUDA 12.5 no later event would cover what is freed, and a job that never frees plainly would lose it.
//! stderr* cupool\[<pid>\]: warning: .*cuCtxRecordEvent.*
//! env CUSIM_DEVICES=2
//! env CUSIM_MEMORY=4GiB
//! check c["reserved_bytes"]["peak"] <= 256 << 20 and c["failed_allocations"] == 0 and c["live_bytes"]["current"] == 0
//! check c["allocations"] == 100 and report["data_quality"]["unpooled_apis_seen"] == []
//! case new
//! env CUSIM_DRIVER_VERSION=13000
//! case old
//! env CUSIM_DRIVER_VERSION=12020
//! case old_on_pages
//! env CUSIM_DRIVER_VERSION=12020
//! env CUPOOL_BACKING=pages
#include "victim.h"

enum { kRounds = 100 };

int main(void) {
  CUcontext here = enter_device(0), there, current, elsewhere[2];
  CUstream stream;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuDevicePrimaryCtxRetain(&there, 1));
  elsewhere[0] = NULL;
  elsewhere[1] = there;
  for (int round = 0; round < kRounds; ++round) {
    CUdeviceptr block = 0;
    CUcontext allocates[] = {here, NULL, there};
    MUST(cuCtxSetCurrent(allocates[round % 3]));
    MUST(cuMemAllocAsync(&block, 64 * MIB, stream));
    MUST(cuCtxGetCurrent(&current));
    if (current != allocates[round % 3]) printf("round %d: another context is current behind the allocation\n", round);
    MUST(cuCtxSetCurrent(here));
    MUST(cuMemsetD8Async(block, round, MIB, stream));
    MUST(cuCtxSetCurrent(elsewhere[round % 2]));
    MUST(cuMemFreeAsync(block, stream));
    MUST(cuCtxGetCurrent(&current));
    if (current != elsewhere[round % 2]) printf("round %d: another context is current\n", round);
  }
  MUST(cuCtxSetCurrent(here));
  SAY(cuStreamSynchronize(stream));
  return 0;
}
