// What a thread freed on its own default stream serves others, also of drivers without an event that covers a context (before CUDA 12.5), and
// while that thread does something else.
//! check c["live_blocks"]["current"] == 0 and c["allocations"] == c["frees"] and ooms == []
//! env CUSIM_MEMORY=64MiB
//! env CUSIM_CLOCK=real
//! case default
//! case old_driver
//! env CUSIM_DRIVER_VERSION=12040
//! stderr .*no cuCtxRecordEvent.*
//! case old_driver_on_pages
//! env CUSIM_DRIVER_VERSION=12040
//! stderr .*no cuCtxRecordEvent.*
//! env CUPOOL_BACKING=pages
//! case old_driver_on_segments
//! env CUSIM_DRIVER_VERSION=12040
//! stderr .*no cuCtxRecordEvent.*
//! env CUPOOL_BACKING=segments
#include <pthread.h>
#include <semaphore.h>

#include "victim.h"

static CUcontext g_context;
static sem_t g_freed, g_end;

static void* work(void* unused) {
  CUdeviceptr blocks[10];
  MUST(cuCtxSetCurrent(g_context));
  for (int i = 0; i < 10; ++i) MUST(cuMemAllocAsync(&blocks[i], 4 * MIB, CU_STREAM_PER_THREAD));
  for (int i = 0; i < 10; ++i) MUST(cuMemsetD8Async(blocks[i], 1, 4 * MIB, CU_STREAM_PER_THREAD));
  for (int i = 0; i < 10; ++i) MUST(cuMemFreeAsync(blocks[i], CU_STREAM_PER_THREAD));
  MUST(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  sem_post(&g_freed);
  sem_wait(&g_end);
  return unused;
}

int main(void) {
  pthread_t thread;
  CUdeviceptr block = 0;
  g_context = enter_device(0);
  sem_init(&g_freed, 0, 0);
  sem_init(&g_end, 0, 0);
  pthread_create(&thread, NULL, work, NULL);
  sem_wait(&g_freed);
  SAY(cuMemAlloc(&block, 40 * MIB));
  SAY(cuMemFree(block));
  sem_post(&g_end);
  pthread_join(thread, NULL);
  return 0;
}
