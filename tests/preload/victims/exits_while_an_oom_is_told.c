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
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "victim.h"

enum { BLOCKS = 20000 };  // a report of them takes a while

static CUcontext context;

static void* refuse(void* unused) {
  cuCtxSetCurrent(context);
  CUdeviceptr address = 0;
  while (cuMemAlloc(&address, 100 * GIB) == CUDA_ERROR_OUT_OF_MEMORY) {
  }
  return unused;
}

static atomic_int is_being_written;

// Before libc's in the order of symbols: the library is about to write a report, into a file without a name or of a temporary one.
__attribute__((visibility("default"))) int openat(int folder, const char* name, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const unsigned mode = va_arg(rest, unsigned);
  va_end(rest);
  if ((flags & O_TMPFILE) == O_TMPFILE || strncmp(name, ".cupool-", 8) == 0) atomic_store(&is_being_written, 1);
  return (int)syscall(SYS_openat, folder, name, flags, mode);
}

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
