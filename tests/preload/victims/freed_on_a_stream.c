// Blocks of plain calls that are freed on a stream, whose work is waited for, while another stream's kernel waits for the host: the next one has their memory, as natively.
//! native same
//! env CUSIM_MEMORY=256MiB
//! case pages
//! env CUPOOL_BACKING=pages
//! args 1
//! case pages_many
//! env CUPOOL_BACKING=pages
//! args 50
//! case segments
//! env CUPOOL_BACKING=segments
//! args 1
//! case segments_many
//! env CUPOOL_BACKING=segments
//! args 50
//! case async
//! env CUPOOL_POLICY=async
//! args 1
//! case async_many
//! env CUPOOL_POLICY=async
//! args 50
//! case async_both
//! env CUPOOL_POLICY=async
//! args 1 both
#include "cusim.h"
#include "victim.h"

enum { kTurns = 12, kMost = 50 };

int main(int argc, char** argv) {
  const int count = atoi(argv[1]);
  enter_device(0);
  CUstream busy = NULL, stream = NULL;
  volatile uint32_t flag = 0;
  MUST(cuStreamCreate(&busy, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cusim_launch_wait_host(busy, &flag));
  int refused = 0;
  for (int turn = 0; turn < kTurns && refused == 0; ++turn) {
    CUdeviceptr blocks[kMost] = {0};
    const size_t bytes = 150 * MIB / count;
    for (int i = 0; i < count; ++i) refused += cuMemAlloc(&blocks[i], bytes) != CUDA_SUCCESS;
    for (int i = 0; i < count && refused == 0; ++i) {
      MUST(cusim_launch_fill(stream, blocks[i], bytes, (uint8_t)turn, 1000));
      MUST(cuMemFreeAsync(blocks[i], stream));
    }
    MUST(cuStreamSynchronize(stream));
    if (argc <= 2 || refused != 0) continue;
    refused += cuMemAllocAsync(&blocks[0], bytes, stream) != CUDA_SUCCESS;
    if (refused == 0) MUST(cuMemFreeAsync(blocks[0], stream));
    MUST(cuStreamSynchronize(stream));
  }
  printf("%d refused\n", refused);
  flag = 1;
  MUST(cuCtxSynchronize());
  return 0;
}
