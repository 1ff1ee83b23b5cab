// A program that makes a memory pool of its own current before anything else: the default pool is served all the same, by name and
// when it is current again.
//! check c["allocations"] == 3 and c["live_blocks"]["current"] == 0
//! misuse
#include "victim.h"

static unsigned long long used(CUmemoryPool pool) {
  cuuint64_t value = 0;
  MUST(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
  return value;
}

static int is_from(CUdeviceptr block, CUmemoryPool pool) {
  CUmemoryPool of_block = NULL;
  MUST(cuPointerGetAttribute(&of_block, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
  return of_block == pool;
}

int main(void) {
  enter_device(0);
  CUstream stream;
  CUmemoryPool own;
  CUmemoryPool standard;
  CUdeviceptr blocks[3] = {0};
  CUmemPoolProps properties = {0};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemPoolCreate(&own, &properties));
  MUST(cuDeviceSetMemPool(0, own));
  MUST(cuDeviceGetDefaultMemPool(&standard, 0));
  MUST(cuMemAllocAsync(&blocks[0], MIB, stream));
  MUST(cuMemAllocFromPoolAsync(&blocks[1], MIB, standard, stream));
  printf("own %d, default %d; used %llu and %llu\n", is_from(blocks[0], own), is_from(blocks[1], standard), used(own), used(standard));
  MUST(cuMemFreeAsync(blocks[0], stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemPoolDestroy(own));
  MUST(cuMemAllocAsync(&blocks[2], MIB, stream));
  printf("after the pool is destroyed: default %d, used %llu\n", is_from(blocks[2], standard), used(standard));
  MUST(cuMemFreeAsync(blocks[1], stream));
  MUST(cuMemFreeAsync(blocks[2], stream));
  MUST(cuStreamSynchronize(stream));
  printf("used %llu\n", used(standard));
  return 0;
}
