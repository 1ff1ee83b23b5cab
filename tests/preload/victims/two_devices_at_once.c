// Two threads bring up a device each at the same moment, in twenty processes one after the other: copies between the devices, which have no link, are served afterwards.
//! env CUSIM_DEVICES=2
//! env CUSIM_PEERS=0
//! pages_of_children
//! report absent
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include "victim.h"

enum { PROCESSES = 20 };

static pthread_barrier_t both;
static CUcontext contexts[2];
static CUdeviceptr blocks[2];

static void* bring_up(void* which) {
  const int device = *(const int*)which;
  pthread_barrier_wait(&both);
  MUST(cuDevicePrimaryCtxRetain(&contexts[device], device));
  MUST(cuCtxSetCurrent(contexts[device]));
  MUST(cuMemAlloc(&blocks[device], MIB));
  return NULL;
}

static int copies_are_refused(void) {
  static const int devices[2] = {0, 1};
  pthread_t threads[2];
  char bytes[64];
  int refused = 0;
  MUST(cuInit(0));
  pthread_barrier_init(&both, NULL, 2);
  for (int i = 0; i < 2; ++i) pthread_create(&threads[i], NULL, bring_up, (void*)&devices[i]);
  for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < 2; ++i) {
    MUST(cuCtxSetCurrent(contexts[1 - i]));
    refused |= cuMemcpyDtoH(bytes, blocks[i], sizeof bytes) != CUDA_SUCCESS || cuMemcpyDtoD(blocks[1 - i], blocks[i], sizeof bytes) != CUDA_SUCCESS;
  }
  return refused;
}

int main(void) {
  int refused = 0;
  for (int i = 0; i < PROCESSES; ++i) {
    const pid_t child = fork();
    if (child == 0) _exit(copies_are_refused());
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) return 2;
    refused += WEXITSTATUS(status);
  }
  printf("refused in %d\n", refused);
  return 0;
}
