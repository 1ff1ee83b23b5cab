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
//! case freed_elsewhere_pages
//! env CUPOOL_BACKING=pages
//! args 999 elsewhere
//! case freed_elsewhere_unavailable
//! env CUPOOL_BACKING=pages
//! env CUPOOL_LIMIT=1000MiB
//! args 46 elsewhere
//! case freed_elsewhere_segments
//! env CUPOOL_BACKING=segments
//! env CUPOOL_LIMIT=1000MiB
//! args 999 elsewhere
#include <pthread.h>
#include <time.h>

#include "cusim.h"
#include "victim.h"

static const char* const kCalls[] = {
    "cuMemCreate",       "cuMemMap",          "cuMemSetAccess", "cuMemUnmap",          "cuMemRelease",     "cuMemAddressReserve",
    "cuMemAlloc_v2",     "cuMemAllocManaged", "cuMemFree_v2",   "cuMemFreeAsync",      "cuMemAllocAsync",  "cuMemAllocFromPoolAsync",
    "cuStreamCreate",    "cuEventCreate",     "cuEventRecord",  "cuCtxRecordEvent",    "cuEventQuery",     "cuEventSynchronize",
    "cuStreamWaitEvent", "cuMemGetInfo_v2",   "cuStreamQuery",  "cuStreamSynchronize", "cuCtxSynchronize", "cuMemPoolTrimTo"};
enum { kBlocks = 18 };

static CUcontext g_context;
static CUdeviceptr g_blocks[kBlocks];

static void* free_half(void* unused) {
  MUST(cuCtxSetCurrent(g_context));
  for (int i = 0; i < kBlocks; i += 2) MUST(cuMemFree(g_blocks[i]));
  return unused;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char** argv) {
  const CUresult code = argc > 1 ? (CUresult)atoi(argv[1]) : CUDA_ERROR_UNKNOWN;
  CUdeviceptr block = 0;
  pthread_t thread;
  g_context = enter_device(0);
  for (int i = 0; i < kBlocks; ++i) g_blocks[i] = allocate(50 * MIB);
  MUST(cusim_launch_spin(NULL, 1000000000ull));
  if (argc > 2) {
    MUST(pthread_create(&thread, NULL, free_half, NULL));
    MUST(pthread_join(thread, NULL));
  } else {
    free_half(NULL);
  }
  for (size_t i = 0; i < sizeof kCalls / sizeof *kCalls; ++i) cusim_fail(kCalls[i], 1, code, 1000000000);
  const double began = seconds();
  SAY(cuMemAlloc(&block, 300 * MIB));
  if (argc > 2 && seconds() - began > 0.9) printf("it took %.1f s\n", seconds() - began);
  return 0;
}
