/* A library with its own runtime, as NCCL and cuBLAS are. */
#include <cuda_runtime_api.h>

__attribute__((visibility("default"))) int call_runtime(void) {
  void* pointer = 0;
  return (int)cudaMalloc(&pointer, 1000);
}
