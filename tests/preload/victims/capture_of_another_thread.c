// One thread captures (global mode: unsafe calls of any thread would break it) while another allocates and frees a lot.
//! native skip
//! check c["allocations"] == 301
#include <pthread.h>

#include "victim.h"

static CUcontext context;

static void* churn(void* unused) {
  MUST(cuCtxSetCurrent(context));
  for (int i = 0; i < 300; ++i) MUST(cuMemFree(allocate((size_t)(i % 7 + 1) * MIB)));
  return unused;
}

int main(void) {
  context = enter_device(0);
  CUstream stream;
  CUgraph graph;
  pthread_t thread;
  CUdeviceptr block = allocate(MIB);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  MUST(cuMemsetD8Async(block, 1, MIB, stream));
  pthread_create(&thread, NULL, churn, NULL);
  pthread_join(thread, NULL);
  MUST(cuStreamEndCapture(stream, &graph));
  printf("graph %d\n", graph != NULL);
  return graph == NULL;
}
