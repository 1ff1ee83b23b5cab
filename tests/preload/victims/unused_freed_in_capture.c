// While a stream captures, memory from cuMemAllocAsync whose stream was waited for is freed by cuMemFree, which waits for nothing: on a device that is full
// the next allocation has it at once, where the capture's mode lets the free pass.
//! env CUSIM_MEMORY=64MiB
//! check c["live_blocks"]["current"] == 0
//! case plain
//! args plain
//! case in_order
//! args order
//! case before_the_capture
//! args plain before
//! case segments
//! args plain
//! env CUPOOL_BACKING=segments
//! case async
//! args plain
//! env CUPOOL_POLICY=async
#include "cusim.h"
#include "victim.h"

int main(int argc, char** argv) {
  const int is_plain = argc < 2 || strcmp(argv[1], "plain") == 0;
  CUstream stream, capturing;
  CUdeviceptr block = 0, next = 0;
  CUgraph graph = NULL;
  enter_device(0);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING));
  if (argc > 2) MUST(cuMemAllocAsync(&block, 40 * MIB, stream));
  MUST(cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  MUST(cuThreadExchangeStreamCaptureMode(&mode));
  if (argc <= 2) MUST(cuMemAllocAsync(&block, 40 * MIB, stream));
  MUST(cusim_launch_fill(stream, block, MIB, 5, 1000));
  MUST(cuStreamSynchronize(stream));
  SAY(cuMemFree(block));
  SAY(is_plain ? cuMemAlloc(&next, 40 * MIB) : cuMemAllocAsync(&next, 40 * MIB, stream));
  MUST(cusim_launch_fill(stream, next, MIB, 6, 1000));
  SAY(cuStreamSynchronize(stream));
  SAY(cuStreamEndCapture(capturing, &graph));
  SAY(cuMemFree(next));
  return 0;
}
