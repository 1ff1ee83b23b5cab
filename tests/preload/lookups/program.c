/* An unmodified program on the real CUDA runtime. On a simulated driver cudaMalloc fails (cudart checks the driver's
 * authenticity, error 103), but all lookups have been made by then. With arguments: also calls call_runtime() of the
 * libraries named, each of which has a runtime of its own. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char** argv) {
  void* pointer = 0;
  printf("%d\n", (int)cudaMalloc(&pointer, 1000));
  for (int i = 1; i < argc; ++i) {
    void* library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    if (library == 0) return fprintf(stderr, "%s\n", dlerror()), 1;
    int (*call_runtime)(void) = (int (*)(void))dlsym(library, "call_runtime");
    printf("%d\n", call_runtime());
  }
  return 0;
}
