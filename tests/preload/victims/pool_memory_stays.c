// cuCtxDestroy leaves memory of pools, "not associated with any CUDA context" (CUDA Driver API 13.0), and takes what cuMemAlloc gave: a program keeps its
// buffers while the contexts of their streams come and go, and frees them in another one.
//! check c["live_blocks"]["current"] == 0 and "wrong bytes: 0" in out
//! check all("not allocated" in s or "not the base" in s for s in sim["violations"])
//! misuse
//! case pages
//! env CUPOOL_BACKING=pages
//! check c["allocations"] > 100 and report["data_quality"]["unpooled_apis_seen"] == []
//! check sim["devices"][0]["used_bytes"] == c["reserved_bytes"]["current"] <= 64 * MiB
//! case segments
//! env CUPOOL_BACKING=segments
//! check report["data_quality"]["unpooled_apis_seen"] == ["cuMemAllocAsync", "cuMemAllocFromPoolAsync"]
//! case under_a_limit
//! env CUPOOL_LIMIT=256MiB
//! case segments_under_a_limit
//! env CUPOOL_BACKING=segments
//! env CUPOOL_LIMIT=256MiB
//! case synchronous_frees
//! env CUPOOL_FREE=sync
//! case immediate_frees
//! env CUPOOL_FREE=immediate
//! case threshold
//! env CUPOOL_RELEASE_THRESHOLD=0
//! case old_driver
//! env CUSIM_DRIVER_VERSION=12040
//! stderr .*cuCtxRecordEvent.*
//! case handles_that_return
//! env CUSIM_REUSE_HANDLES=1
//! case async
//! env CUPOOL_POLICY=async
//! case platform
//! env CUPOOL_POLICY=platform
#include "victim.h"

enum { kRounds = 12, kKept = 6, kPlain = 5 };

static int g_wrong;

static void expect_bytes(CUdeviceptr address, size_t bytes, int value) {
  unsigned char* found = malloc(bytes);
  MUST(cuMemcpyDtoH(found, address, bytes));
  if (found[0] != value || memcmp(found, found + 1, bytes - 1) != 0)
    for (size_t i = 0; i < bytes; ++i) g_wrong += found[i] != value;
  free(found);
}

static size_t bytes_of(int i) { return i % 2 ? 3000 + (size_t)i : (size_t)(i % 5 + 1) * MIB; }

int main(void) {
  CUcontext here = enter_device(0);
  CUstream mine;
  CUmemoryPool standard, own;
  CUmemPoolProps properties = {0};
  CUdeviceptr left[kRounds][kKept];
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  MUST(cuMemPoolCreate(&own, &properties));
  MUST(cuDeviceGetDefaultMemPool(&standard, 0));
  MUST(cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING));
  for (int round = 0; round < kRounds; ++round) {
    CUcontext context;
    CUstream stream;
    CUdeviceptr plain[kPlain], freed;
    cuuint64_t used = 0;
    MUST(create_context(&context, 0, 0));
    MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < kKept; ++i) {
      MUST(i % 3 == 2 ? cuMemAllocFromPoolAsync(&left[round][i], bytes_of(i), own, stream) : cuMemAllocAsync(&left[round][i], bytes_of(i), stream));
      MUST(cuMemAllocAsync(&freed, 700 * KIB, stream));
      MUST(cuMemsetD8Async(left[round][i], (unsigned char)(round * kKept + i), bytes_of(i), stream));
      MUST(cuMemFreeAsync(freed, stream));
    }
    for (int i = 0; i < kPlain; ++i) plain[i] = allocate((size_t)(i + 1) * MIB);
    MUST(cuStreamSynchronize(stream));
    SAY(cuCtxDestroy(context));
    MUST(cuCtxSetCurrent(here));
    MUST(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used));
    if (round == 0) SAY(cuMemFree(plain[0]));
    for (int i = 0; i < kPlain; ++i) { /* over what the context has left, if anybody could */
      plain[i] = allocate((size_t)(i + 1) * MIB);
      MUST(cuMemsetD8(plain[i], 0xee, (size_t)(i + 1) * MIB));
    }
    for (int i = 0; i < kKept; ++i) {
      unsigned type = 0;
      int pool_is_right = 0;
      CUmemoryPool pool = NULL;
      CUdeviceptr base = 0;
      size_t bytes = 0;
      expect_bytes(left[round][i], bytes_of(i), (round * kKept + i) % 256);
      MUST(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, left[round][i] + 10));
      MUST(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, left[round][i]));
      MUST(cuMemGetAddressRange(&base, &bytes, left[round][i] + 10));
      pool_is_right = pool == (i % 3 == 2 ? own : standard);
      if (round < 2) printf("%d: type %u, pool %d, base %d, %zu bytes\n", i, type, pool_is_right, base == left[round][i], bytes);
    }
    for (int i = 0; i < kPlain; ++i) MUST(cuMemFree(plain[i]));
    if (round < 3) continue; /* some are freed long after the context, in a stream and by a plain call */
    for (int i = 0; i < kKept; ++i) {
      MUST(cuMemsetD8Async(left[round - 3][i], 1, bytes_of(i), mine));
      if (i % 2) MUST(cuStreamSynchronize(mine)); /* a plain free does not wait */
      MUST(i % 2 ? cuMemFree(left[round - 3][i]) : cuMemFreeAsync(left[round - 3][i], mine));
      if (i < 2 && round == 3) printf("freed twice: %d\n", cuMemFree(left[0][i]));
    }
  }
  for (int round = kRounds - 3; round < kRounds; ++round)
    for (int i = 0; i < kKept; ++i) {
      expect_bytes(left[round][i], bytes_of(i), (round * kKept + i) % 256);
      MUST(cuMemFreeAsync(left[round][i], mine));
    }
  MUST(cuCtxSynchronize());
  SAY(cuMemPoolDestroy(own));
  MUST(cuMemFree(allocate(MIB)));
  printf("wrong bytes: %d\n", g_wrong);
  return 0;
}
