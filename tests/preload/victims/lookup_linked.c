// A program linked with the driver: its calls, and the addresses it takes, are ours where we hook, the driver's elsewhere.
//! native skip
//! check out.splitlines() == ["cuMemAlloc -> libcupool.so:cuMemAlloc_v2", "cuMemFree -> libcupool.so:cuMemFree_v2", "cuMemcpyPeerAsync -> libcuda.so.1:cuMemcpyPeerAsync", "RTLD_DEFAULT cuMemAlloc_v2 -> libcupool.so:cuMemAlloc_v2", "RTLD_DEFAULT cuMemcpyPeerAsync -> libcuda.so.1:cuMemcpyPeerAsync", "itself cuMemFree_v2 -> libcupool.so:cuMemFree_v2"]
//! check c["allocations"] == 1
#include "resolve_object.h"
#include "victim.h"

int main(void) {
  print_place("cuMemAlloc", (const void*)&cuMemAlloc);
  print_place("cuMemFree", (const void*)&cuMemFree);
  print_place("cuMemcpyPeerAsync", (const void*)&cuMemcpyPeerAsync);
  print_place("RTLD_DEFAULT cuMemAlloc_v2", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  print_place("RTLD_DEFAULT cuMemcpyPeerAsync", dlsym(RTLD_DEFAULT, "cuMemcpyPeerAsync"));
  print_place("itself cuMemFree_v2", dlsym(dlopen(NULL, RTLD_NOW), "cuMemFree_v2"));
  enter_device(0);
  allocate(MIB);
  return 0;
}
