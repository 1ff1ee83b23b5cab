// One thread enables peer access, for which the driver has no memory: room is made, which waits for a kernel of the program's. Another thread asks
// about peer access of its own before it lets that kernel go: nobody keeps it. (Natively the first thread's frees wait for the kernel.)
//! native skip
//! seconds 30
//! env CUSIM_DEVICES=2
//! check "disable: 705" in out and "enable: 0" in out
#include <pthread.h>
#include <sched.h>

#include "cusim.h"
#include "victim.h"

#define BLOCKS 70

static CUcontext home;
static CUcontext guest;
static volatile uint32_t may_end;

static void* ask(void* unused) {
  MUST(cuCtxSetCurrent(guest));
  while (cusim_calls("cuCtxEnablePeerAccess") == 0) sched_yield();
  while (cusim_calls("cuEventSynchronize") == 0) sched_yield(); /* the other waits for the kernel */
  printf("disable: %d\n", (int)cuCtxDisablePeerAccess(home));
  __atomic_store_n(&may_end, 1, __ATOMIC_RELEASE);
  return unused;
}

int main(void) {
  CUdeviceptr blocks[BLOCKS];
  pthread_t thread;
  home = enter_device(0);
  MUST(create_context(&guest, 0, 1));
  MUST(cuCtxSetCurrent(home));
  for (int i = 0; i < BLOCKS; ++i) blocks[i] = allocate(2 * MIB);
  MUST(cusim_launch_wait_host(NULL, &may_end));
  for (int i = 0; i < BLOCKS; ++i) MUST(cuMemFree(blocks[i]));
  cusim_fail("cuCtxEnablePeerAccess", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
  pthread_create(&thread, NULL, ask, NULL);
  printf("enable: %d\n", (int)cuCtxEnablePeerAccess(guest, 0));
  pthread_join(thread, NULL);
  return 0;
}
