// A program that is built with AddressSanitizer, whose leak check runs at its exit: what we keep on the host is no leak of the program's, so its exit code stays.
// Blocks of many sizes, plain and in stream order, from two threads, some of them live to the end.
//! env ASAN_OPTIONS=verify_asan_link_order=0:detect_leaks=1
//! case pages
//! check c["allocations"] > 4000
//! case segments
//! env CUPOOL_BACKING=segments
//! case preallocate
//! env CUPOOL_POLICY=preallocate
//! case async
//! env CUPOOL_POLICY=async
//! case platform
//! env CUPOOL_POLICY=platform
//! case immediate
//! env CUPOOL_FREE=immediate
#include "victim.h"

#include <pthread.h>

enum { kBlocks = 250 };
static const size_t kSizes[] = {512, 1000, 30000, 100000, 3 * MIB};
enum { kSizesCount = sizeof kSizes / sizeof *kSizes };

static void use(CUstream stream, size_t bytes) {
  CUdeviceptr blocks[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    if (stream != NULL) MUST(cuMemAllocAsync(&blocks[i], bytes, stream));
    else MUST(cuMemAlloc(&blocks[i], bytes));
  }
  for (int i = 0; i < kBlocks; ++i) {
    if (i % 50 == 7) continue;  // live to the end
    if (stream != NULL) MUST(cuMemFreeAsync(blocks[i], stream));
    else MUST(cuMemFree(blocks[i]));
  }
}

static void* work(void* context) {
  CUstream stream = NULL;
  MUST(cuCtxSetCurrent((CUcontext)context));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < kSizesCount; ++i) {
    use(NULL, kSizes[i]);
    use(stream, kSizes[i]);
  }
  return NULL;
}

int main(void) {
  pthread_t other;
  enter_device(0);
  CUcontext context = NULL;
  MUST(cuCtxGetCurrent(&context));
  if (pthread_create(&other, NULL, &work, context) != 0) return 2;
  work(context);
  pthread_join(other, NULL);
  printf("done\n");
  return 0;
}
