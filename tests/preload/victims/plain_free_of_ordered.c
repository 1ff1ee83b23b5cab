// cuMemFree of memory from cuMemAllocAsync does not wait (CUDA Driver API 13.0): not for a kernel on another stream that the host releases only later, not
// where every free synchronises, and not when memory is short.
//! env CUSIM_MEMORY=1GiB
//! seconds 20
//! check c["live_blocks"]["current"] == 0 and c["failed_allocations"] == 0 and c["frees"] == 60
//! case deferred
//! case on_segments
//! env CUPOOL_BACKING=segments
//! case synchronous
//! env CUPOOL_FREE=sync
//! case old_driver
//! env CUSIM_DRIVER_VERSION=12020
//! stderr* cupool\[<pid>\]: warning: .*cuCtxRecordEvent.*
//! case preallocated
//! env CUPOOL_POLICY=preallocate
#include "cusim.h"
#include "victim.h"

int main(void) {
  enter_device(0);
  CUstream busy, stream;
  static volatile uint32_t flag;
  CUdeviceptr blocks[6];
  MUST(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cusim_launch_wait_host(busy, &flag));
  for (int round = 0; round < 10; ++round) {
    for (int i = 0; i < 6; ++i) {
      MUST(cuMemAllocAsync(&blocks[i], 150 * MIB, stream));
      MUST(cusim_launch_fill(stream, blocks[i], MIB, (uint8_t)(16 * round + i), 0));
    }
    for (int i = 0; i < 6; ++i) MUST(cusim_launch_check(stream, blocks[i], MIB, (uint8_t)(16 * round + i), 0));
    MUST(cuStreamSynchronize(stream));
    for (int i = 0; i < 6; ++i) MUST(cuMemFree(blocks[i]));
  }
  flag = 1;
  MUST(cuCtxSynchronize());
  printf("mismatched: %llu\n", (unsigned long long)cusim_mismatched_bytes());
  return 0;
}
