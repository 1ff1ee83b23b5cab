// cudaDeviceReset with live memory, then use again: the old pointers are dead, new memory is served from a new pool.
//! misuse
//! check c["live_blocks"]["current"] == 1 and c["live_bytes"]["current"] == MiB
#include <cuda_runtime_api.h>

#include "victim.h"

int main() {
  void* lost = nullptr;
  void* again = nullptr;
  MUST(cudaMalloc(&lost, 8 * MIB));
  SAY(cudaDeviceReset());
  SAY(cudaFree(lost));
  SAY(cudaGetLastError());
  MUST(cudaMalloc(&again, MIB));
  MUST(cudaMemset(again, 1, MIB));
  SAY(cudaDeviceSynchronize());
  SAY(cudaDeviceReset());
  MUST(cudaMalloc(&again, MIB));
  return 0;
}
