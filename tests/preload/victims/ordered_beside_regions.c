// Stream-ordered memory of a context that cuCtxDestroy may end is the driver's where pooled memory would go with that context, as on segments. A region with one
// block in it never goes back to the driver; so where neither the limit nor the device has anything left beside it, the pool serves from what it has.
//! check c["failed_allocations"] == 0 and c["live_blocks"]["current"] == 1
//! case limit
//! env CUPOOL_BACKING=segments
//! env CUPOOL_PREALLOCATE=256MiB
//! env CUPOOL_LIMIT=256MiB
//! case device
//! env CUPOOL_BACKING=segments
//! env CUPOOL_PREALLOCATE=100%
//! case pages
//! env CUPOOL_LIMIT=256MiB
#include "cusim.h"
#include "victim.h"

enum { kBlocks = 8 };

int main(void) {
  CUcontext context;
  CUdeviceptr kept, blocks[kBlocks];
  CUstream stream;
  MUST(cuInit(0));
  MUST(create_context(&context, 0, 0));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAlloc(&kept, 1000));
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kBlocks; ++i) {
      SAY(cuMemAllocAsync(&blocks[i], 10 * MIB, stream));
      MUST(cusim_launch_fill(stream, blocks[i], 10 * MIB, (unsigned char)(i + 1), 1000));
    }
    for (int i = 0; i < kBlocks; ++i) MUST(cusim_launch_check(stream, blocks[i], 10 * MIB, (unsigned char)(i + 1), 1000));
    for (int i = 0; i < kBlocks; ++i) SAY(cuMemFreeAsync(blocks[i], stream));
    SAY(cuStreamSynchronize(stream));
  }
  return 0;
}
