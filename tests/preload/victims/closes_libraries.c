// A plugin linked with the driver is opened, used and closed, again and again, and the driver with it: what was pooled stays valid.
//! check c["allocations"] == 6 and c["live_blocks"]["current"] == 0

#include "resolve_object.h"

typedef int (*Init)(unsigned);
typedef int (*Retain)(void**, int);
typedef int (*SetCurrent)(void*);
typedef int (*Allocate)(unsigned long long*, size_t);
typedef int (*Free)(unsigned long long);

int main(void) {
  unsigned long long blocks[6] = {0};
  for (int round = 0; round < 3; ++round) {
    void* plugin = open_library("libasks_default.so", RTLD_NOW | RTLD_LOCAL);
    void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    void* context = NULL;
    int codes = ((Init)dlsym(driver, "cuInit"))(0) + ((Retain)dlsym(driver, "cuDevicePrimaryCtxRetain"))(&context, 0);
    codes += ((SetCurrent)dlsym(driver, "cuCtxSetCurrent"))(context);
    Allocate allocate = (Allocate)dlsym(driver, "cuMemAlloc_v2");
    Free release = (Free)dlsym(driver, "cuMemFree_v2");
    codes += allocate(&blocks[round * 2], 1000) + allocate(&blocks[round * 2 + 1], 100000);
    codes += release(blocks[round * 2]) + release(blocks[round * 2 + 1]);
    printf("round %d: %d, closed %d %d\n", round, codes, dlclose(driver), dlclose(plugin));
  }
  return 0;
}
