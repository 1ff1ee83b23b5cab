// cuMemAllocPitch: refused arguments, and what a good call gives.
//! check c["allocations"] == 2 and c["failed_allocations"] == 0
#include "victim.h"

static void pitch_of(size_t width, size_t height, unsigned element) {
  CUdeviceptr address = 0;
  size_t pitch = 77;
  int code = cuMemAllocPitch(&address, &pitch, width, height, element);
  printf("%zu x %zu of %u: %d, pitch %zu\n", width, height, element, code, code == 0 ? pitch : 0);
  if (code == 0) MUST(cuMemsetD2D8(address, pitch, 3, width, height));
}

int main(void) {
  enter_device(0);
  CUdeviceptr address = 0;
  size_t pitch = 0;
  pitch_of(1000, 10, 4);
  pitch_of(1, 1, 16);
  pitch_of(1000, 10, 3);
  pitch_of(1000, 10, 0);
  pitch_of(0, 10, 4);
  pitch_of(1000, 0, 4);
  SAY(cuMemAllocPitch(NULL, &pitch, 100, 10, 4));
  SAY(cuMemAllocPitch(&address, NULL, 100, 10, 4));
  return 0;
}
