// A library that is linked with libcuda and loaded RTLD_DEEPBIND finds the driver before us: what it allocates is not pooled (documented), and
// safe: it may free it itself or leave that to the program, and it may use and be refused what is the pool's.
//! check c["allocations"] == 2 and c["frees"] == 2 and c["live_blocks"]["current"] == 0 and c["foreign_frees"] == 1
//! check calls("cuMemAlloc_v2") >= 2
#define _GNU_SOURCE
#include "resolve_object.h"
#include "victim.h"

int main(void) {
  enter_device(0);
  void* library = open_library("libdeepbind.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  CUdeviceptr (*plugin_allocate)(size_t) = (CUdeviceptr(*)(size_t))dlsym(library, "plugin_allocate");
  int (*plugin_free)(CUdeviceptr) = (int (*)(CUdeviceptr))dlsym(library, "plugin_free");
  int (*plugin_fill)(CUdeviceptr, size_t) = (int (*)(CUdeviceptr, size_t))dlsym(library, "plugin_fill");
  CUdeviceptr ours[2] = {allocate(MIB), allocate(MIB)};
  CUdeviceptr its[2] = {plugin_allocate(MIB), plugin_allocate(MIB)};
  printf("the plugin fills its own and ours: %d %d\n", plugin_fill(its[0], MIB), plugin_fill(ours[1], MIB));
  unsigned char back = 0;
  MUST(cuMemcpyDtoH(&back, ours[1] + MIB - 1, 1));
  printf("%d\n", back);
  printf("the plugin frees its own: %d\n", plugin_free(its[0]));
  SAY(cuMemFree(its[1]));
  SAY(cuMemFree(ours[0]));
  SAY(cuMemFree(ours[1]));
  return 0;
}
