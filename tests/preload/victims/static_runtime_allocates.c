// The runtime is linked into the program, which uses nothing of it that shares memory: `auto` gives it the same as a program that gives no sign.
//! case auto
//! env CUPOOL_BACKING=auto
//! check c["allocations"] == 1 and d["backing"] == "pages"
//! case pages
//! env CUPOOL_BACKING=pages
//! check c["allocations"] == 1 and d["backing"] == "pages"
#include <cuda_runtime_api.h>

#include "victim.h"

int main(void) {
  void* block = NULL;
  SAY(cudaMalloc(&block, MIB));
  SAY(cudaFree(block));
  return 0;
}
