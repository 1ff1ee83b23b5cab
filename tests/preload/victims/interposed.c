// A tracer is preloaded beside us and has a driver function of its own: whoever stands first is found by every lookup that goes by the search order, as without us, and
// sees each allocation; also where the library is switched off. Behind us it is found where the search order is asked, since it would be without us.
//! case in_front
//! check c["allocations"] == 3
//! preload libtracer.so:|
//! check "tracer saw 3" in out
//! case in_front_switched_off
//! preload libtracer.so:|
//! env CUPOOL_POLICY=off
//! report absent
//! check "tracer saw 3" in out
//! case behind
//! preload |:libtracer.so
//! native skip
//! check "tracer saw 2" in out and c["allocations"] == 1
//! case behind_switched_off
//! preload |:libtracer.so
//! native skip
//! env CUPOOL_POLICY=off
//! report absent
//! check "tracer saw 2" in out
#include "resolve_object.h"
#include "victim.h"

typedef CUresult (*Allocate)(CUdeviceptr*, size_t);

static void use(const char* what, Allocate allocate_by) {
  CUdeviceptr block = 0;
  printf("%s: in the tracer %d\n", what, strcmp(object_at((const void*)allocate_by), "libtracer.so") == 0);
  MUST(allocate_by(&block, MIB));
  MUST(cuMemFree(block));
}

int main(void) {
  enter_device(0);
  use("linked", &cuMemAlloc);
  use("RTLD_DEFAULT", (Allocate)dlsym(RTLD_DEFAULT, "cuMemAlloc_v2"));
  use("dlopen(NULL)", (Allocate)dlsym(dlopen(NULL, RTLD_NOW), "cuMemAlloc_v2"));
  printf("tracer saw %d\n", *(int*)dlsym(RTLD_DEFAULT, "tracer_saw"));
  return 0;
}
