// A program with weak references to driver functions and no libcuda: natively they are null. Under us the ones that we export are not
// (a stated difference of linking); RTLD_NEXT finds nothing, as natively; calling one answers as a driver that is not initialised does, and nothing breaks.
//! native skip
//! report absent
//! check out == "hooked: 1\nnot hooked: 0\nnext: 0\ncall: 3\n" and files == []
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

__attribute__((weak)) int cuMemAlloc_v2(unsigned long long*, unsigned long);
__attribute__((weak)) int cuMemcpyPeerAsync(unsigned long long, unsigned long long, unsigned long);

int main(void) {
  unsigned long long address = 0;
  printf("hooked: %d\nnot hooked: %d\n", cuMemAlloc_v2 != 0, cuMemcpyPeerAsync != 0);
  printf("next: %d\n", dlsym(RTLD_NEXT, "cuMemAlloc_v2") != NULL);
  if (cuMemAlloc_v2 != 0) printf("call: %d\n", cuMemAlloc_v2(&address, 1000));
  return 0;
}
