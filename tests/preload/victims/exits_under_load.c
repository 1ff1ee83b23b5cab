// main returns while threads allocate and free: no crash, no hang, and a report that is whole.
//! misuse
//! env CUPOOL_TIMELINE=64
//! check c["allocations"] >= 400 and c["allocations"] - c["frees"] == c["live_blocks"]["current"] <= 4
#include <pthread.h>
#include <stdatomic.h>

#include "victim.h"

static CUcontext context;
static atomic_int rounds;

static void* churn(void* unused) {
  cuCtxSetCurrent(context);
  CUdeviceptr address = 0;
  while (cuMemAlloc(&address, 100 * KIB) == CUDA_SUCCESS) {  // the driver refuses once it has been shut down
    cuMemFree(address);
    atomic_fetch_add(&rounds, 1);
  }
  return unused;
}

int main(void) {
  context = enter_device(0);
  pthread_t thread;
  for (int i = 0; i < 4; ++i) pthread_create(&thread, NULL, churn, NULL);
  while (atomic_load(&rounds) < 400) sched_yield();
  return 0;
}
