// Captures that nobody ends: the thread whose own stream captures is over, a green context goes with its capturing stream, a context is destroyed or
// reset. What was freed meanwhile is served again afterwards, as the native free had given it back, and never out of memory.
//! env CUSIM_MEMORY=1GiB
//! native skip
//! check not ooms and "missed: 0" in out and c["failed_allocations"] == 0
//! case thread_over
//! env CUSIM_THREAD_STREAMS=end
//! args thread 0
//! case thread_over_thread_local
//! env CUSIM_THREAD_STREAMS=end
//! args thread 1
//! case thread_over_in_two_contexts
//! env CUSIM_THREAD_STREAMS=end
//! args thread2 0
//! case green_destroyed
//! args green 1
//! case green_ends_with_its_primary
//! args greens_primary 1
//! case destroyed
//! args destroy 1
//! case stream_destroyed
//! args stream 1
#include <pthread.h>

#include "victim.h"

static const char* g_way;
static CUstreamCaptureMode g_mode;
static CUcontext g_context, g_second;

static void begin_on(CUstream stream) { MUST(cuStreamBeginCapture(stream, g_mode)); }

static void* begin_and_go(void* unused) {
  MUST(cuCtxSetCurrent(g_context));
  begin_on(CU_STREAM_PER_THREAD);
  if (strcmp(g_way, "thread2") == 0) {
    MUST(cuCtxSetCurrent(g_second));
    begin_on(CU_STREAM_PER_THREAD);
  }
  MUST(cuMemFree(allocate(MIB)));
  return unused;
}

static CUgreenCtx begin_on_green(void) {
  CUgreenCtx green = create_green();
  CUstream stream = NULL;
  MUST(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_NON_BLOCKING, 0));
  begin_on(stream);
  return green;
}

/* Leaves a capture behind that nobody can end, and frees `block` while it is there. */
static void leave_capture(CUdeviceptr block) {
  CUstreamCaptureMode relaxed = CU_STREAM_CAPTURE_MODE_RELAXED;
  CUstream stream = NULL;
  pthread_t thread;
  if (strncmp(g_way, "thread", 6) == 0) {
    pthread_create(&thread, NULL, begin_and_go, NULL);
    MUST(cuMemFree(block));
    pthread_join(thread, NULL);
    return;
  }
  MUST(cuThreadExchangeStreamCaptureMode(&relaxed)); /* so that the calls below are none that the capture forbids */
  if (strncmp(g_way, "green", 5) == 0) {
    CUgreenCtx green = begin_on_green();
    MUST(cuMemFree(block));
    MUST(strcmp(g_way, "green") == 0 ? cuGreenCtxDestroy(green) : cuDevicePrimaryCtxReset(0));
  } else {
    MUST(cuCtxSetCurrent(g_second));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    begin_on(stream);
    MUST(cuMemFree(block));
    MUST(strcmp(g_way, "stream") == 0 ? cuStreamDestroy(stream) : cuCtxDestroy(g_second));
  }
  MUST(cuThreadExchangeStreamCaptureMode(&relaxed));
  MUST(cuDevicePrimaryCtxRetain(&g_context, 0));
  MUST(cuCtxSetCurrent(g_context));
}

int main(int argc, char** argv) {
  int missed = 0;
  g_way = argc > 1 ? argv[1] : "thread";
  g_mode = (CUstreamCaptureMode)atoi(argc > 2 ? argv[2] : "0");
  MUST(cuInit(0));
  MUST(create_context(&g_second, 0, 0));
  g_context = enter_device(0);
  leave_capture(allocate(700 * MIB));
  for (int i = 0; i < 4; ++i) {
    CUdeviceptr block = 0;
    if (cuMemAlloc(&block, 700 * MIB) != CUDA_SUCCESS) ++missed;
    else MUST(cuMemFree(block));
  }
  printf("missed: %d\n", missed);
  return missed != 0;
}
