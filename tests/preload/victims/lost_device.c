// The GPU falls off the bus while work is pending: every call answers so from then on. An allocation does not wait without end for what this thread freed, and answers what the driver says.
//! native same
//! env CUSIM_CLOCK=real
//! env CUSIM_MEMORY=1GiB
//! args 999
//! stderr* (cupool\[<pid>\]: .*|  .*)
//! ooms any
//! case pages
//! env CUPOOL_BACKING=pages
//! case pages_with_limit
//! env CUPOOL_BACKING=pages
//! env CUPOOL_LIMIT=1000MiB
//! case segments
//! env CUPOOL_BACKING=segments
//! case segments_with_limit
//! env CUPOOL_BACKING=segments
//! env CUPOOL_LIMIT=1000MiB
#include "cusim.h"
#include "victim.h"

static const char* const kCalls[] = {
    "cuMemCreate",       "cuMemMap",          "cuMemSetAccess", "cuMemUnmap",          "cuMemRelease",     "cuMemAddressReserve",
    "cuMemAlloc_v2",     "cuMemAllocManaged", "cuMemFree_v2",   "cuMemFreeAsync",      "cuMemAllocAsync",  "cuMemAllocFromPoolAsync",
    "cuStreamCreate",    "cuEventCreate",     "cuEventRecord",  "cuCtxRecordEvent",    "cuEventQuery",     "cuEventSynchronize",
    "cuStreamWaitEvent", "cuMemGetInfo_v2",   "cuStreamQuery",  "cuStreamSynchronize", "cuCtxSynchronize", "cuMemPoolTrimTo"};
enum { kBlocks = 18 };

int main(int argc, char** argv) {
  const CUresult code = argc > 1 ? (CUresult)atoi(argv[1]) : CUDA_ERROR_UNKNOWN;
  CUdeviceptr blocks[kBlocks], block = 0;
  enter_device(0);
  for (int i = 0; i < kBlocks; ++i) blocks[i] = allocate(50 * MIB);
  MUST(cusim_launch_spin(NULL, 1000000000ull));
  for (int i = 0; i < kBlocks; i += 2) MUST(cuMemFree(blocks[i]));
  for (size_t i = 0; i < sizeof kCalls / sizeof *kCalls; ++i) cusim_fail(kCalls[i], 1, code, 1000000000);
  SAY(cuMemAlloc(&block, 300 * MIB));
  return 0;
}
