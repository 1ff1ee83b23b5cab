// Worker processes as a DataLoader makes them: forked from a process that uses CUDA, while its threads allocate; they touch no CUDA, and end by
// exit, _exit, SIGTERM or SIGKILL. They say and write nothing, and end at once; the parent's report and page are its own.
//! env CUPOOL_TIMELINE=64
//! check len(reports) == 1 and c["live_blocks"]["current"] == 1 and report["process"]["exit"]["code"] == 0
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "victim.h"

static atomic_int stop;

static void* churn(void* context) {
  MUST(cuCtxSetCurrent(context));
  while (!atomic_load(&stop)) MUST(cuMemFree(allocate(64 * KIB)));
  return NULL;
}

static void work(int kind, int until_closed) {
  char byte;
  char* batch = malloc(4 * MIB);
  memset(batch, kind, 4 * MIB);
  if (kind < 2) {
    free(batch);
    if (kind == 0) exit(3);
    _exit(3);
  }
  while (read(until_closed, &byte, 1) > 0) { /* until it is killed */
  }
  for (;;) pause();
}

int main(void) {
  CUcontext context = enter_device(0);
  allocate(MIB);
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, churn, context);
  pid_t workers[12];
  int ends[2];
  MUST(pipe(ends));
  for (int i = 0; i < 12; ++i) {
    if ((workers[i] = fork()) == 0) work(i % 4, ends[0]);
    if (i % 4 >= 2) kill(workers[i], i % 4 == 2 ? SIGTERM : SIGKILL);
  }
  for (int i = 0; i < 12; ++i) {
    int status = 0;
    waitpid(workers[i], &status, 0);
    printf("%x ", status);
  }
  atomic_store(&stop, 1);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  return 0;
}
