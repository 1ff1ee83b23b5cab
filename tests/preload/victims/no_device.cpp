// No device, no driver functions that we need, or a driver that is too old: the library steps aside and the program is on its own.
//! report absent
//! check files == []
//! case no_device
//! env CUSIM_NO_DEVICE=1
//! case driver_of_2018
//! env CUSIM_DRIVER_VERSION=10000
//! stderr* cupool\[<pid>\]: .*
//! check len(err.splitlines()) <= 1
#include <cuda_runtime_api.h>

#include "victim.h"

int main() {
  int count = -1;
  void* block = nullptr;
  SAY(cudaGetDeviceCount(&count));
  printf("%d\n", count);
  const bool allocated = SAY(cudaMalloc(&block, 1000)) == 0;
  SAY(cudaGetLastError());
  if (allocated) SAY(cudaFree(block));
  return 0;
}
