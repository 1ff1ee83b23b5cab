// A hundred contexts, one after another, each of which leaves a small stream-ordered block when it is destroyed: these share pages, and nearly all of the device is to be had again.
//! env CUSIM_MEMORY=512MiB
//! check c["failed_allocations"] == 0
//! case pages
//! env CUPOOL_BACKING=pages
//! case under_a_limit
//! env CUPOOL_LIMIT=450MiB
//! case async
//! env CUPOOL_POLICY=async
#include "victim.h"

enum { kContexts = 100, kBlocks = 30, kKept = 17 };

static CUdeviceptr kept[kContexts];

static void live_and_leave(int number) {
  CUcontext context;
  CUstream stream;
  CUdeviceptr blocks[kBlocks], plain;
  MUST(create_context(&context, 0, 0));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < kBlocks; ++i) {
    MUST(cuMemAllocAsync(&blocks[i], i == kKept ? 64 * KIB : (size_t)(i + 1) * 40 * KIB, stream));
    MUST(cuMemAlloc(&plain, (size_t)(i + 1) * 30 * KIB));
  }
  kept[number] = blocks[kKept];
  MUST(cuMemsetD8(kept[number], (unsigned char)number, 64 * KIB));
  for (int i = 0; i < kBlocks; ++i)
    if (i != kKept) MUST(cuMemFreeAsync(blocks[i], stream));
  MUST(cuCtxDestroy(context));
}

int main(void) {
  static unsigned char bytes[64 * KIB];
  CUdeviceptr large;
  int wrong = 0;
  MUST(cuInit(0));
  for (int i = 0; i < kContexts; ++i) live_and_leave(i);
  enter_device(0);
  SAY(cuMemAlloc(&large, 400 * MIB));
  for (int i = 0; i < kContexts; ++i) {
    MUST(cuMemcpyDtoH(bytes, kept[i], sizeof bytes));
    for (size_t at = 0; at < sizeof bytes; ++at) wrong += bytes[at] != (unsigned char)i;
    MUST(cuMemFree(kept[i]));
  }
  printf("wrong: %d\n", wrong);
  return 0;
}
