// Memory pools tell the truth about what is served in their name; pools with special properties stay the driver's.
//! check c["allocations"] == 4 and c["live_blocks"]["current"] == 0
//! check "cuMemAllocFromPoolAsync" in report["data_quality"]["unpooled_apis_seen"]
//! misuse
#include "victim.h"

static unsigned long long attribute(CUmemoryPool pool, CUmemPool_attribute which) {
  cuuint64_t value = 0;
  MUST(cuMemPoolGetAttribute(pool, which, &value));
  return value;
}

static void say_used(const char* what, CUmemoryPool pool) {
  printf("%s: used %llu, high %llu\n", what, attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
  printf("%s: reserved at least what is used: %d\n", what,
         attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) &&
             attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
}

int main(void) {
  enter_device(0);
  CUstream stream;
  CUmemoryPool standard;
  CUmemoryPool now;
  CUmemoryPool plain;
  CUmemoryPool exportable;
  CUmemoryPool of_block = NULL;
  CUdeviceptr block = 0;
  CUdeviceptr other = 0;
  CUipcMemHandle handle;
  CUmemPoolProps properties = {0};
  cuuint64_t value = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuDeviceGetDefaultMemPool(&standard, 0));
  MUST(cuDeviceGetMemPool(&now, 0));
  printf("current is default: %d\n", now == standard);
  say_used("before", standard);
  MUST(cuMemAllocAsync(&block, MIB, stream));
  say_used("one block", standard);
  SAY(cuPointerGetAttribute(&of_block, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
  printf("in the default pool: %d\n", of_block == standard);
  SAY(cuIpcGetMemHandle(&handle, block));
  MUST(cuMemFreeAsync(block, stream));
  MUST(cuStreamSynchronize(stream));
  say_used("freed", standard);
  SAY(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
  value = 5;
  SAY(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value));
  SAY(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value));
  say_used("reset", standard);
  value = 77;
  SAY(cuMemPoolSetAttribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &value));
  printf("threshold %llu\n", attribute(standard, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD));
  SAY(cuMemPoolTrimTo(standard, 0));
  printf("trimmed: reserved %llu\n", attribute(standard, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));

  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuMemPoolCreate(&plain, &properties));
  properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  MUST(cuMemPoolCreate(&exportable, &properties));
  MUST(cuMemAllocFromPoolAsync(&block, 4096, plain, stream));
  MUST(cuMemAllocFromPoolAsync(&other, 4096, exportable, stream));
  say_used("plain", plain);
  say_used("exportable", exportable);
  SAY(cuPointerGetAttribute(&of_block, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, block));
  printf("in its pool: %d\n", of_block == plain);
  MUST(cuMemFreeAsync(other, stream));
  MUST(cuDeviceSetMemPool(0, plain));
  MUST(cuMemFreeAsync(block, stream));
  MUST(cuMemAllocAsync(&block, 8192, stream));
  say_used("current", plain);
  MUST(cuMemFreeAsync(block, stream));
  MUST(cuStreamSynchronize(stream));
  SAY(cuMemPoolDestroy(plain));
  MUST(cuDeviceGetMemPool(&now, 0));
  printf("current is default again: %d\n", now == standard);
  SAY(cuMemAllocFromPoolAsync(&block, 4096, plain, stream));
  SAY(cuMemPoolDestroy(standard));
  SAY(cuMemPoolDestroy(exportable));
  return 0;
}
