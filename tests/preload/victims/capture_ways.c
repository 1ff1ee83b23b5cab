// Ways into and out of a capture: to a graph that is there, with the thread's mode exchanged by the program, refused on the legacy stream, made
// invalid by the program itself. Calls and codes as natively; what was freed meanwhile waits, and is served again when the capture has ended.
//! env CUSIM_MEMORY=1GiB
//! check not ooms and c["live_blocks"]["current"] == 0 and "wrong: 0" in out
//! case to_graph
//! args to_graph
//! case to_graph_again
//! args again
//! env CUSIM_DRIVER_VERSION=13030
//! case mode_exchanged
//! args exchanged
//! case legacy_refused
//! args legacy
//! case invalidated
//! args invalidated
//! case ended_by_another_thread
//! args elsewhere
//! case replayed_after_the_free
//! args replay
#include <pthread.h>

#include "victim.h"

static CUcontext g_context;
static CUstream g_stream;
static CUgraph g_graph;
static int g_wrong;

/* What was freed is there again: two thirds of the device, twice. */
static void serve_again(void) {
  for (int i = 0; i < 2; ++i) {
    CUdeviceptr block = 0;
    g_wrong += cuMemAlloc(&block, 650 * MIB) != CUDA_SUCCESS;
    g_wrong += cuMemFree(block) != CUDA_SUCCESS;
  }
}

static CUstreamCaptureMode exchange(CUstreamCaptureMode mode) {
  MUST(cuThreadExchangeStreamCaptureMode(&mode));
  return mode;
}

/* Allocations that must grow, and frees, as natively a relaxed thread may make them. */
static void allocate_meanwhile(CUdeviceptr freed) {
  const CUstreamCaptureMode before = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
  CUdeviceptr grown = allocate(200 * MIB);
  SAY(cuMemFree(freed));
  SAY(cuMemFree(grown));
  printf("mode %d\n", exchange(before)); /* as the program left it */
}

static void* end_it(void* code) {
  MUST(cuCtxSetCurrent(g_context));
  *(int*)code = cuStreamEndCapture(g_stream, &g_graph);
  return NULL;
}

/* cuStreamBeginRecaptureToGraph, of CUDA 13.3, as a runtime finds it; the header may be older. */
typedef CUresult (*Recapture)(CUstream, CUstreamCaptureMode, CUgraph, void*, void*);

/* A capture into the graph that there is, and so many frees meanwhile that an event would be due: it would end the capture. */
static void recapture(CUdeviceptr freed, CUdeviceptr kept) {
  CUdeviceptr small[80];
  Recapture begin = NULL;
  MUST(cuGetProcAddress("cuStreamBeginRecaptureToGraph", (void**)&begin, 13030, 0, NULL));
  for (int i = 0; i < 80; ++i) small[i] = allocate(KIB);
  SAY(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  MUST(cuMemsetD8Async(kept, 3, MIB, g_stream));
  SAY(cuStreamEndCapture(g_stream, &g_graph));
  SAY(begin(g_stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, g_graph, NULL, NULL));
  MUST(cuMemsetD8Async(kept, 3, MIB, g_stream));
  const CUstreamCaptureMode before = exchange(CU_STREAM_CAPTURE_MODE_RELAXED);
  for (int i = 0; i < 80; ++i) MUST(cuMemFree(small[i]));
  SAY(cuMemFree(freed));
  exchange(before);
  SAY(cuStreamEndCapture(g_stream, &g_graph));
}

static void refuse_legacy(CUdeviceptr freed) {
  SAY(cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_RELAXED));
  SAY(cuStreamBeginCapture(CU_STREAM_LEGACY, CU_STREAM_CAPTURE_MODE_GLOBAL));
  SAY(cuStreamBeginCapture(g_stream, (CUstreamCaptureMode)77));
  SAY(cuStreamEndCapture(g_stream, &g_graph));
  MUST(cuMemFree(freed));
}

static void replay(CUdeviceptr freed, CUdeviceptr kept) {
  CUgraphExec exec = NULL;
  unsigned char back = 0;
  MUST(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemsetD8Async(kept, 66, MIB, g_stream));
  MUST(cuStreamEndCapture(g_stream, &g_graph));
  MUST(cuGraphInstantiateWithFlags(&exec, g_graph, 0));
  MUST(cuMemFree(freed));
  for (int i = 0; i < 3; ++i) {
    MUST(cuGraphLaunch(exec, g_stream));
    MUST(cuMemFree(allocate((size_t)(i + 1) * 100 * MIB)));
  }
  MUST(cuStreamSynchronize(g_stream));
  MUST(cuMemcpyDtoH(&back, kept + MIB - 1, 1));
  g_wrong += back != 66;
  MUST(cuGraphLaunch(exec, g_stream));
  MUST(cuMemFree(kept)); /* its replay may still run: natively the free waits for it */
  CUdeviceptr next = allocate(MIB);
  MUST(cuMemsetD8(next, 1, MIB));
  MUST(cuCtxSynchronize());
  MUST(cuMemcpyDtoH(&back, next, 1));
  g_wrong += back != 1;
  MUST(cuMemFree(next));
  MUST(cuGraphExecDestroy(exec));
}

int main(int argc, char** argv) {
  const char* way = argc > 1 ? argv[1] : "to_graph";
  g_context = enter_device(0);
  MUST(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr freed = allocate(400 * MIB), kept = allocate(MIB);
  if (strcmp(way, "replay") == 0) {
    replay(freed, kept);
    serve_again();
    printf("wrong: %d\n", g_wrong);
    return g_wrong != 0;
  }
  if (strcmp(way, "legacy") == 0) {
    refuse_legacy(freed);
  } else if (strcmp(way, "to_graph") == 0) {
    MUST(cuGraphCreate(&g_graph, 0));
    SAY(cuStreamBeginCaptureToGraph(g_stream, g_graph, NULL, NULL, 0, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    allocate_meanwhile(freed);
    MUST(cuMemsetD8Async(kept, 3, MIB, g_stream));
    SAY(cuStreamEndCapture(g_stream, &g_graph));
  } else if (strcmp(way, "again") == 0) {
    recapture(freed, kept);
  } else if (strcmp(way, "exchanged") == 0) {
    printf("was %d\n", exchange(CU_STREAM_CAPTURE_MODE_RELAXED));
    SAY(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    allocate_meanwhile(freed);
    SAY(cuStreamEndCapture(g_stream, &g_graph));
    printf("still %d\n", exchange(CU_STREAM_CAPTURE_MODE_GLOBAL));
  } else if (strcmp(way, "invalidated") == 0) {
    CUstreamCaptureStatus status;
    SAY(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
    SAY(cuStreamSynchronize(g_stream));
    MUST(cuStreamIsCapturing(g_stream, &status));
    printf("status %d\n", status);
    allocate_meanwhile(freed);
    SAY(cuStreamEndCapture(g_stream, &g_graph));
  } else {
    int code = -1;
    pthread_t thread;
    SAY(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    pthread_create(&thread, NULL, end_it, &code);
    pthread_join(thread, NULL);
    printf("refused %d\n", code);
    allocate_meanwhile(freed);
    SAY(cuStreamEndCapture(g_stream, &g_graph));
    SAY(cuStreamBeginCapture(g_stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    CUdeviceptr during = allocate(MIB);
    MUST(cuMemFree(during));
    pthread_create(&thread, NULL, end_it, &code);
    pthread_join(thread, NULL);
    printf("taken %d\n", code);
  }
  printf("graph %d\n", g_graph != NULL);
  serve_again();
  MUST(cuMemFree(kept));
  printf("wrong: %d\n", g_wrong);
  return g_wrong != 0;
}
