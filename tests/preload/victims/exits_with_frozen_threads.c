// main returns while every other thread is stopped for good in the middle of an allocation or a free: very likely one of them holds the lock of
// the device. The end comes soon, and leaves a valid report or, where that lock cannot be had, one without that device.
//! env CUPOOL_TIMELINE=64
//! seconds 12
//! native skip
//! misuse
//! exit 3
//! check report["process"]["exit"]["code"] == 3
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "victim.h"

static CUcontext context;
static atomic_int rounds, frozen;

static void freeze(int unused) {
  (void)unused;
  atomic_fetch_add(&frozen, 1);
  for (;;) pause();
}

static void* churn(void* unused) {
  MUST(cuCtxSetCurrent(context));
  for (CUdeviceptr address = 0; cuMemAlloc(&address, 64 * KIB) == CUDA_SUCCESS; atomic_fetch_add(&rounds, 1)) cuMemFree(address);
  return unused;
}

int main(void) {
  pthread_t threads[4];
  signal(SIGUSR1, freeze);
  context = enter_device(0);
  for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, churn, NULL);
  while (atomic_load(&rounds) < 5000) sched_yield();
  for (int i = 0; i < 4; ++i) pthread_kill(threads[i], SIGUSR1);
  while (atomic_load(&frozen) < 4) sched_yield();
  return 3;
}
