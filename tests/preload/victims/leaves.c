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
//! case pthread_exit_of_main
//! args pthread_exit
//! exit 0
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

static void* idle(void* unused) { return unused; }

int main(int argc, char** argv) {
  enter_device(0);
  allocate(3 * MIB);
  const char* how = argc > 1 ? argv[1] : "";
  if (strcmp(how, "_exit") == 0) _exit(5);
  if (strcmp(how, "_Exit") == 0) _Exit(5);
  if (strcmp(how, "quick_exit") == 0) quick_exit(5);
  if (strcmp(how, "abort") == 0) abort();
  if (strcmp(how, "pthread_exit") == 0) {
    pthread_t thread;
    pthread_create(&thread, NULL, idle, NULL);
    pthread_exit(NULL);
  }
  raise(atoi(how));
  return 98;
}
