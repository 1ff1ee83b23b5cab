// Buffers of 2 MiB and more among small and odd blocks, and a dma-buf descriptor of each, by the very pointer that cuMemAlloc gave.
#pragma once

#include "victim.h"

#define PAGE ((size_t)4096)

typedef CUresult (*ExportRange)(void*, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);

static CUresult export_range(ExportRange get, CUdeviceptr from, size_t bytes) {
  int descriptor = -1;
  const CUresult code = get(&descriptor, from, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (descriptor >= 0) close(descriptor);
  return code;
}

static void export_buffers(ExportRange get) {
  enum { kCount = 16 };
  CUdeviceptr small[kCount], odd[kCount], buffers[kCount];
  for (int i = 0; i < kCount; ++i) {
    const size_t bytes = (size_t)(i + 2) * MIB + (size_t)(i % 5) * PAGE;
    small[i] = allocate(512 * (size_t)(i % 7 + 1));
    odd[i] = allocate(2 * MIB + 512 * (size_t)(i % 3 + 1));
    buffers[i] = allocate(bytes);
    SAY(export_range(get, buffers[i], bytes));
    SAY(export_range(get, buffers[i] + 3 * PAGE, MIB));
    if (i % 2 == 1) MUST(cuMemFree(odd[i - 1]));
  }
  for (int i = 0; i < kCount; ++i) {  // and once there are holes of all kinds
    MUST(cuMemFree(small[i]));
    if (i % 3 != 0) continue;
    const size_t bytes = (size_t)(i + 2) * MIB;
    MUST(cuMemFree(buffers[i]));
    buffers[i] = allocate(bytes);
    SAY(export_range(get, buffers[i], bytes));
  }
  for (int i = 0; i < kCount - 6; ++i) {
    const CUdeviceptr more = allocate(2 * MIB + PAGE * (size_t)(i + 1));
    SAY(export_range(get, more, 2 * MIB));
  }
}
