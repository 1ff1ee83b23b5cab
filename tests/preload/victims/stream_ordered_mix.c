// cuMemFreeAsync of plain memory and cuMemFree of stream-ordered memory: legal in CUDA, and so here.
//! check c["allocations"] == 2 and c["frees"] == 2 and c["live_blocks"]["current"] == 0
#include "victim.h"

int main(void) {
  enter_device(0);
  CUstream stream;
  CUdeviceptr ordered = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr plain = allocate(MIB);
  MUST(cuMemAllocAsync(&ordered, MIB, stream));
  MUST(cuMemsetD8Async(plain, 1, MIB, stream));
  MUST(cuMemsetD8Async(ordered, 1, MIB, stream));
  SAY(cuMemFreeAsync(plain, stream));
  MUST(cuStreamSynchronize(stream));
  SAY(cuMemFree(ordered));
  SAY(cuCtxSynchronize());
  return 0;
}
