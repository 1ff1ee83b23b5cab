// Lookups whose answer depends on who asks: RTLD_NEXT from a library, RTLD_DEFAULT from a plugin's own scope, a driver that looks itself
// up; and names that begin with cu but are not the driver's.
//! report absent
//! case same_as_natively
//! case a_driver_that_looks_itself_up
//! args self
//! case ours_where_hooked
//! native skip
//! args objects
//! check "plugin default cuMemAlloc_v2 -> libcupool.so:cuMemAlloc_v2" in out and "plugin default cuMemcpyPeerAsync -> libcuda.so.1:cuMemcpyPeerAsync" in out
//! check "plugin linked -> libcupool.so:cuMemAlloc_v2" in out and "fake driver's function -> libcudnn.so.9:cuMemAlloc_v2" in out
#include "resolve_object.h"

static int value_of(void* handle, const char* name) {
  int (*function)(int) = (int (*)(int))dlsym(handle, name);
  return function != NULL ? function(0) : -77;
}

static int print_self_lookup(void) {
  char path[4096];
  void* driver = open_library("libcuda.so.99", RTLD_NOW | RTLD_LOCAL);
  snprintf(path, sizeof path, "%s/libcuda.so.99", getenv("VICTIM_LIBRARIES"));
  int (*finds_itself)(const char*) = (int (*)(const char*))dlsym(driver, "finds_itself");
  int found = finds_itself(path);
  printf("a driver finds itself: %d\n", found);
  return found;
}

int main(int argc, char** argv) {
  void* first = open_library("libnext_first.so", RTLD_NOW | RTLD_LOCAL);
  printf("RTLD_NEXT: %d %d\n", value_of(first, "probe_value"), value_of(first, "cuProbeValue"));
  void* cudnn = open_library("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL);
  printf("not the driver: %d %d %d %d\n", value_of(cudnn, "cudnnFoo"), value_of(cudnn, "cuFoo"), value_of(cudnn, "cublasBar"),
         value_of(cudnn, "cuMemAlloc_v2"));
  if (argc > 1 && strcmp(argv[1], "self") == 0) return !print_self_lookup();
  if (argc == 1) return 0;
  void* plugin = open_library("libasks_default.so", RTLD_NOW | RTLD_LOCAL);
  void* (*ask_default)(const char*) = (void* (*)(const char*))dlsym(plugin, "ask_default");
  void* (*linked)(void) = (void* (*)(void))dlsym(plugin, "linked_allocate");
  print_place("plugin default cuMemAlloc_v2", ask_default("cuMemAlloc_v2"));
  print_place("plugin default cuMemcpyPeerAsync", ask_default("cuMemcpyPeerAsync"));
  print_place("plugin linked", linked());
  print_place("fake driver's function", dlsym(cudnn, "cuMemAlloc_v2"));
  return 0;
}
