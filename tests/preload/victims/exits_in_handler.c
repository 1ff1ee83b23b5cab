// SIGTERM with a handler that ends the process, while every thread allocates: by exit, which no handler may call but many do, or by _exit.
// It interrupts whatever the thread was at, a lock of ours held included; the exit code is the program's, soon.
//! env CUPOOL_TIMELINE=64
//! misuse
//! report elsewhere
//! seconds 20
//! exit 7
//! page any
//! setup env["CUPOOL_RUN_ID"] = "victim"
//! check report["process"]["exit"]["code"] == 7 if report else pages[0].pid == pid
//! case exit
//! args exit
//! case _exit
//! args _exit
//! case on_its_own_stack
//! args _exit alternate
//! page left
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "victim.h"

static CUcontext context;
static atomic_int rounds;
static int by_exit;

static void leave(int unused) {
  (void)unused;
  if (by_exit) exit(7);
  _exit(7);
}

static void* churn(void* unused) {
  if (cuCtxSetCurrent(context) != CUDA_SUCCESS) return unused;  // it comes to this only when the process ends already
  CUdeviceptr address = 0;
  while (cuMemAlloc(&address, 100 * KIB) == CUDA_SUCCESS) {
    cuMemFree(address);
    atomic_fetch_add(&rounds, 1);
  }
  return unused;
}

static void* end_it(void* main_thread) {
  while (atomic_load(&rounds) < 5000) sched_yield();
  pthread_kill(*(pthread_t*)main_thread, SIGTERM);
  return NULL;
}

int main(int argc, char** argv) {
  static char stack[64 * 1024];
  by_exit = strcmp(argv[1], "exit") == 0;
  stack_t alternate = {.ss_sp = stack, .ss_size = sizeof stack};
  if (argc > 2) MUST(sigaltstack(&alternate, NULL));
  struct sigaction action = {.sa_handler = leave, .sa_flags = argc > 2 ? SA_ONSTACK : 0};
  MUST(sigaction(SIGTERM, &action, NULL));
  context = enter_device(0);
  pthread_t self = pthread_self(), thread;
  for (int i = 0; i < 3; ++i) pthread_create(&thread, NULL, churn, NULL);
  pthread_create(&thread, NULL, end_it, &self);
  churn(NULL);
  for (;;) pause();
}
