// cuMemGetInfo while a program allocates and frees: free plus held stays the same as natively, whatever the pool keeps.
//! case grow
//! case preallocate
//! env CUPOOL_POLICY=preallocate
//! case platform
//! env CUPOOL_POLICY=platform
#include <cuda_runtime_api.h>

#include "victim.h"

static void print_info(const char* when) {
  size_t free_bytes = 0, total_bytes = 0;
  MUST(cudaMemGetInfo(&free_bytes, &total_bytes));
  printf("%s: %zu of %zu MiB\n", when, free_bytes / MIB, total_bytes / MIB);
}

int main() {
  void* blocks[8];
  print_info("start");
  for (void*& block : blocks) MUST(cudaMalloc(&block, 256 * MIB));
  print_info("2 GiB held");
  for (int i = 0; i < 8; i += 2) MUST(cudaFree(blocks[i]));
  print_info("1 GiB held");
  for (int i = 1; i < 8; i += 2) MUST(cudaFree(blocks[i]));
  print_info("none held");
  size_t one = 0;
  SAY(cuMemGetInfo(nullptr, nullptr));
  SAY(cuMemGetInfo(&one, nullptr));
  SAY(cuMemGetInfo(nullptr, &one));
  void* all = nullptr;
  SAY(cudaMalloc(&all, 8 * GIB - 64 * MIB));
  return 0;
}
