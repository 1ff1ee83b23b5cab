// A program whose memory lies on pages shares a block after all. A block that it asks for then can be shared, in the same context: once a first export was refused,
// or at once where the runtime's function was looked up by name, as vLLM's all-reduce does by ctypes. What lies on pages stays there, and is freed as ever.
//! check "fresh: 0" in out and "fresh, large: 0" in out and c["live_blocks"]["current"] == 0 and d["backing"] == "pages"
//! case refused_once
//! native skip
//! args refused
//! stderr cupool\[<pid>\].*cuIpcGetMemHandle is refused for memory on mapped pages.*
//! check "first: 801" in out
//! case looked_up
//! args looked_up
//! check c["native_fallbacks"] == 2
#include <dlfcn.h>

#include "victim.h"

typedef CUresult (*Export)(CUipcMemHandle*, CUdeviceptr);

int main(int count, char** words) {
  const int is_looked_up = count > 1 && strcmp(words[1], "looked_up") == 0;
  CUipcMemHandle handle;
  void* found = NULL;
  CUdriverProcAddressQueryResult status;
  MUST(cuGetProcAddress("cuIpcGetMemHandle", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
  const Export export = (Export)found;
  enter_device(0);
  CUdeviceptr first = allocate(3 * MIB);
  if (is_looked_up) {
    void* runtime = dlopen("libcudart.so.13", RTLD_NOW);
    MUST(runtime == NULL || dlsym(runtime, "cudaIpcGetMemHandle") == NULL);
  } else {
    printf("first: %d\n", export(&handle, first));
  }
  CUdeviceptr fresh = allocate(MIB), large = allocate(100 * MIB);
  MUST(cuMemsetD8(fresh, 1, MIB));
  printf("fresh: %d\n", export(&handle, fresh));
  printf("fresh, large: %d\n", export(&handle, large));
  MUST(cuMemFree(first));
  MUST(cuMemFree(large));
  MUST(cuMemFree(fresh));
  return 0;
}
