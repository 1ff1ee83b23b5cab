// Destroying a context that is current to another thread, and a destroyed handle: same codes as natively.
//! misuse
#include <pthread.h>

#include "victim.h"

static CUcontext context;
static CUdeviceptr block;

static void* destroy(void* unused) {
  SAY(cuCtxDestroy(context));
  SAY(cuCtxDestroy(context));
  return unused;
}

int main(void) {
  enter_device(0);
  MUST(create_context(&context, 0, 0));
  block = allocate(MIB);
  pthread_t thread;
  pthread_create(&thread, NULL, destroy, NULL);
  pthread_join(thread, NULL);
  CUdeviceptr address = 0;
  size_t free_bytes, total_bytes;
  SAY(cuMemAlloc(&address, MIB));
  SAY(cuMemFree(block));
  SAY(cuMemGetInfo(&free_bytes, &total_bytes));
  return 0;
}
