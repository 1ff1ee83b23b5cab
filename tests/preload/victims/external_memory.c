// Buffers of external memory are not the pool's, but are freed with cuMemFree: the driver gets them, also when pooled blocks lie around
// them, and their addresses answer as the driver's.
//! check c["allocations"] == 2 and c["frees"] == 2 and c["foreign_frees"] == 2 and c["live_blocks"]["current"] == 0
//! check "cuImportExternalMemory" in report["data_quality"]["unpooled_apis_seen"]
//! check calls("cuMemFree_v2") == native.calls("cuMemFree_v2") - 2
#define _GNU_SOURCE
#include <sys/mman.h>

#include "victim.h"

int main(void) {
  enter_device(0);
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC wanted;
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC range;
  CUexternalMemory memory;
  CUdeviceptr buffers[2], base = 0;
  size_t bytes = 0;
  memset(&wanted, 0, sizeof wanted);
  memset(&range, 0, sizeof range);
  wanted.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  wanted.size = 8 * MIB;
  wanted.handle.fd = memfd_create("external", MFD_CLOEXEC);
  MUST(ftruncate(wanted.handle.fd, 8 * MIB));
  CUdeviceptr before = allocate(MIB);
  MUST(cuImportExternalMemory(&memory, &wanted));
  for (int i = 0; i < 2; ++i) {
    range.offset = i * 4 * MIB;
    range.size = 4 * MIB;
    MUST(cuExternalMemoryGetMappedBuffer(&buffers[i], memory, &range));
    MUST(cuMemsetD8(buffers[i], 10 + i, 4 * MIB));
  }
  CUdeviceptr after = allocate(MIB);
  SAY(cuMemGetAddressRange(&base, &bytes, buffers[1] + 5));
  printf("range of the buffer: %d %zu\n", base == buffers[1], bytes);
  unsigned char back[2] = {0, 0};
  MUST(cuMemcpyDtoH(&back[0], buffers[0], 1));
  MUST(cuMemcpyDtoH(&back[1], buffers[1], 1));
  printf("%d %d\n", back[0], back[1]);
  SAY(cuMemFree(before));
  SAY(cuMemFree(buffers[0]));
  SAY(cuDestroyExternalMemory(memory));
  SAY(cuMemFree(buffers[1]));
  SAY(cuMemFree(after));
  return 0;
}
