// main returns, or somebody ends the process, while another thread writes the report of its out-of-memory: that is written whole, and no temporary file stays.
//! ooms any
//! stderr* .*
//! check len(ooms) >= 1 and all(one["ooms"] for one in ooms)
//! case returns
//! args return
//! misuse
//! case exits
//! args _exit
//! case quickly
//! args quick_exit
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "report_file.h"
#include "victim.h"

enum { BLOCKS = 20000 };  // a report of them takes a while

static CUcontext context;

static void* refuse(void* unused) {
  cuCtxSetCurrent(context);
  CUdeviceptr address = 0;
  while (cuMemAlloc(&address, 100 * GIB) == CUDA_ERROR_OUT_OF_MEMORY) {}
  return unused;
}

static atomic_int is_being_written;

static void on_report_opened(void) { atomic_store(&is_being_written, 1); }

int main(int argc, char** argv) {
  context = enter_device(0);
  for (int i = 0; i < BLOCKS; ++i) allocate(512);
  pthread_t thread;
  pthread_create(&thread, NULL, refuse, NULL);
  while (getenv("LD_PRELOAD") != NULL && !atomic_load(&is_being_written)) sched_yield();
  fflush(stdout);
  if (argc > 1 && strcmp(argv[1], "_exit") == 0) _exit(0);
  if (argc > 1 && strcmp(argv[1], "quick_exit") == 0) quick_exit(0);
  return 0;
}
