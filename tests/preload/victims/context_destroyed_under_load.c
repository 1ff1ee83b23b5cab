// A context is destroyed while other threads allocate and free in it: each call succeeds or says that there is no context any more, none hangs,
// and a second context of the device, busy all the while, loses nothing.
//! native skip
//! misuse
//! check all("a current context that is destroyed" in s or "not allocated" in s for s in sim["violations"])
//! check not ooms and "unexpected: 0" in out and "damaged: 0" in out
//! check c["live_blocks"]["current"] == 0 and sim["devices"][0]["used_bytes"] == c["reserved_bytes"]["current"]
//! case plain
//! args plain
//! case stream_ordered
//! args async
//! case synchronous_frees
//! env CUPOOL_FREE=sync
//! args plain
#include <pthread.h>
#include <sched.h>

#include "victim.h"

enum { kThreads = 3, kRounds = 3, kBytes = 20000 };
static const char* g_way;
static CUcontext g_doomed, g_kept;
static int g_working, g_unexpected, g_damaged, g_stop;

static int is_end(int code) { return code == CUDA_ERROR_CONTEXT_IS_DESTROYED || code == CUDA_ERROR_INVALID_CONTEXT; }

static void* work_in_doomed(void* unused) {
  const int ordered = strcmp(g_way, "async") == 0;
  if (cuCtxSetCurrent(g_doomed) != CUDA_SUCCESS) return unused;
  for (int i = 0;; ++i) {
    CUdeviceptr block = 0;
    int code = ordered ? cuMemAllocAsync(&block, kBytes, CU_STREAM_PER_THREAD) : cuMemAlloc(&block, (size_t)(i % 40 + 1) * kBytes);
    if (code == CUDA_SUCCESS) {
      if (i == 5) __atomic_fetch_add(&g_working, 1, __ATOMIC_RELEASE);
      code = ordered ? cuMemFreeAsync(block, CU_STREAM_PER_THREAD) : cuMemFree(block);
      if (code == CUDA_ERROR_INVALID_VALUE) return unused; /* it went with the context in between */
    }
    if (code == CUDA_SUCCESS) continue;
    if (!is_end(code)) printf("code %d\n", code), __atomic_fetch_add(&g_unexpected, 1, __ATOMIC_RELAXED);
    if (ordered && block != 0) { /* the context ended between the two calls, and the memory, which is a pool's, did not */
      MUST(cuCtxSetCurrent(g_kept));
      MUST(cuMemFree(block));
    }
    return unused;
  }
}

static void* work_beside(void* unused) {
  MUST(cuCtxSetCurrent(g_kept));
  while (!__atomic_load_n(&g_stop, __ATOMIC_ACQUIRE)) {
    unsigned char back = 0;
    CUdeviceptr block = allocate(kBytes);
    MUST(cuMemsetD8(block, 5, kBytes));
    MUST(cuMemcpyDtoH(&back, block + kBytes - 1, 1));
    if (back != 5) __atomic_fetch_add(&g_damaged, 1, __ATOMIC_RELAXED);
    MUST(cuMemFree(block));
  }
  return unused;
}

int main(int argc, char** argv) {
  g_way = argc > 1 ? argv[1] : "plain";
  g_kept = enter_device(0);
  pthread_t beside, threads[kThreads];
  pthread_create(&beside, NULL, work_beside, NULL);
  for (int round = 0; round < kRounds; ++round) {
    __atomic_store_n(&g_working, 0, __ATOMIC_RELEASE);
    MUST(create_context(&g_doomed, 0, 0));
    for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, work_in_doomed, NULL);
    while (__atomic_load_n(&g_working, __ATOMIC_ACQUIRE) != kThreads) sched_yield();
    MUST(cuCtxDestroy(g_doomed));
    for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  }
  __atomic_store_n(&g_stop, 1, __ATOMIC_RELEASE);
  pthread_join(beside, NULL);
  printf("unexpected: %d\ndamaged: %d\n", g_unexpected, g_damaged);
  return 0;
}
