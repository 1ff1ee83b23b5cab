// A program that knows no CUDA at link time: before libcuda is loaded there is nothing to find, afterwards what we hook is ours.
//! native skip
//! report absent
//! check out.splitlines() == ["before: cuInit -> none:NULL", "before: cuMemAlloc_v2 -> none:NULL", "cuInit -> libcuda.so.1:cuInit", "cuMemAlloc -> libcupool.so:cuMemAlloc", "cuMemAlloc_v2 -> libcupool.so:cuMemAlloc_v2", "cuMemAllocAsync_ptsz -> libcupool.so:cuMemAllocAsync_ptsz", "cuGetProcAddress -> libcupool.so:cuGetProcAddress", "cuGetProcAddress_v2 -> libcupool.so:cuGetProcAddress_v2", "cuMemcpyPeerAsync -> libcuda.so.1:cuMemcpyPeerAsync", "still local: cuInit -> none:NULL", "still local: cuMemAlloc_v2 -> none:NULL", "still local, next: cuMemAlloc_v2 -> none:NULL", "global: cuInit -> libcuda.so.1:cuInit", "global: cuMemAlloc_v2 -> libcupool.so:cuMemAlloc_v2"]
#include "resolve_object.h"

int main(void) {
  const char* names[] = {"cuInit",           "cuMemAlloc",          "cuMemAlloc_v2",    "cuMemAllocAsync_ptsz",
                         "cuGetProcAddress", "cuGetProcAddress_v2", "cuMemcpyPeerAsync"};
  print_place("before: cuInit", dlsym(RTLD_DEFAULT, "cuInit"));
  print_place("before: cuMemAlloc_v2", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) print_place(names[i], dlsym(driver, names[i]));
  print_place("still local: cuInit", dlsym(RTLD_DEFAULT, "cuInit"));
  print_place("still local: cuMemAlloc_v2", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  print_place("still local, next: cuMemAlloc_v2", dlsym(RTLD_NEXT, "cuMemAlloc_v2"));
  dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
  print_place("global: cuInit", dlsym(RTLD_DEFAULT, "cuInit"));
  print_place("global: cuMemAlloc_v2", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  return 0;
}
