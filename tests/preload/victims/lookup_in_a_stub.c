// A library of the program finds the toolkit's stub first (stubs/libcuda.so in LD_LIBRARY_PATH), asks it, and gives up. The program's own driver is served as
// if that had not been, and the stub is closed when it is closed.
//! check c["allocations"] == 2 and c["frees"] == 2
//! case pages
//! env CUPOOL_BACKING=pages
//! case segments
//! env CUPOOL_BACKING=segments
//! case async
//! env CUPOOL_POLICY=async
#include "resolve_object.h"
#include "victim.h"

int main(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s/stubs/libcuda.so", getenv("VICTIM_LIBRARIES"));
  void* stub = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  MUST(stub == NULL);
  CUresult (*stub_init)(unsigned) = (CUresult(*)(unsigned))dlsym(stub, "cuInit");
  CUresult (*stub_allocate)(CUdeviceptr*, size_t) = (CUresult(*)(CUdeviceptr*, size_t))dlsym(stub, "cuMemAlloc_v2");
  CUdeviceptr address = 0;
  SAY(stub_init(0));
  SAY(stub_allocate(&address, MIB));
  SAY(dlclose(stub));
  printf("still loaded: %d\n", dlopen(path, RTLD_NOW | RTLD_NOLOAD) != NULL);
  enter_device(0);
  SAY(cuMemAlloc(&address, MIB));
  SAY(cuMemFree(address));
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  CUresult (*look_up)(const char*, void**, int, cuuint64_t) = (CUresult(*)(const char*, void**, int, cuuint64_t))dlsym(driver, "cuGetProcAddress");
  CUresult (*runtime_allocate)(CUdeviceptr*, size_t) = NULL;
  SAY(look_up("cuMemAlloc", (void**)&runtime_allocate, 12000, 0));
  SAY(runtime_allocate(&address, MIB));
  SAY(cuMemFree(address));
  return 0;
}
