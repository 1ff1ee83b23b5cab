// A stream of a green context that is destroyed is refused from then on, also where a thread keeps blocks for it: what was allocated on it is
// freed in other ways.
//! misuse
//! check c["live_blocks"]["current"] == 0 and c["allocations"] == c["frees"]
#include "victim.h"

int main(void) {
  CUcontext primary = enter_device(0), view;
  CUgreenCtx green = create_green();
  CUstream stream;
  CUdeviceptr left = 0, block = 0;
  MUST(cuCtxFromGreenCtx(&view, green));
  MUST(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  MUST(cuCtxSetCurrent(view));
  MUST(cuMemAllocAsync(&left, 8 * KIB, stream));
  for (int i = 0; i < 6; ++i) {
    MUST(cuMemAllocAsync(&block, 8 * KIB, stream));
    MUST(cuMemFreeAsync(block, stream));
  }
  MUST(cuStreamSynchronize(stream));
  MUST(cuCtxSetCurrent(primary));
  SAY(cuGreenCtxDestroy(green));
  SAY(cuMemAllocAsync(&block, 8 * KIB, stream));
  SAY(cuMemFreeAsync(left, stream));
  SAY(cuMemFree(left));
  return 0;
}
