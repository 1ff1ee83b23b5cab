// The context that is current to this thread has been destroyed by another. What names its stream or event itself does not need one: answered as natively,
// and the driver is asked nothing about the context that is gone.
#include <pthread.h>

#include "victim.h"

static CUcontext context;

static void* destroy(void* unused) {
  MUST(cuCtxDestroy(context));
  return unused;
}

int main(void) {
  enter_device(0);
  CUstream stream;
  CUevent event;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  const CUdeviceptr block = allocate(64 * MIB);
  MUST(cuMemsetD8Async(block, 1, 64 * MIB, stream));
  MUST(cuEventRecord(event, stream));
  MUST(cuMemFree(block));
  MUST(create_context(&context, 0, 0));
  pthread_t thread;
  pthread_create(&thread, NULL, destroy, NULL);
  pthread_join(thread, NULL);
  SAY(cuEventSynchronize(event));
  SAY(cuEventQuery(event));
  SAY(cuStreamSynchronize(stream));
  SAY(cuStreamQuery(stream));
  CUdeviceptr ordered = 0;
  SAY(cuMemAllocAsync(&ordered, MIB, stream));
  SAY(cuMemFreeAsync(ordered, stream));
  SAY(cuEventDestroy(event));
  SAY(cuStreamDestroy(stream));
  return 0;
}
