// The driver is in two files: libcuda.so.1 opens libcuda.so.1.1, in which lies what cuGetProcAddress gives. Ours it is all the same: what a runtime has that
// way frees what others allocate by name.
//! setup env["LD_LIBRARY_PATH"] = env["VICTIM_LIBRARIES"] + "/loader"
//! check c["allocations"] == 3 and c["frees"] == 3
//! case by_itself
//! check d["backing"] == "pages"
//! case pages
//! env CUPOOL_BACKING=pages
//! case segments
//! env CUPOOL_BACKING=segments
//! case late
//! args late
//! case whose_code
//! native skip
//! args objects
//! check out.count("libcupool.so") == 2 and "libcuda.so.1.1:cuDeviceGetName" in out
#include "resolve_object.h"
#include "late_functions.h"

typedef CUresult (*LookUp)(const char*, void**, int, cuuint64_t);

static LookUp find_look_up(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  return (LookUp)dlsym(driver, "cuGetProcAddress");
}

int main(int argc, char** argv) {
  const int is_late = argc > 1 && strcmp(argv[1], "late") == 0;
  const int with_objects = argc > 1 && strcmp(argv[1], "objects") == 0;
  LookUp look_up = is_late ? NULL : find_look_up();  // a runtime's first step, before any call
  enter_device(0);
  const CUdeviceptr first = allocate(64 * KIB), neighbour = allocate(64 * KIB);
  MUST(cuMemsetD8(neighbour, 7, 64 * KIB));
  if (is_late) look_up = find_look_up();
  LateAllocate runtime_allocate = NULL;
  LateFree runtime_free = NULL;
  void* unhooked = NULL;
  MUST(look_up("cuMemAlloc", (void**)&runtime_allocate, 12000, 0));
  MUST(look_up("cuMemFree", (void**)&runtime_free, 12000, 0));
  MUST(look_up("cuDeviceGetName", &unhooked, 12000, 0));
  if (with_objects) {
    print_place("cuMemAlloc", (void*)runtime_allocate);
    print_place("cuMemFree", (void*)runtime_free);
    print_place("cuDeviceGetName", unhooked);
  }
  use_both_kinds(first, neighbour, runtime_allocate, runtime_free);
  return 0;
}
