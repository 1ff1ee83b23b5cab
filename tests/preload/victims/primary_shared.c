// Threads that know nothing of each other retain and release one primary context around their work, so that it ends and comes again at any
// moment, also while another of them is in the middle of its own retain or release. Each finds its memory whole as long as it holds the context.
//! check c["live_blocks"]["current"] == 0 and sim["devices"][0]["used_bytes"] == 0 and c["allocations"] >= 40
//! case retain_and_release
//! args plain
//! case stream_ordered
//! args async
//! case with_green_contexts
//! args green
//! case released_while_retained
//! args meeting
#include <pthread.h>
#include <sched.h>

#include "cusim.h"
#include "victim.h"

enum { kThreads = 3, kRounds = 40, kBytes = 70000 };
static const char* g_way;
static int g_wrong;

static void use_memory(unsigned char mark) {
  const int ordered = strcmp(g_way, "async") == 0;
  CUdeviceptr blocks[2] = {0, 0};
  unsigned char back[2] = {0, 0};
  for (int i = 0; i < 2; ++i) {
    if (ordered) MUST(cuMemAllocAsync(&blocks[i], kBytes, CU_STREAM_PER_THREAD));
    else blocks[i] = allocate(kBytes);
    MUST(cuMemsetD8Async(blocks[i], mark, kBytes, CU_STREAM_PER_THREAD));
  }
  for (int i = 0; i < 2; ++i) MUST(cuMemcpyDtoHAsync(&back[i], blocks[i] + kBytes - 1, 1, CU_STREAM_PER_THREAD));
  MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  if (back[0] != mark || back[1] != mark) __atomic_fetch_add(&g_wrong, 1, __ATOMIC_RELAXED);
  for (int i = 0; i < 2; ++i) MUST(ordered ? cuMemFreeAsync(blocks[i], CU_STREAM_PER_THREAD) : cuMemFree(blocks[i]));
}

static unsigned g_flag;
static CUcontext g_context;

/* Its release waits in the driver for work that waits for the host; the others come with theirs meanwhile. */
static void* release_last(void* unused) {
  MUST(cuCtxSetCurrent(NULL));
  MUST(cuDevicePrimaryCtxRelease(0));
  return unused;
}

static void* retain_meanwhile(void* unused) {
  CUcontext context = NULL;
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  use_memory(7);
  MUST(cuCtxSetCurrent(NULL));
  MUST(cuDevicePrimaryCtxRelease(0));
  return unused;
}

static void meet(void) {
  for (int round = 0; round < 10; ++round) {
    pthread_t threads[3];
    CUstream stream;
    MUST(cuDevicePrimaryCtxRetain(&g_context, 0));
    MUST(cuCtxSetCurrent(g_context));
    MUST(cuMemFree(allocate(3 * kBytes)));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    use_memory(3);
    allocate(kBytes); /* ends with the context */
    __atomic_store_n(&g_flag, 0, __ATOMIC_RELEASE);
    MUST(cusim_launch_wait_host(stream, &g_flag));
    MUST(cuCtxSetCurrent(NULL));
    uint64_t before = cusim_calls("cuDevicePrimaryCtxRelease_v2");
    pthread_create(&threads[0], NULL, release_last, NULL);
    while (cusim_calls("cuDevicePrimaryCtxRelease_v2") == before) sched_yield(); /* it is in the driver */
    for (int i = 1; i < 3; ++i) pthread_create(&threads[i], NULL, retain_meanwhile, NULL);
    for (int i = 0; i < 100; ++i) sched_yield();
    __atomic_store_n(&g_flag, 1, __ATOMIC_RELEASE);
    for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
  }
}

static void* work(void* argument) {
  for (int round = 0; round < kRounds; ++round) {
    CUcontext context = NULL;
    CUgreenCtx green = NULL;
    if (strcmp(g_way, "green") == 0) {
      green = create_green();
      MUST(cuCtxFromGreenCtx(&context, green));
    } else {
      MUST(cuDevicePrimaryCtxRetain(&context, 0));
    }
    MUST(cuCtxSetCurrent(context));
    use_memory((unsigned char)((intptr_t)argument * 50 + round % 50));
    MUST(cuCtxSetCurrent(NULL));
    if (green != NULL) MUST(cuGreenCtxDestroy(green));
    else MUST(cuDevicePrimaryCtxRelease(0));
  }
  return NULL;
}

int main(int argc, char** argv) {
  g_way = argc > 1 ? argv[1] : "plain";
  pthread_t threads[kThreads];
  MUST(cuInit(0));
  if (strcmp(g_way, "meeting") == 0) {
    meet();
    printf("wrong: %d\n", g_wrong);
    return g_wrong != 0;
  }
  for (intptr_t i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, work, (void*)(i + 1));
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  printf("wrong: %d\n", g_wrong);
  return g_wrong != 0;
}
