// The runtime's own door to driver functions, in all the ways in which the runtime itself may have found them.
//! native skip
//! check c["allocations"] == 1 + out.count(":cuMemAlloc_v2") and c["frees"] == c["allocations"] and "libcuda.so" not in out
//! case five_arguments
//! check out.splitlines() == ["cuMemAlloc -> libcupool.so:cuMemAlloc_v2", "cuMemFree -> libcupool.so:cuMemFree_v2", "cuMemAllocAsync -> libcupool.so:cuMemAllocAsync_ptsz"]
//! case four_arguments
//! env CUSIM_RUNTIME_LOOKUP=v1
//! case plain_dlsym
//! env CUSIM_RUNTIME_LOOKUP=dlsym
#include <cuda_runtime_api.h>

#include "resolve_object.h"
#include "victim.h"

int main() {
  void* block = nullptr;
  MUST(cudaMalloc(&block, 1000));
  MUST(cudaFree(block));
  void* allocate_function = nullptr;
  void* free_function = nullptr;
  void* async_function = nullptr;
  cudaDriverEntryPointQueryResult status{};
  cudaGetDriverEntryPointByVersion("cuMemAlloc", &allocate_function, 3020, cudaEnableDefault, &status);
  cudaGetDriverEntryPointByVersion("cuMemFree", &free_function, 3020, cudaEnableDefault, &status);
  cudaGetDriverEntryPointByVersion("cuMemAllocAsync", &async_function, 11020, cudaEnablePerThreadDefaultStream, &status);
  print_place("cuMemAlloc", allocate_function);
  print_place("cuMemFree", free_function);
  print_place("cuMemAllocAsync", async_function);
  if (allocate_function == nullptr) return 0;  // the runtime did not find the five-argument form
  CUdeviceptr address = 0;
  MUST(reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t)>(allocate_function)(&address, 1000));
  MUST(reinterpret_cast<CUresult (*)(CUdeviceptr)>(free_function)(address));
  return 0;
}
