// Other libraries that stand in for things beside us, before and behind us in LD_PRELOAD: allocators, dlsym in C and by a jump, an auditor. Every
// way of allocating is pooled, whatever allocates may free, and the others still see what they saw.
//! check c["allocations"] == 6 and c["frees"] == 6 and c["foreign_frees"] == 0
//! case mimalloc_before
//! needs glob("/usr/lib/x86_64-linux-gnu/libmimalloc.so.2*")
//! preload /usr/lib/x86_64-linux-gnu/libmimalloc.so.2|
//! case mimalloc_behind
//! needs glob("/usr/lib/x86_64-linux-gnu/libmimalloc.so.2*")
//! preload |/usr/lib/x86_64-linux-gnu/libmimalloc.so.2
//! case jemalloc_before
//! needs glob("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")
//! preload /usr/lib/x86_64-linux-gnu/libjemalloc.so.2|
//! case jemalloc_behind
//! needs glob("/usr/lib/x86_64-linux-gnu/libjemalloc.so.2")
//! preload |/usr/lib/x86_64-linux-gnu/libjemalloc.so.2
//! case dlsym_in_c_before
//! preload libdlsym_by_version.so|
//! check "seen: 3, jumped: -1" in out
//! case dlsym_in_c_behind
//! preload |libdlsym_by_version.so
//! check "seen: 3, jumped: -1" in out
//! case dlsym_by_jump_before
//! preload libdlsym_by_jump.so|
//! check "seen: -1, jumped: 3" in out
//! case dlsym_by_jump_behind
//! preload |libdlsym_by_jump.so
//! check "seen: -1, jumped: 3" in out
//! case dlsym_on_both_sides
//! preload libdlsym_by_jump.so|libdlsym_by_version.so
//! native skip
//! check "seen: 3, jumped: 3" in out
//! case dlsym_behind_by_default_order
//! preload |libdlsym_by_default.so
//! check "seen: -1, jumped: 3" in out
//! case auditor
//! setup env["LD_AUDIT"] = env["VICTIM_LIBRARIES"] + "/libaudit_bindings.so"
//! case auditor_and_dlsym
//! setup env["LD_AUDIT"] = env["VICTIM_LIBRARIES"] + "/libaudit_bindings.so"
//! preload |libdlsym_by_jump.so
#include "resolve_object.h"

#include <cuda_runtime_api.h>
#include <pthread.h>

#include "victim.h"

static int count_of(const char* function) {
  int (*count)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, function);
  return count != NULL ? count() : -1;
}

static int value_of(void* handle, const char* name) {
  int (*function)(int) = (int (*)(int))dlsym(handle, name);
  return function != NULL ? function(0) : -77;
}

static void* in_a_thread(void* context) {
  void* by_runtime = NULL;
  MUST(cuCtxSetCurrent(context));
  MUST(cudaMalloc(&by_runtime, 3 * MIB));
  return by_runtime;
}

int main(void) {
  void* wrapper = open_library("libnext_first.so", RTLD_NOW | RTLD_LOCAL);
  printf("wrapped: %d %d\n", value_of(wrapper, "probe_value"), value_of(wrapper, "cuProbeValue"));
  CUcontext context = enter_device(0);
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  CUresult (*allocate_found)(CUdeviceptr*, size_t) = (CUresult(*)(CUdeviceptr*, size_t))dlsym(driver, "cuMemAlloc_v2");
  CUresult (*free_found)(CUdeviceptr) = (CUresult(*)(CUdeviceptr))dlsym(RTLD_DEFAULT, "cuMemFree_v2");
  CUdeviceptr found[2], direct[2] = {allocate(MIB), allocate(10)};
  void *by_runtime[1], *of_thread;
  for (int i = 0; i < 2; ++i) MUST(allocate_found(&found[i], MIB));
  MUST(cudaMalloc(&by_runtime[0], 2 * MIB));
  pthread_t thread;
  pthread_create(&thread, NULL, in_a_thread, context);
  pthread_join(thread, &of_thread);
  SAY(cudaFree((void*)direct[0])); /* each freed by another way than it came */
  SAY(free_found(direct[1]));
  SAY(cuMemFree(found[0]));
  SAY(cudaFree((void*)found[1]));
  SAY(free_found((CUdeviceptr)by_runtime[0]));
  SAY(cuMemFree((CUdeviceptr)of_thread));
  for (int i = 0; i < 3; ++i) dlsym(RTLD_DEFAULT, "plain_lookup");
  printf("seen: %d, jumped: %d\n", count_of("seen_plain_lookups"), count_of("jumped_plain_lookups"));
  return 0;
}
