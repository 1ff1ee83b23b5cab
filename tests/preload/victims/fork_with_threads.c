// Threads allocate while others fork: no child may hang on a lock that was held at the moment of the fork.
//! check len(reports) == 1 and c["live_blocks"]["current"] == 0
#include <pthread.h>
#include <sys/wait.h>

#include "victim.h"

static volatile int stop;

static void* churn(void* context) {
  MUST(cuCtxSetCurrent(context));
  while (!stop) MUST(cuMemFree(allocate(64 * KIB)));
  return NULL;
}

int main(void) {
  CUcontext context = enter_device(0);
  pthread_t threads[3];
  for (int i = 0; i < 3; ++i) pthread_create(&threads[i], NULL, churn, context);
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    pid_t child = fork();
    if (child == 0) {
      CUdeviceptr address = 0;
      int code = cuMemAlloc(&address, MIB) != CUDA_SUCCESS;
      if (i % 2 == 0) exit(code);
      _exit(code);
    }
    int status = 0;
    waitpid(child, &status, 0);
    refused += WIFEXITED(status) && WEXITSTATUS(status) == 1;
  }
  stop = 1;
  for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
  printf("refused %d\n", refused);
  return 0;
}
