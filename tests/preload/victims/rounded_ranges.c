// Blocks of odd sizes lie beside each other. A program that exports them as dma-buf rounds each to pages of the host, as it must: down from the base, up to the end. That
// is a descriptor for each, natively and here; what is longer than any block that begins on the page is refused.
// The program's own mapping is exported as ever.
//! case default
//! case segments
//! env CUPOOL_BACKING=segments
#include "victim.h"

#define PAGE ((size_t)4096)

static CUresult export_range(CUdeviceptr from, CUdeviceptr to) {
  int descriptor = -1;
  const CUresult code = cuMemGetHandleForAddressRange(&descriptor, from, to - from, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
  if (descriptor >= 0) close(descriptor);
  return code;
}

static void export_own_mapping(void) {
  CUmemAllocationProp properties = {.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0}};
  const CUmemAccessDesc access = {.location = properties.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CUmemGenericAllocationHandle handle;
  CUdeviceptr address;
  MUST(cuMemAddressReserve(&address, 4 * MIB, 0, 0, 0));
  MUST(cuMemCreate(&handle, 4 * MIB, &properties, 0));
  MUST(cuMemMap(address, 4 * MIB, 0, handle, 0));
  MUST(cuMemSetAccess(address, 4 * MIB, &access, 1));
  SAY(export_range(address, address + 4 * MIB));
  SAY(export_range(address + MIB, address + 2 * MIB));
  MUST(cuMemUnmap(address, 4 * MIB));
  MUST(cuMemRelease(handle));
  MUST(cuMemAddressFree(address, 4 * MIB));
}

int main(void) {
  static const size_t sizes[] = {1000, 5000, 100000, MIB, MIB + 512, 3 * MIB, 5 * MIB + 4608, 64 * MIB};
  enum { kCount = sizeof sizes / sizeof *sizes };
  CUdeviceptr blocks[kCount];
  enter_device(0);
  for (int i = 0; i < kCount; ++i) blocks[i] = allocate(sizes[i]);
  for (int i = 0; i < kCount; ++i) {
    const CUdeviceptr from = blocks[i] / PAGE * PAGE;
    const CUdeviceptr to = (blocks[i] + sizes[i] + PAGE - 1) / PAGE * PAGE;
    SAY(export_range(from, to));
  }
  SAY(export_range(blocks[0], blocks[0] + 70 * MIB));
  export_own_mapping();
  return 0;
}
