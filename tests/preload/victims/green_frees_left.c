// What was freed on a stream of a green context that is destroyed goes to others without that stream, whose handle is nobody's then.
//! check c["live_blocks"]["current"] == 0 and c["allocations"] == c["frees"] and ooms == []
//! env CUSIM_MEMORY=64MiB
//! case default
//! case pages
//! env CUPOOL_BACKING=pages
//! case segments
//! env CUPOOL_BACKING=segments
//! case still_running
//! args running
//! env CUSIM_CLOCK=real
//! native skip
//! check "cuMemAllocAsync(&block, 40 * MIB, own): 0" in out and "cuMemAlloc(&block, 40 * MIB): 0" in out
#include "cusim.h"
#include "victim.h"

int main(int argc, char** argv) {
  const int is_running = argc > 1 && strcmp(argv[1], "running") == 0; /* the driver refuses then; a pool waits for what was freed */
  CUcontext primary = enter_device(0), view;
  CUstream streams[2], own;
  CUdeviceptr blocks[2] = {0, 0}, block = 0;
  MUST(cuStreamCreate(&own, CU_STREAM_NON_BLOCKING));
  CUgreenCtx green = create_green();
  MUST(cuCtxFromGreenCtx(&view, green));
  for (int i = 0; i < 2; ++i) MUST(cuGreenCtxStreamCreate(&streams[i], green, CU_STREAM_NON_BLOCKING, 0));
  MUST(cuCtxSetCurrent(view));
  for (int i = 0; i < 2; ++i) MUST(cuMemAllocAsync(&blocks[i], 20 * MIB, streams[i]));
  for (int i = 0; i < 2 && is_running; ++i) MUST(cusim_launch_spin(streams[i], 100000000));
  for (int i = 0; i < 2; ++i) MUST(cuMemsetD8Async(blocks[i], 1, 20 * MIB, streams[i]));
  for (int i = 0; i < 2; ++i) MUST(cuMemFreeAsync(blocks[i], streams[i]));
  MUST(cuCtxSetCurrent(primary));
  SAY(cuGreenCtxDestroy(green));
  if (!is_running) SAY(cuCtxSynchronize()); /* the destroy returns while the work runs; the primary waits for it */
  SAY(cuMemAllocAsync(&block, 40 * MIB, own));
  SAY(cuMemFreeAsync(block, own));
  SAY(cuMemAlloc(&block, 40 * MIB));
  SAY(cuMemFree(block));
  return 0;
}
