// One thread ends the process by _exit or quick_exit while others allocate nearly all of the device: natively they just stop. Here the exit report is written
// meanwhile, and none of them is told that memory is out, which it would not be: they abort where they are told anything. What quick_exit runs before is served.
//! env CUSIM_MEMORY=1GiB
//! check "handler 0" in out or "quick" not in out
//! case _exit
//! args _exit
//! exit 6
//! case quick_exit
//! args quick_exit
//! exit 6
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "victim.h"

enum { BLOCKS = 20000, THREADS = 3 };  // a report of them takes a while

static CUcontext context;
static atomic_int rounds;

static void* churn(void* unused) {
  MUST(cuCtxSetCurrent(context));
  for (;;) {
    CUdeviceptr address = 0;
    if (cuMemAlloc(&address, 300 * MIB) != CUDA_SUCCESS || cuMemFree(address) != CUDA_SUCCESS) abort();
    atomic_fetch_add(&rounds, 1);
  }
  return unused;
}

static void at_end(void) {
  CUdeviceptr address = 0;
  printf("quick handler %d\n", (int)cuMemAlloc(&address, 30 * MIB));
  fflush(stdout);
}

int main(int argc, char** argv) {
  (void)argc;
  at_quick_exit(at_end);
  context = enter_device(0);
  for (int i = 0; i < BLOCKS; ++i) allocate(512);
  pthread_t thread;
  for (int i = 0; i < THREADS; ++i) pthread_create(&thread, NULL, churn, NULL);
  while (atomic_load(&rounds) < 100) sched_yield();
  if (strcmp(argv[1], "quick_exit") == 0) quick_exit(6);
  _exit(6);
}
