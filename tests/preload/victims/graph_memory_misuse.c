// A captured free of memory that no graph allocated is refused as natively; that memory is still whole and can be freed afterwards.
//! misuse
//! check c["live_blocks"]["current"] == 0
//! case plain_memory
//! args plain
//! case stream_ordered_memory
//! args ordered
//! case interior_pointer
//! args interior
//! case freed_before
//! args freed
#include "victim.h"

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "plain";
  enter_device(0);
  CUstream stream;
  CUgraph graph = NULL;
  CUdeviceptr ordered = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr plain = allocate(4 * MIB);
  MUST(cuMemAllocAsync(&ordered, 4 * MIB, stream));
  CUdeviceptr freed = allocate(4 * MIB);
  MUST(cuMemFree(freed));
  MUST(cuMemsetD8(plain, 5, 4 * MIB));
  MUST(cuCtxSynchronize());
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  CUdeviceptr given = plain;
  if (strcmp(what, "ordered") == 0) given = ordered;
  if (strcmp(what, "interior") == 0) given = plain + 512;
  if (strcmp(what, "freed") == 0) given = freed;
  SAY(cuMemFreeAsync(given, stream));
  SAY(cuStreamEndCapture(stream, &graph));
  unsigned char back = 0;
  SAY(cuMemcpyDtoH(&back, plain + MIB, 1));
  printf("kept: %d\n", back);
  SAY(cuMemFree(plain));
  SAY(cuMemFreeAsync(ordered, stream));
  SAY(cuStreamSynchronize(stream));
  return 0;
}
