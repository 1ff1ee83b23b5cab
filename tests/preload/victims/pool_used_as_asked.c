// A memory pool counts as used what was asked for, to the byte (H100, H200), wherever a block of it comes from.
//! report present
//! case pages
//! case segments
//! env CUPOOL_BACKING=segments
//! case preallocated
//! env CUPOOL_POLICY=preallocate
//! case async
//! env CUPOOL_POLICY=async
//! case platform
//! env CUPOOL_POLICY=platform
#include "victim.h"

enum { kBlocks = 12, kRounds = 40 };
static const size_t kSizes[] = {1, 513, 1000003};

static unsigned long long figure(CUmemoryPool pool, CUmemPool_attribute which) {
  cuuint64_t value = 0;
  MUST(cuMemPoolGetAttribute(pool, which, &value));
  return value;
}

static void say_used(const char* what, CUmemoryPool pool) {
  printf("%s: used %llu, high %llu\n", what, figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT), figure(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH));
  MUST(figure(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) < figure(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT));
}

/// The same sizes again and again: a thread keeps such blocks for the stream, and serves them without asking anybody.
static void use(CUmemoryPool pool, CUstream stream, size_t bytes) {
  CUdeviceptr blocks[kBlocks];
  cuuint64_t none = 0;
  for (int round = 0; round < kRounds; ++round) {
    for (int i = 0; i < kBlocks; ++i) MUST(cuMemAllocFromPoolAsync(&blocks[i], bytes - (size_t)(round % 2 && bytes > 1), pool, stream));
    if (round + 2 >= kRounds) say_used("served", pool);
    for (int i = 0; i < kBlocks; ++i) MUST(cuMemFreeAsync(blocks[i], stream));
  }
  MUST(cuStreamSynchronize(stream));
  say_used("freed", pool);
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &none));
  say_used("reset", pool);
}

int main(void) {
  enter_device(0);
  CUstream stream;
  CUmemoryPool standard, own;
  CUmemPoolProps properties = {0};
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuDeviceGetDefaultMemPool(&standard, 0));
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuMemPoolCreate(&own, &properties));
  for (size_t i = 0; i < sizeof kSizes / sizeof *kSizes; ++i) {
    use(standard, stream, kSizes[i]);
    use(own, stream, kSizes[i]);
  }
  MUST(cuMemPoolDestroy(own));
  return 0;
}
