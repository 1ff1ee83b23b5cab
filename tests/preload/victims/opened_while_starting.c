// One thread opens a library whose constructor calls CUDA, another makes the process's first hooked call meanwhile: the constructor runs under the loader's lock, so
// who makes the process live must not wait for that.
//! seconds 30
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

#include "victim.h"

atomic_int is_in_constructor;  // the library's, too

// Called by the library's constructor, by way of the order of symbols.
__attribute__((visibility("default"))) void in_constructor(void) {
  CUcontext context = NULL;
  CUdeviceptr address = 0;
  atomic_store(&is_in_constructor, 1);
  for (int i = 0; i < 2000; ++i) sched_yield();  // the other thread is to be inside its call by then, or soon
  MUST(cuDevicePrimaryCtxRetain(&context, 0));
  MUST(cuCtxSetCurrent(context));
  MUST(cuMemAlloc(&address, MIB));
}

static void* open_it(void* unused) {
  char path[4096];
  snprintf(path, sizeof path, "%s/libcalls_back.so", getenv("VICTIM_LIBRARIES"));
  if (dlopen(path, RTLD_NOW) == NULL) puts(dlerror());
  return unused;
}

int main(void) {
  pthread_t thread;
  MUST(cuInit(0));
  if (dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL) return 2;  // the driver is known from here on, as where a runtime has looked it up
  pthread_create(&thread, NULL, open_it, NULL);
  while (!atomic_load(&is_in_constructor)) sched_yield();
  enter_device(0);
  allocate(MIB);
  pthread_join(thread, NULL);
  return 0;
}
