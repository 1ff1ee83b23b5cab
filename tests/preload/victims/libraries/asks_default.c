/* A plugin that is linked with the driver and loaded RTLD_LOCAL: only its own scope has libcuda. */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>

void* ask_default(const char* name) { return dlsym(RTLD_DEFAULT, name); }
void* linked_allocate(void) { return (void*)&cuMemAlloc_v2; }
