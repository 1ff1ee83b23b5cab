// Stream-ordered calls, legal and illegal, answer as the driver's; the blocks come from the pool.
//! check {event[-1] for event in d["timeline"]["events"] if event[1] == "allocate"} == {1}
//! case default
//! check c["allocations"] == 8 and c["live_blocks"]["current"] == 0
//! check report["data_quality"]["unpooled_apis_seen"] == []
//! check c["driver_calls"]["cuEventRecord"] == 6 and c["rung_grow"] == 5 and c["lanes_drained"] == 2 and c["driver_calls"].get("cuStreamWaitEvent", 0) == 0
//! case preallocated
//! env CUPOOL_BACKING=segments
//! env CUPOOL_POLICY=preallocate
//! env CUPOOL_PREALLOCATE=64MiB
//! check c["allocations"] == 8 and c["driver_calls"]["cuMemAlloc_v2"] == 1 and report["data_quality"]["unpooled_apis_seen"] == ["cuMemAllocAsync"]
#include "cusim.h"
#include "victim.h"

int main(void) {
  enter_device(0);
  CUcontext home = NULL;
  CUcontext other = NULL;
  CUstream first;
  CUstream second;
  CUstream elsewhere;
  CUdeviceptr block = 0;
  CUdeviceptr again = 0;
  MUST(cuCtxGetCurrent(&home));
  MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  SAY(cuMemAllocAsync(NULL, MIB, first));
  SAY(cuMemAllocAsync(&block, 0, first));
  SAY(cuMemAllocAsync(&block, MIB, first));
  printf("aligned to 512: %d\n", block % 512 == 0);
  MUST(cusim_launch_fill(first, block, MIB, 1, 1000));
  MUST(cusim_launch_check(first, block, MIB, 1, 1000));
  SAY(cuMemFreeAsync(block, first));
  SAY(cuMemAllocAsync(&again, MIB, second)); /* the first stream may still be reading */
  MUST(cusim_launch_fill(second, again, MIB, 2, 0));
  MUST(cusim_launch_check(second, again, MIB, 2, 0));
  SAY(cuMemFreeAsync(again, second));
  for (int special = 0; special < 2; ++special) {
    CUstream stream = special ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    SAY(cuMemAllocAsync(&block, 4096, stream));
    SAY(cuMemFreeAsync(block, stream));
  }
  SAY(cuMemAllocAsync(&block, 4096, 0));
  SAY(cuMemFreeAsync(block, 0));

  /* A stream that ends while its work runs; a new one may get its handle. */
  SAY(cuMemAllocAsync(&block, 2 * MIB, second));
  MUST(cusim_launch_fill(second, block, 2 * MIB, 3, 50000));
  MUST(cusim_launch_check(second, block, 2 * MIB, 3, 50000));
  SAY(cuMemFreeAsync(block, second));
  SAY(cuStreamDestroy(second));
  MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  SAY(cuMemAllocAsync(&again, 2 * MIB, second));
  MUST(cusim_launch_fill(second, again, 2 * MIB, 4, 0));
  SAY(cuMemFreeAsync(again, second));

  /* A stream of another context: served from there. */
  MUST(cuCtxCreate_v2(&other, 0, 0));
  MUST(cuStreamCreate(&elsewhere, CU_STREAM_NON_BLOCKING));
  MUST(cuCtxPopCurrent(&other));
  MUST(cuCtxSetCurrent(home));
  CUresult result = cuMemAllocAsync(&block, 4096, elsewhere);
  printf("a stream of another context: %d\n", result);
  if (result == CUDA_SUCCESS) SAY(cuMemFreeAsync(block, elsewhere));
  SAY(cuCtxSynchronize());
  printf("mismatched: %llu\n", (unsigned long long)cusim_mismatched_bytes());
  return 0;
}
