// Two devices that cannot reach each other: what cuCtxEnablePeerAccess and cuCtxDisablePeerAccess answer to right and wrong arguments, and while a
// stream captures, is what the driver answers, and leaves the capture as the driver leaves it.
//! env CUSIM_DEVICES=2
//! env CUSIM_PEERS=0
//! case default
//! case segments
//! env CUPOOL_BACKING=segments
//! case async
//! env CUPOOL_POLICY=async
#include "cusim.h"
#include "victim.h"

static CUcontext g_contexts[2];
static CUdeviceptr g_blocks[2];

int main(void) {
  CUstream stream = NULL;
  CUgraph graph = NULL;
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  MUST(cuInit(0));
  for (int device = 0; device < 2; ++device) {
    MUST(cuDevicePrimaryCtxRetain(&g_contexts[device], device));
    MUST(cuCtxSetCurrent(g_contexts[device]));
    MUST(cuMemAlloc(&g_blocks[device], MIB));
  }
  SAY(cuCtxEnablePeerAccess(g_contexts[0], 0));
  SAY(cuCtxEnablePeerAccess(g_contexts[0], 7));
  SAY(cuCtxEnablePeerAccess(g_contexts[1], 0));
  SAY(cuCtxEnablePeerAccess(NULL, 0));
  SAY(cuCtxDisablePeerAccess(g_contexts[0]));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  SAY(cuCtxEnablePeerAccess(g_contexts[0], 0));
  MUST(cuStreamIsCapturing(stream, &status));
  printf("captures: %d\n", (int)status);
  SAY(cuStreamEndCapture(stream, &graph));
  MUST(cuCtxSetCurrent(NULL));
  SAY(cuCtxEnablePeerAccess(g_contexts[0], 0));
  for (int device = 0; device < 2; ++device) {
    MUST(cuCtxSetCurrent(g_contexts[device]));
    MUST(cuMemFree(g_blocks[device]));
  }
  return 0;
}
