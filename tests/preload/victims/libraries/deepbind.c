/* A plugin that calls the driver directly; its names are bound to libcuda itself when it is loaded RTLD_DEEPBIND. */
#include <cuda.h>

CUdeviceptr plugin_allocate(size_t bytes) {
  CUdeviceptr address = 0;
  return cuMemAlloc(&address, bytes) == CUDA_SUCCESS ? address : 0;
}
int plugin_free(CUdeviceptr address) { return (int)cuMemFree(address); }
int plugin_fill(CUdeviceptr address, size_t bytes) { return (int)cuMemsetD8(address, 33, bytes); }
