// As raw_descriptors.c, by a function that the program looks up: as NCCL does, or by name.
//! case by_proc_address
//! args proc_address
//! check c["allocations"] == 64
//! case by_name
//! args name
//! check c["allocations"] == 64
//! case after_blocks
//! args name late
//! check c["allocations"] == 65
#include <dlfcn.h>
#include <string.h>

#include "raw_descriptors.h"

int main(int count, char** arguments) {
  CUdeviceptr odd = 0;
  void* get = NULL;
  enter_device(0);
  if (count > 2) odd = allocate(2 * MIB + 512);  // the pool is there already
  if (strcmp(arguments[1], "name") == 0) get = dlsym(RTLD_DEFAULT, "cuMemGetHandleForAddressRange");
  else MUST(cuGetProcAddress("cuMemGetHandleForAddressRange", &get, 11070, 0, NULL));
  export_buffers((ExportRange)get);
  return odd % 512 != 0;
}
