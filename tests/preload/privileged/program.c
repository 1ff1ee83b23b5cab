/* Says who runs it, and whose functions it gets and by which way; then uses the memory. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <unistd.h>

static const char* object_of(const void* address) {
  Dl_info info;
  const char* slash = dladdr(address, &info) != 0 ? strrchr(info.dli_fname, '/') : NULL;
  return slash != NULL ? slash + 1 : "?";
}

int main(void) {
  CUcontext context = NULL;
  CUdeviceptr address = 0;
  printf("secure %lu, euid %u\n", getauxval(AT_SECURE), geteuid());
  printf("linked %s, looked up %s\n", object_of((void*)&cuMemAlloc_v2), object_of(dlsym(RTLD_DEFAULT, "cuMemAlloc_v2")));
  const int codes[] = {cuInit(0),
                       cuDevicePrimaryCtxRetain(&context, 0),
                       cuCtxSetCurrent(context),
                       cuMemAlloc_v2(&address, 1 << 20),
                       cuMemFree_v2(address),
                       cuMemAlloc_v2(&address, 100)};
  for (unsigned i = 0; i < sizeof codes / sizeof *codes; ++i) printf("%d ", codes[i]);
  printf("\n");
  return 5;
}
