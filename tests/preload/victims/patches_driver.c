// A library that patches the driver's functions in memory, as UCX does: it is given our entry points to patch, it can, and it sees every block
// come and go, with its size, before the block is gone; what its hooks call works. One that digs out the driver's own functions sees the
// pool's regions instead, and breaks nothing.
//! native skip
//! case near
//! args near
//! check "patched 4 in libcupool.so" in out and "allocations 9 of 9, frees 8 of 8, known 8" in out and "last free 8192" in out
//! check c["allocations"] == 9 and c["frees"] == 8
//! case far
//! args far
//! check "patched 4 in libcupool.so" in out and "allocations 9 of 9, frees 8 of 8, known 8" in out and "last free 8192" in out
//! check c["allocations"] == 9 and c["frees"] == 8
//! case the_driver_itself
//! args driver
//! check re.search(r"patched [1-4] in libcuda.so.1", out) and c["allocations"] == 9 and c["frees"] == 8
//! case switched_off
//! args far
//! env CUPOOL_POLICY=off
//! report absent
//! check "in libcuda.so.1" in out
#include "resolve_object.h"

#include <cuda_runtime_api.h>

#include "libraries/patcher.h"
#include "victim.h"

typedef int (*Install)(void* (*)(const char*), int, const char**);
typedef void* (*Dlsym)(void*, const char*);

/* Past every interposer: the dlsym of libc, and the handle of the driver. */
static void* find_in_driver(const char* name) {
  Dlsym real = (Dlsym)dlvsym(dlopen("libc.so.6", RTLD_NOW), "dlsym", "GLIBC_2.2.5");
  return real(dlopen("libcuda.so.1", RTLD_NOW), name);
}

static int allocations, frees;

static void use_every_way(void) {
  CUdeviceptr plain[5], ordered;
  void* by_runtime;
  for (int i = 0; i < 5; ++i) plain[i] = allocate(MIB + (size_t)i);
  for (int i = 0; i < 5; ++i) MUST(cuMemFree(plain[i]));
  MUST(cudaMalloc(&by_runtime, 3000)); /* by pointers that it looked up before the patch */
  MUST(cudaFree(by_runtime));
  MUST(cuMemAllocAsync(&ordered, 5000, NULL));
  MUST(cuMemFreeAsync(ordered, NULL));
  MUST(cudaMalloc(&by_runtime, 8192));
  MUST(cudaFree(by_runtime));
  allocations = 8;
  frees = 8;
}

int main(int argc, char** argv) {
  const char* how = argc > 1 ? argv[1] : "near";
  const char* object = "nothing";
  enter_device(0);
  MUST(cudaFree(NULL)); /* the runtime has looked everything up by now */
  void* patcher = open_library("libpatcher.so", RTLD_NOW | RTLD_LOCAL);
  Install install = (Install)dlsym(patcher, "patcher_install");
  struct patcher_counts* seen = dlsym(patcher, "patcher_seen");
  const int is_driver = strcmp(how, "driver") == 0;
  const int patched = install(is_driver ? find_in_driver : NULL, strcmp(how, "near") != 0 && !is_driver, &object);
  printf("patched %d in %s\n", patched, object);
  use_every_way();
  CUdeviceptr kept = allocate(700); /* an exporter would ask for its handle now */
  ++allocations;
  printf("last allocation %d\n", seen->last_address == kept && seen->last_bytes == 700);
  printf("allocations %d of %d, frees %d of %d, known %d\n", seen->allocations, allocations, seen->frees, frees, seen->known_frees);
  printf("last free %zu\n", seen->last_freed_bytes);
  return 0;
}
