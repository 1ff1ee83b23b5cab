// SYNC_MEMOPS: a synchronous copy or memset that touches such memory is waited for, also of memory of which the driver itself does not offer it; one
// that touches other memory, and what was asked for in a stream, is not.
//! case default
//! case stream_ordered
//! env VICTIM_ORDERED=1
//! case async
//! env CUPOOL_POLICY=async
//! case platform
//! env CUPOOL_POLICY=platform
//! case segments
//! env CUPOOL_BACKING=segments
#include <cuda.h>
#include "cusim.h"
#include "victim.h"

CUresult CUDAAPI cuMemsetD8_v2_ptds(CUdeviceptr address, unsigned char value, size_t count);

enum { WORK_NS = 30 * 1000 * 1000 };

static CUdeviceptr block_of(size_t bytes) {
  CUdeviceptr address = 0;
  if (getenv("VICTIM_ORDERED") == NULL) return allocate(bytes);
  MUST(cuMemAllocAsync(&address, bytes, NULL));
  MUST(cuStreamSynchronize(NULL));
  return address;
}

#define ASK(stream, call)                                                                     \
  do {                                                                                        \
    MUST(cusim_launch_spin(stream, WORK_NS));                                                 \
    MUST(call);                                                                               \
    printf("%s: %s\n", #call, cuStreamQuery(stream) == CUDA_SUCCESS ? "waited" : "returned"); \
    MUST(cuStreamSynchronize(stream));                                                        \
  } while (0)

int main(void) {
  enter_device(0);
  CUdeviceptr plain = block_of(4 * MIB), marked = block_of(4 * MIB);
  const unsigned on = 1, off = 0;
  ASK(NULL, cuMemsetD8_v2(marked, 1, 4096));
  SAY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, marked));
  ASK(NULL, cuMemsetD8_v2(plain, 1, 4096));
  ASK(NULL, cuMemsetD8_v2(marked, 1, 4096));
  ASK(NULL, cuMemsetD16_v2(marked + 100, 1, 100));
  ASK(NULL, cuMemsetD32_v2(marked + 512, 1, 100));
  ASK(NULL, cuMemsetD2D8_v2(marked, 512, 1, 100, 4));
  ASK(NULL, cuMemsetD2D16_v2(marked, 512, 1, 100, 4));
  ASK(NULL, cuMemsetD2D32_v2(marked, 512, 1, 100, 4));
  ASK(CU_STREAM_PER_THREAD, cuMemsetD8_v2_ptds(marked, 1, 4096));
  ASK(NULL, cuMemsetD8Async(marked, 1, 4096, NULL));
  ASK(NULL, cuMemcpyDtoD_v2(plain, marked + MIB, 4096));
  ASK(NULL, cuMemcpyDtoD_v2(marked + MIB, plain, 4096));
  ASK(NULL, cuMemcpyDtoD_v2(plain, plain + MIB, 4096));
  ASK(NULL, cuMemcpy(plain, marked, 4096));
  ASK(NULL, cuMemcpyDtoDAsync_v2(plain, marked, 4096, NULL));
  CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = marked,
                        .srcPitch = 512,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = plain,
                        .dstPitch = 512,
                        .WidthInBytes = 100,
                        .Height = 4};
  ASK(NULL, cuMemcpy2D_v2(&flat));
  CUDA_MEMCPY3D deep = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                        .srcDevice = plain,
                        .srcPitch = 512,
                        .srcHeight = 4,
                        .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                        .dstDevice = marked,
                        .dstPitch = 512,
                        .dstHeight = 4,
                        .WidthInBytes = 100,
                        .Height = 4,
                        .Depth = 2};
  ASK(NULL, cuMemcpy3D_v2(&deep));
  CUcontext context = NULL;
  MUST(cuCtxGetCurrent(&context));
  ASK(NULL, cuMemcpyPeer(plain, context, marked, context, 4096));
  ASK(NULL, cuMemcpyPeer(plain, context, plain + MIB, context, 4096));
  SAY(cuPointerSetAttribute(&off, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, marked));
  ASK(NULL, cuMemsetD8_v2(marked, 1, 4096));
  SAY(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, marked));
  MUST(cuMemFree_v2(marked));
  marked = block_of(4 * MIB);
  ASK(NULL, cuMemsetD8_v2(marked, 1, 4096));
  return 0;
}
