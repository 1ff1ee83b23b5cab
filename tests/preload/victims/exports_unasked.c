// A program that gives no sign of sharing memory, and does: its first export is refused, with one line, if its memory lies on pages; contexts
// that come after it have memory that can be shared. Programs that give a sign never have pages.
//! check "wrong: 0" in out
//! case auto
//! native skip
//! args auto
//! stderr* cupool\[<pid>\].*cuIpcGetMemHandle is refused for memory on mapped pages: with CUPOOL_BACKING=segments it can be shared with other processes
//! check d["backing"] == "segments" and "after a new context: 0" in out and ("first export: 801" in out) == (err.count("\n") == 1)
//! case segments
//! env CUPOOL_BACKING=segments
//! case local_ranks
//! env LOCAL_WORLD_SIZE=2
//! check d["backing"] == "segments"
//! case slurm_ranks
//! env SLURM_STEP_TASKS_PER_NODE=1,4(x2)
//! check d["backing"] == "segments"
//! case second_rank
//! env MPI_LOCALRANKID=1
//! check d["backing"] == "segments"
//! case deepspeed_ranks
//! env LOCAL_RANK=0
//! env WORLD_SIZE=2
//! env LOCAL_SIZE=2
//! check d["backing"] == "segments"
//! case horovod_ranks
//! env HOROVOD_LOCAL_RANK=0
//! env HOROVOD_LOCAL_SIZE=2
//! check d["backing"] == "segments"
//! case lightnings_first_rank
//! env LOCAL_RANK=0
//! env WORLD_SIZE=2
//! check d["backing"] == "segments"
//! case looked_up_in_the_runtime
//! args runtime
//! check d["backing"] == "segments"
//! case looked_up
//! args dlsym
//! check d["backing"] == "segments"
//! case ranks_elsewhere
//! native skip
//! args auto
//! env SLURM_STEP_TASKS_PER_NODE=1(x4)
//! env LOCAL_WORLD_SIZE=1
//! env LOCAL_RANK=0
//! env PMI_LOCAL_SIZE=nonsense
//! stderr* .*is refused for memory on mapped pages.*
//! check ("first export: 801" in out) == (err.count("\n") == 1)
//! case forced
//! native skip
//! args pages
//! env CUPOOL_BACKING=pages
//! env LOCAL_WORLD_SIZE=8
//! stderr .*is refused for memory on mapped pages.*
//! check d["backing"] == "pages" and "after a new context: 801" in out
#include <dlfcn.h>

#include "victim.h"

typedef CUresult (*Export)(CUipcMemHandle*, CUdeviceptr);

static CUresult export_block(Export export, CUdeviceptr block, CUipcMemHandle* handle) {
  memset(handle, 0, sizeof *handle);
  return export(handle, block);
}

int main(int count, char** words) {
  const char* how = count > 1 ? words[1] : "";
  CUipcMemHandle handle;
  Export export = NULL;
  void* found = NULL;
  if (strcmp(how, "runtime") == 0) {  // as vLLM's all-reduce, by ctypes
    void* runtime = dlopen("libcudart.so.13", RTLD_NOW);
    MUST(runtime == NULL || dlsym(runtime, "cudaIpcGetMemHandle") == NULL);
  }
  if (strcmp(how, "dlsym") == 0) {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    export = (Export)dlsym(driver, "cuIpcGetMemHandle");
  } else {
    CUdriverProcAddressQueryResult status;
    MUST(cuGetProcAddress("cuIpcGetMemHandle", &found, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status));
    export = (Export)found;
  }
  enter_device(0);
  CUdeviceptr block = allocate(MIB);
  printf("first export: %d\n", export_block(export, block, &handle));
  printf("again: %d\n", export_block(export, block + 4096, &handle));
  printf("without a place: %d\n", export(NULL, block));
  printf("nothing: %d\n", export_block(export, 0, &handle));
  MUST(cuCtxSetCurrent(NULL));
  printf("without a context: %d\n", export_block(export, block, &handle));
  MUST(cuDevicePrimaryCtxReset(0));
  enter_device(0);
  block = allocate(MIB);
  printf("after a new context: %d\n", export_block(export, block, &handle));
  MUST(cuMemFree(block));
  printf("wrong: 0\n");
  return 0;
}
