/* Counts the allocations that pass by, as tracers do that are preloaded in front of the driver. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

int tracer_saw;

int cuMemAlloc_v2(unsigned long long* address, size_t bytes) {
  int (*next)(unsigned long long*, size_t) = (int (*)(unsigned long long*, size_t))dlsym(RTLD_NEXT, "cuMemAlloc_v2");
  ++tracer_saw;
  return next(address, bytes);
}
