// SIGKILL in the middle of the work of four threads: the trace is whole up to that moment, but for what it says it dropped.
//! native skip
//! env CUPOOL_TRACE=t
//! env CUPOOL_FREE=immediate
//! signal SIGKILL
//! report absent
//! page left
//! check trace("t").state == "open" and len(moves("t")) + trace("t").dropped >= 2 * int(out)
//! check all(e.requested_bytes == 4096 for e in events("t") if e.kind == "allocate")
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "victim.h"

enum { kThreads = 4, kPairs = 60000 };
static atomic_long pairs;
static CUcontext context;

static void* work(void* unused) {
  MUST(cuCtxSetCurrent(context));
  for (;;) {
    MUST(cuMemFree(allocate(4096)));
    if (atomic_fetch_add(&pairs, 1) + 1 == kPairs) {
      printf("%d\n", kPairs);
      fflush(stdout);
      raise(SIGKILL);
    }
  }
  return unused;
}

int main(void) {
  pthread_t threads[kThreads];
  context = enter_device(0);
  for (int i = 0; i < kThreads; ++i) pthread_create(&threads[i], NULL, work, NULL);
  for (int i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
  return 98;
}
