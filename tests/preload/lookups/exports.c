/* Has the toolkit's own runtime in it and exports memory; it is never run. */
#include <cuda_runtime_api.h>

int main(void) {
  void* block = 0;
  cudaIpcMemHandle_t handle;
  if (cudaMalloc(&block, 1000) != cudaSuccess) return 1;
  return (int)cudaIpcGetMemHandle(&handle, block);
}
