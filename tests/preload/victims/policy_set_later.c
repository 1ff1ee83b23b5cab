// The program sets CUPOOL_POLICY for its children while it uses the GPU; a library that is loaded then looks the driver up anew. What it frees, and takes,
// is pooled as before.
//! check c["allocations"] == 3 and c["frees"] == 3
//! check d["policy"] == report["options"]["policy"]["value"] != "off"
//! case pages
//! env CUPOOL_BACKING=pages
//! case segments
//! env CUPOOL_BACKING=segments
//! case async
//! env CUPOOL_POLICY=async
//! case platform
//! env CUPOOL_POLICY=platform
#define _GNU_SOURCE
#include <dlfcn.h>

#include "late_functions.h"

int main(void) {
  enter_device(0);
  const CUdeviceptr first = allocate(64 * KIB), neighbour = allocate(64 * KIB);
  MUST(cuMemsetD8(neighbour, 7, 64 * KIB));
  setenv("CUPOOL_POLICY", "off", 1);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  CUresult (*look_up)(const char*, void**, int, cuuint64_t) = (CUresult(*)(const char*, void**, int, cuuint64_t))dlsym(driver, "cuGetProcAddress");
  LateAllocate late_allocate = NULL;
  MUST(look_up("cuMemAlloc", (void**)&late_allocate, 12000, 0));
  use_both_kinds(first, neighbour, late_allocate, (LateFree)dlsym(driver, "cuMemFree_v2"));
  return 0;
}
