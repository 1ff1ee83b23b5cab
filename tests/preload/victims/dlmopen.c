// A plugin in a linker namespace of its own (dlmopen), where neither LD_PRELOAD nor this program's libcuda is: it has its own copy of the driver,
// and that one serves it natively. In this namespace everything is pooled as before, and a plugin opened into it by dlmopen is too.
//! check c["allocations"] == 3 and c["frees"] == 3 and c["foreign_frees"] == 0
//! env CUSIM_LOG=
#include "resolve_object.h"

#include "victim.h"

typedef CUdeviceptr (*Allocate)(size_t);
typedef int (*Free)(CUdeviceptr);
typedef CUresult (*Init)(unsigned);
typedef CUresult (*Retain)(CUcontext*, CUdevice);
typedef CUresult (*SetCurrent)(CUcontext);

static void* open_in(Lmid_t namespace) {
  char path[4096];
  snprintf(path, sizeof path, "%s/libdeepbind.so", getenv("VICTIM_LIBRARIES"));
  void* plugin = dlmopen(namespace, path, RTLD_NOW | RTLD_LOCAL);
  if (plugin == NULL) printf("%s\n", dlerror());
  return plugin;
}

int main(void) {
  enter_device(0);
  CUdeviceptr ours[2] = {allocate(MIB), allocate(MIB)};
  void* far = open_in(LM_ID_NEWLM);
  CUcontext context = NULL;
  SAY(((Init)dlsym(far, "cuInit"))(0)); /* of the driver that the plugin brought along */
  SAY(((Retain)dlsym(far, "cuDevicePrimaryCtxRetain"))(&context, 0));
  SAY(((SetCurrent)dlsym(far, "cuCtxSetCurrent"))(context));
  const CUdeviceptr its = ((Allocate)dlsym(far, "plugin_allocate"))(MIB);
  printf("allocated there: %d, freed there: %d\n", its != 0, ((Free)dlsym(far, "plugin_free"))(its));
  void* near = open_in(LM_ID_BASE);
  const CUdeviceptr pooled = ((Allocate)dlsym(near, "plugin_allocate"))(MIB);
  SAY(cuMemFree(pooled));
  SAY(cuMemFree(ours[0]));
  SAY(((Free)dlsym(near, "plugin_free"))(ours[1]));
  dlclose(far);
  return 0;
}
