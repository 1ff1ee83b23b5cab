/* Stands for a libcuda that looks its own functions up, as NVIDIA's does: it must find itself. */
#define _GNU_SOURCE
#include <dlfcn.h>

int cuInit(unsigned flags) { return (int)flags; }
int cuMemAlloc_v2(void* out, unsigned long bytes) { return out != 0 && bytes != 0; }

int finds_itself(const char* own_path) {
  void* self = dlopen(own_path, RTLD_NOW | RTLD_NOLOAD);
  return self != 0 && dlsym(self, "cuMemAlloc_v2") == (void*)&cuMemAlloc_v2;
}
