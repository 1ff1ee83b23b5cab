// The ways to end a process: those that run code of ours leave a report, the others leave the live page.
//! case _exit
//! args _exit
//! exit 5
//! check report["process"]["exit"]["code"] == 5
//! case _Exit
//! args _Exit
//! exit 5
//! check report["process"]["exit"]["code"] == 5
//! case quick_exit
//! args quick_exit
//! exit 5
//! check report["process"]["exit"]["code"] == 5
//! case minus_one
//! args exit
//! exit 255
//! check report["process"]["exit"]["code"] == 255
//! case minus_one_at_once
//! args _exit_minus_one
//! exit 255
//! check report["process"]["exit"]["code"] == 255
//! case pthread_exit_of_main
//! args pthread_exit
//! exit 0
//! check c["allocations"] == 3 and c["live_bytes"]["current"] == 4 * MiB
//! case abort
//! args abort
//! signal SIGABRT
//! report absent
//! page left
//! check pages[0].pid == pid and pages[0].devices[0].gauges["live_bytes"] == (3 * MiB, 3 * MiB)
//! case sigterm
//! args 15
//! signal SIGTERM
//! report absent
//! page left
//! check pages[0].devices[0].totals["allocations"] == 1
//! case sigkill
//! args 9
//! signal SIGKILL
//! report absent
//! page left
//! check pages[0].devices[0].gauges["live_blocks"] == (1, 1) and pages[0].devices[0].total_bytes == 8 * GiB
//! check pages[0].facts["process"]["pid"] == pid
//! case segv
//! args 11
//! signal SIGSEGV
//! report absent
//! page left
#include <pthread.h>
#include <signal.h>

#include "victim.h"

/* Goes on when main has ended. */
static void* go_on(void* main_thread) {
  CUcontext context;
  MUST(pthread_join(*(pthread_t*)main_thread, NULL));
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  allocate(MIB);
  MUST(cuMemFree(allocate(MIB)));
  return NULL;
}

int main(int argc, char** argv) {
  enter_device(0);
  allocate(3 * MIB);
  const char* how = argc > 1 ? argv[1] : "";
  if (strcmp(how, "_exit") == 0) _exit(5);
  if (strcmp(how, "_Exit") == 0) _Exit(5);
  if (strcmp(how, "quick_exit") == 0) quick_exit(5);
  if (strcmp(how, "exit") == 0) exit(-1);
  if (strcmp(how, "_exit_minus_one") == 0) _exit(-1);
  if (strcmp(how, "abort") == 0) abort();
  if (strcmp(how, "pthread_exit") == 0) {
    static pthread_t self;
    pthread_t thread;
    self = pthread_self();
    pthread_create(&thread, NULL, go_on, &self);
    pthread_exit(NULL);
  }
  raise(atoi(how));
  return 98;
}
