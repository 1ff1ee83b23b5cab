// A program that has symbols of the driver's names itself, as those that load the driver by hand do (cuew and its kin): what goes by the search order is its own.
//! check "own: 1, 1" in out
//! case default
//! case switched_off
//! env CUPOOL_POLICY=off
//! report absent
#include "resolve_object.h"
#define cuMemAlloc_v2 declared_elsewhere
#include "victim.h"
#undef cuMemAlloc_v2

typedef CUresult (*Allocate)(CUdeviceptr*, size_t);
Allocate cuMemAlloc_v2; /* a pointer, for what is looked up */

int main(void) {
  enter_device(0);
  printf("own: %d, %d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == (void*)&cuMemAlloc_v2,
         dlsym(dlopen(NULL, RTLD_NOW), "cuMemAlloc_v2") == (void*)&cuMemAlloc_v2);
  cuMemAlloc_v2 = (Allocate)dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuMemAlloc_v2");
  CUdeviceptr block = 0;
  SAY(cuMemAlloc_v2(&block, MIB));
  SAY(cuMemFree(block));
  return 0;
}
