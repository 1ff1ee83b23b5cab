// main returns while every other thread is stopped for good in the middle of an allocation or a free: very likely one of them holds the lock of
// the device. The end comes soon, and leaves a valid report or, where that lock cannot be had, one without that device.
//! env CUPOOL_TIMELINE=64
//! seconds 12
//! native skip
//! misuse
//! exit 3
//! check report["process"]["exit"]["code"] == 3
//! case default
//! case in_the_driver
//! args driver
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "victim.h"

enum { ROUNDS = 1000 };
static CUcontext context;
static atomic_int busy,
    frozen; /* `busy`: threads that have begun long ago. Their first calls take the loader's lock, without which no process ends */

static void freeze(int unused) {
  (void)unused;
  atomic_fetch_add(&frozen, 1);
  for (;;) pause();
}

/* Hardly ever out of the driver, and so very likely with its lock. */
static void* ask(void* unused) {
  size_t free_bytes, total;
  CUdeviceptr address = 0;
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemAlloc(&address, 64 * KIB));
  CUevent event;
  for (int round = 1; cuEventCreate(&event, 0) == CUDA_SUCCESS; ++round) {
    MUST(cuMemGetInfo(&free_bytes, &total));
    MUST(cuEventDestroy(event));
    if (round == ROUNDS) atomic_fetch_add(&busy, 1);
  }
  return unused;
}

static void* churn(void* unused) {
  MUST(cuCtxSetCurrent(context));
  CUdeviceptr address = 0;
  for (int round = 1; cuMemAlloc(&address, 64 * KIB) == CUDA_SUCCESS; ++round) {
    MUST(cuMemFree(address));
    if (round == ROUNDS) atomic_fetch_add(&busy, 1);
  }
  return unused;
}

int main(int argc, char** argv) {
  pthread_t threads[4];
  signal(SIGUSR1, freeze);
  context = enter_device(0);
  for (int i = 0; i < 4; ++i) pthread_create(&threads[i], NULL, argc > 1 && strcmp(argv[1], "driver") == 0 ? ask : churn, NULL);
  while (atomic_load(&busy) < 4) sched_yield();
  for (int i = 0; i < 4; ++i) pthread_kill(threads[i], SIGUSR1);
  while (atomic_load(&frozen) < 4) sched_yield();
  return 3;
}
