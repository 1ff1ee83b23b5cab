// One thread's frees wait for a kernel that the host keeps; another releases the primary context, which is retained once more, allocates and
// lets the kernel go: nobody waits for the thread that frees, and nobody is told that the context has ended. So it is for a green context that ends.
//! env CUSIM_MEMORY=96MiB
//! check c["live_blocks"]["current"] == 1
//! case default
//! case sync
//! env CUPOOL_FREE=sync
//! case green
//! args green
//! case green_sync
//! args green
//! env CUPOOL_FREE=sync
#include <pthread.h>
#include <sched.h>

#include "cusim.h"
#include "victim.h"

#define BLOCKS 7

static CUcontext context;
static CUdeviceptr blocks[BLOCKS];
static volatile uint32_t may_end;

static void* free_them(void* unused) {
  MUST(cuCtxSetCurrent(context));
  for (int i = 0; i < BLOCKS; ++i) MUST(cuMemFree(blocks[i]));
  return unused;
}

int main(int argc, char** argv) {
  const int is_green = argc > 1 && strcmp(argv[1], "green") == 0;
  context = enter_device(0);
  CUcontext again = NULL;
  CUgreenCtx green = NULL;
  if (is_green) green = create_green();
  else MUST(cuDevicePrimaryCtxRetain(&again, 0));
  for (int i = 0; i < BLOCKS; ++i) blocks[i] = allocate(8 * MIB);
  CUstream stream = NULL;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cusim_launch_wait_host(stream, &may_end));
  pthread_t thread;
  pthread_create(&thread, NULL, free_them, NULL);
  while (cusim_calls("cuMemFree_v2") + cusim_calls("cuEventSynchronize") == 0) sched_yield(); /* it waits, natively or for us */
  if (is_green) SAY(cuGreenCtxDestroy(green));
  else SAY(cuDevicePrimaryCtxRelease(0));
  CUdeviceptr block = 0;
  SAY(cuMemAlloc(&block, 4096));
  __atomic_store_n(&may_end, 1, __ATOMIC_RELEASE);
  pthread_join(thread, NULL);
  SAY(cuMemsetD8(block, 1, 4096));
  return 0;
}
