// The runtime is linked into the program, and the program exports a block: its symbol table tells, so that `auto` serves it from segments.
//! check d["backing"] == "segments" and c["allocations"] == 1
//! case default
//! case auto
//! env CUPOOL_BACKING=auto
#include <cuda_runtime_api.h>

#include "victim.h"

int main(void) {
  void* block = NULL;
  cudaIpcMemHandle_t handle;
  MUST(cudaMalloc(&block, MIB));
  SAY(cudaIpcGetMemHandle(&handle, block));
  SAY(cudaFree(block));
  return 0;
}
