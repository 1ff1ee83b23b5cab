// On a device that is nearly full one stream frees many blocks, and plain calls or another stream want that memory while the first stream has work that waits for the
// host: what the program has waited for is there at once; what it has not another stream gets behind an event of the frees, and nobody waits on the host.
//! env CUSIM_MEMORY=64MiB
//! check c["rung_poll"] == 0 and c["failed_allocations"] == 0
//! check "served: 22, mismatched: 0" in out
//! case plain_after_a_wait_for_all
//! args context plain
//! case plain_after_a_wait_for_the_stream
//! args stream plain
//! case plain_after_a_question
//! args query plain
//! case another_stream_after_a_wait
//! args context other
//! case another_stream_behind_the_frees
//! args none other
//! check c["driver_calls"]["cuStreamWaitEvent"] >= 1
#include "cusim.h"
#include "victim.h"

enum { kBlocks = 22 };

int main(int argc, char** argv) {
  const char* const waits = argc > 1 ? argv[1] : "context";
  const int is_plain = argc < 3 || strcmp(argv[2], "plain") == 0;
  static volatile uint32_t flag;
  CUstream first, other;
  CUdeviceptr blocks[kBlocks], block = 0;
  enter_device(0);
  MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  if (!is_plain && strcmp(waits, "none") == 0) { /* else it is seen for the first time afterwards */
    MUST(cuMemAllocAsync(&block, MIB, other));
    MUST(cuMemFreeAsync(block, other));
  }
  for (int i = 0; i < kBlocks; ++i) {
    MUST(cuMemAllocAsync(&blocks[i], 2 * MIB, first));
    MUST(cusim_launch_fill(first, blocks[i], 4096, 7, 1000));
  }
  if (strcmp(waits, "none") == 0) MUST(cusim_launch_wait_host(first, &flag));
  for (int i = 0; i < kBlocks; ++i) {
    MUST(cusim_launch_check(first, blocks[i], 4096, 7, 1000));
    MUST(cuMemFreeAsync(blocks[i], first));
  }
  if (strcmp(waits, "context") == 0) MUST(cuCtxSynchronize());
  if (strcmp(waits, "stream") == 0) MUST(cuStreamSynchronize(first));
  while (strcmp(waits, "query") == 0 && cuStreamQuery(first) != CUDA_SUCCESS) cusim_advance_ns(1000);
  if (strcmp(waits, "none") != 0) MUST(cusim_launch_wait_host(first, &flag));
  int served = 0;
  for (int i = 0; i < kBlocks; ++i) {
    const CUresult code = is_plain ? cuMemAlloc(&blocks[i], 2 * MIB) : cuMemAllocAsync(&blocks[i], 2 * MIB, other);
    if (code != CUDA_SUCCESS) break;
    ++served;
    MUST(cusim_launch_fill(other, blocks[i], 4096, 9, 1000));
  }
  flag = 1;
  MUST(cuCtxSynchronize());
  printf("served: %d, mismatched: %llu\n", served, (unsigned long long)cusim_mismatched_bytes());
  return 0;
}
