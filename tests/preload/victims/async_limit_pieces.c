// CUPOOL_POLICY=async: a stream-ordered request that idle memory would cover, were it in one piece or its own stream's, does not pass the limit. What the driver took for it goes back,
// once the stream has come to that, and until then serves nobody.
//! env CUPOOL_POLICY=async
//! env CUSIM_MEMORY=4GiB
//! env CUPOOL_LIMIT=256MiB
//! native skip
//! ooms any
//! stderr* .*
//! check out.splitlines()[-1] == "served afterwards: 0" and "limit passed" not in out
//! check c["reserved_bytes"]["current"] <= 256 * MiB
//! case one_stream
//! args idle
//! case behind_work
//! args busy
#include "cusim.h"
#include "victim.h"

enum { kBlocks = 1024 };
static CUdeviceptr blocks[kBlocks];

int main(int argc, char** argv) {
  enter_device(0);
  CUstream stream, other;
  CUdeviceptr large = 0;
  size_t free_bytes = 0, total_bytes = 0;
  static volatile uint32_t flag;
  const int is_busy = argc > 1 && strcmp(argv[1], "busy") == 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < kBlocks; ++i) MUST(cuMemAllocAsync(&blocks[i], 256 * KIB, stream));
  for (int i = 0; i < kBlocks; ++i)
    if (i % 8 != 0) MUST(cuMemFreeAsync(blocks[i], stream));
  MUST(cuCtxSynchronize());
  if (is_busy) MUST(cusim_launch_wait_host(other, &flag));
  for (int i = 0; i < 3; ++i) {  // 224 MiB are idle, of which no piece goes back
    const CUresult result = cuMemAllocAsync(&large, 100 * MIB, other);
    printf("large: %d\n", (int)result);
    MUST(cuMemGetInfo(&free_bytes, &total_bytes));
    if (result == CUDA_SUCCESS) printf("limit passed\n");
  }
  flag = 1;
  MUST(cuCtxSynchronize());
  for (int i = 0; i < kBlocks; ++i)
    if (i % 8 == 0) MUST(cuMemFreeAsync(blocks[i], stream));
  MUST(cuCtxSynchronize());
  printf("served afterwards: %d\n", (int)cuMemAllocAsync(&large, 200 * MIB, other));
  MUST(cuCtxSynchronize());
  return 0;
}
