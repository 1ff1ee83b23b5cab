// Threads that sit in a driver call that never returns (work that only the host could release), one of them in a free and one in an
// allocation, while main returns or another thread exits: the end does not wait for them.
//! native skip
//! misuse
//! seconds 10
//! exit 4
//! check report["process"]["exit"]["code"] == 4 and c["allocations"] >= 1
//! case deferred
//! case sync
//! env CUPOOL_FREE=sync
//! case platform
//! env CUPOOL_POLICY=platform
//! case async
//! env CUPOOL_POLICY=async
#include <pthread.h>
#include <stdatomic.h>

#include "cusim.h"
#include "victim.h"

static volatile uint32_t never;
static CUcontext context;
static atomic_int under_way;

static void* synchronise(void* unused) {
  MUST(cuCtxSetCurrent(context));
  atomic_fetch_add(&under_way, 1);
  cuCtxSynchronize();
  return unused;
}

static void* free_and_allocate(void* block) {
  CUdeviceptr address = 0;
  MUST(cuCtxSetCurrent(context));
  atomic_fetch_add(&under_way, 1);
  cuMemFree((CUdeviceptr)(uintptr_t)block);
  for (;;) cuMemAlloc(&address, 4 * MIB); /* until nothing is left but what waits for the GPU, and would do */
  return NULL;
}

int main(void) {
  context = enter_device(0);
  CUstream stream;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  const CUdeviceptr block = allocate(4 * MIB);
  MUST(cusim_launch_wait_host(stream, &never));
  pthread_t threads[2];
  pthread_create(&threads[0], NULL, synchronise, NULL);
  pthread_create(&threads[1], NULL, free_and_allocate, (void*)(uintptr_t)block);
  while (atomic_load(&under_way) < 2) sched_yield();
  return 4;
}
