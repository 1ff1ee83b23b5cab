// What queries say of a block, of addresses inside it, behind it and of a freed one: as of cuMemAlloc memory.
//! check c["allocations"] == 2
//! case default
//! case segments
//! env CUPOOL_BACKING=segments
//! check d["backing"] == "segments"
//! case pages
//! env CUPOOL_BACKING=pages
//! check d["backing"] == "pages"
//! case pages_without_ranges
//! env CUPOOL_BACKING=pages
//! env CUSIM_VMM_RANGE=0
//! case pages_without_descriptors
//! env CUPOOL_BACKING=pages
//! env CUSIM_VMM_FD=0
//! check d["backing"] == "pages"
//! case pages_whose_descriptors_are_refused
//! env CUPOOL_BACKING=pages
//! env CUSIM_VMM_FD=refused
//! check d["backing"] == "pages"
#include "victim.h"

static CUdeviceptr block;

// Prints addresses as offsets from the block, everything else as it is; 8 bytes of output are marked to see what is written.
static void ask(const char* name, CUpointer_attribute attribute, CUdeviceptr address, int is_address) {
  uint64_t value = 0;
  int code = cuPointerGetAttribute(&value, attribute, address);
  if (code != 0) value = 0;
  if (is_address && value != 0) value -= block;
  printf("  %s: %d, %llx\n", name, code, (unsigned long long)value);
}

static void ask_all(const char* what, CUdeviceptr address) {
  printf("%s\n", what);
  ask("memory type", CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address, 0);
  ask("device pointer", CU_POINTER_ATTRIBUTE_DEVICE_POINTER, address, 1);
  ask("host pointer", CU_POINTER_ATTRIBUTE_HOST_POINTER, address, 0);
  ask("managed", CU_POINTER_ATTRIBUTE_IS_MANAGED, address, 0);
  ask("ordinal", CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address, 0);
  ask("legacy ipc", CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address, 0);
  ask("range start", CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, address, 1);
  ask("range size", CU_POINTER_ATTRIBUTE_RANGE_SIZE, address, 0);
  ask("mapped", CU_POINTER_ATTRIBUTE_MAPPED, address, 0);
  ask("handle types", CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, address, 0);
  ask("mempool", CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address, 0);
  ask("sync memops", CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address, 0);
  ask("access", CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address, 0);
  ask("rdma", CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, address, 0);
  ask("mapping base", CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, address, 1);
  ask("mapping size", CU_POINTER_ATTRIBUTE_MAPPING_SIZE, address, 0);
  ask("nonsense", (CUpointer_attribute)9999, address, 0);
}

static void ask_range(const char* what, CUdeviceptr address) {
  CUdeviceptr base = 0;
  size_t bytes = 0;
  int code = cuMemGetAddressRange(&base, &bytes, address);
  printf("%s: %d, base %lld, %zu bytes\n", what, code, code == 0 ? (long long)(base - block) : 0, code == 0 ? bytes : 0);
  code = cuMemGetAddressRange(NULL, &bytes, address);
  printf("%s without base: %d, %zu\n", what, code, code == 0 ? bytes : 0);
  code = cuMemGetAddressRange(&base, NULL, address);
  printf("%s without size: %d\n", what, code);
  SAY(cuMemGetAddressRange(NULL, NULL, address));
}

int main(void) {
  CUcontext current = enter_device(0), owner = NULL;
  block = allocate(MIB);
  CUdeviceptr other = allocate(MIB);
  ask_all("at the block", block);
  ask_all("inside the block", block + 4097);
  ask_range("block", block);
  ask_range("inside", block + MIB - 1);
  MUST(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, block));
  printf("own context %d\n", owner == current);
  unsigned long long first = 0, second = 0, again = 0;
  MUST(cuPointerGetAttribute(&first, CU_POINTER_ATTRIBUTE_BUFFER_ID, block));
  MUST(cuPointerGetAttribute(&again, CU_POINTER_ATTRIBUTE_BUFFER_ID, block + 100));
  MUST(cuPointerGetAttribute(&second, CU_POINTER_ATTRIBUTE_BUFFER_ID, other));
  printf("buffer ids: same block %d, other block %d\n", first == again, first == second);
  CUmemGenericAllocationHandle handle = 0;
  SAY(cuMemRetainAllocationHandle(&handle, (void*)(uintptr_t)block));
  int descriptor = -1;
  SAY(cuMemGetHandleForAddressRange(&descriptor, block, MIB, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0));
  if (descriptor >= 0) close(descriptor);
  MUST(cuCtxSetCurrent(NULL));
  ask_range("without a context", block);
  MUST(cuCtxSetCurrent(current));
  unsigned on = 1;
  SAY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block));
  ask_all("after sync memops", block);
  ask_all("null", 0);
  ask_all("nowhere", 0x1234);
  ask_range("nowhere", 0x1234);
  SAY(cuPointerGetAttribute(NULL, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, block));
  MUST(cuMemFree(other));
  ask_all("freed", other);
  ask_range("freed", other);
  return 0;
}
