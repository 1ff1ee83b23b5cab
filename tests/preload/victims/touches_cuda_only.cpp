// A process that initialises CUDA and looks around, but never allocates: no report, no file.
//! report absent
//! check files == []
#include <cuda_runtime_api.h>

#include "victim.h"

int main() {
  int count = 0;
  size_t free_bytes = 0, total_bytes = 0;
  MUST(cudaGetDeviceCount(&count));
  MUST(cudaMemGetInfo(&free_bytes, &total_bytes));
  printf("%d devices, %zu of %zu free\n", count, free_bytes, total_bytes);
  return 0;
}
