// Built for per-thread default streams: every call below is its _ptsz or _ptds variant. The pool takes a null stream as the calling
// thread's own, orders reuse by it, and frees from any thread.
//! check c["live_blocks"]["current"] == 0 and c["allocations"] == c["frees"]
//! case plain
//! args plain
//! check c["foreign_frees"] == 0 and c["allocations"] == 200
//! case stream_ordered
//! args async
//! case mixed_frees
//! args mixed
//! case captured
//! args capture
#define CUDA_API_PER_THREAD_DEFAULT_STREAM
#include <pthread.h>

#include "victim.h"

enum { kThreads = 4, kRounds = 50, kBytes = 300000 };
static const char* g_way;
static CUcontext g_context;
static int g_wrong;

static CUdeviceptr take(CUstream stream) {
  CUdeviceptr address = 0;
  if (strcmp(g_way, "plain") == 0) return allocate(kBytes);
  MUST(cuMemAllocAsync(&address, kBytes, stream));
  return address;
}

static void give(CUdeviceptr address, CUstream stream, int round) {
  if (strcmp(g_way, "plain") == 0 || (strcmp(g_way, "mixed") == 0 && round % 2)) MUST(cuMemFree(address));
  else MUST(cuMemFreeAsync(address, stream));
}

static void* work(void* argument) {
  unsigned char mark = (unsigned char)(intptr_t)argument, back[2] = {0, 0};
  MUST(cuCtxSetCurrent(g_context));
  for (int round = 0; round < kRounds; ++round) {
    CUstream stream = round % 3 == 0 ? CU_STREAM_PER_THREAD : NULL;
    CUdeviceptr address = take(stream);
    MUST(cuMemsetD8Async(address, mark, kBytes, stream));
    MUST(cuMemcpyDtoHAsync(&back[0], address, 1, stream));
    MUST(cuMemcpyDtoHAsync(&back[1], address + kBytes - 1, 1, stream));
    MUST(cuStreamSynchronize(stream));
    if (back[0] != mark || back[1] != mark) __atomic_fetch_add(&g_wrong, 1, __ATOMIC_RELAXED);
    give(address, stream, round);
  }
  return NULL;
}

static void capture_own_stream(void) {
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUdeviceptr inside = 0, outside = allocate(kBytes);
  SAY(cuStreamBeginCapture(CU_STREAM_PER_THREAD, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  SAY(cuMemAllocAsync(&inside, kBytes, NULL));
  SAY(cuMemsetD8Async(inside, 9, kBytes, NULL));
  SAY(cuMemcpyDtoDAsync(outside, inside, 1, NULL));
  SAY(cuMemFreeAsync(inside, NULL));
  SAY(cuStreamEndCapture(NULL, &graph));
  SAY(cuGraphInstantiateWithFlags(&exec, graph, 0));
  SAY(cuGraphLaunch(exec, NULL));
  SAY(cuStreamSynchronize(NULL));
  unsigned char back = 0;
  MUST(cuMemcpyDtoH(&back, outside, 1));
  printf("graph wrote %d\n", back);
  SAY(cuGraphExecDestroy(exec));
  SAY(cuGraphDestroy(graph));
  MUST(cuMemFree(outside));
}

int main(int argc, char** argv) {
  g_way = argc > 1 ? argv[1] : "plain";
  g_context = enter_device(0);
  if (strcmp(g_way, "capture") == 0) {
    capture_own_stream();
    return 0;
  }
  pthread_t threads[kThreads];
  for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, work, (void*)(intptr_t)(i + 1));
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  MUST(cuCtxSynchronize());
  printf("wrong: %d\n", g_wrong);
  return g_wrong != 0;
}
