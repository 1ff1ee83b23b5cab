// LD_PRELOAD names the driver itself before the library: what the program is linked to is the driver's, what it looks up would be ours, and neither would know the other's blocks.
// The library stands aside.
//! setup if "LD_PRELOAD" in env: env["LD_PRELOAD"] = env["LD_LIBRARY_PATH"] + "/libcuda.so.1:" + env["LD_PRELOAD"]
//! report absent
//! stderr cupool\[<pid>\]: warning: not pooling: LD_PRELOAD names libcuda before libcupool.so
//! page any
#define _GNU_SOURCE
#include <dlfcn.h>

#include "victim.h"

int main(void) {
  enter_device(0);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  CUresult (*take)(CUdeviceptr*, size_t) = NULL;
  CUresult (*give)(CUdeviceptr) = NULL;
  *(void**)&take = dlsym(driver, "cuMemAlloc_v2");
  *(void**)&give = dlsym(driver, "cuMemFree_v2");
  CUdeviceptr address = 0, base = 0;
  size_t bytes = 0;
  MUST(take(&address, 5000));
  printf("range %d", (int)cuMemGetAddressRange(&base, &bytes, address));
  printf(" %d %zu, free %d\n", base == address, bytes, (int)cuMemFree(address));
  MUST(cuMemAlloc(&address, MIB));
  printf("free %d\n", (int)give(address));
  return 0;
}
