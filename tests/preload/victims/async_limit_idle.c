// CUPOOL_POLICY=async under a limit: what the driver's pool has idle serves stream-ordered requests, as on a device of that size. What is freed on a stream is that stream's again while
// a kernel runs, pieces between live blocks serve what fits them, and a job that comes back to the same step has nothing given back in between.
//! env CUPOOL_POLICY=async
//! env CUSIM_MEMORY=4GiB
//! env CUSIM_CLOCK=real
//! check c["failed_allocations"] == 0 and calls("cuMemPoolTrimTo") == 0
//! case same_stream
//! args same_stream
//! env CUPOOL_LIMIT=150MiB
//! case step
//! args step
//! env CUPOOL_LIMIT=450MiB
//! check c["reserved_bytes"]["peak"] == 400 * MiB
//! case pieces
//! args pieces
//! env CUPOOL_LIMIT=256MiB
//! check c["reserved_bytes"]["peak"] == 256 * MiB
//! case small
//! args small
//! env CUPOOL_LIMIT=16MiB
//! check c["reserved_bytes"]["peak"] == 16 * MiB
#include "cusim.h"
#include "victim.h"

static CUstream stream;

static CUdeviceptr take(size_t bytes) {
  CUdeviceptr block = 0;
  MUST(cuMemAllocAsync(&block, bytes, stream));
  return block;
}

static void same_stream(void) {
  CUdeviceptr block = take(100 * MIB);
  MUST(cusim_launch_fill(stream, block, MIB, 1, 300000000));
  MUST(cuMemFreeAsync(block, stream));
  SAY(cuMemAllocAsync(&block, 100 * MIB, stream));  // the kernel runs
  MUST(cuCtxSynchronize());
}

static void step(void) {
  CUdeviceptr blocks[4];
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 4; ++i) blocks[i] = take(100 * MIB);
    MUST(cusim_launch_spin(stream, 5000000));
    for (int i = 0; i < 4; ++i) MUST(cuMemFreeAsync(blocks[i], stream));
  }
  MUST(cuCtxSynchronize());
}

/* Seven of eight blocks go; as many as went are there again. */
static void refill(size_t bytes, int count) {
  static CUdeviceptr blocks[2048];
  for (int i = 0; i < count; ++i) blocks[i] = take(bytes);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < count; ++i)
      if (i % 8 != 0) MUST(cuMemFreeAsync(blocks[i], stream));
    MUST(cuCtxSynchronize());
    for (int i = 0; i < count; ++i)
      if (i % 8 != 0) blocks[i] = take(bytes);
  }
  printf("%d blocks\n", count);
}

int main(int argc, char** argv) {
  enter_device(0);
  const char* what = argc > 1 ? argv[1] : "";
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if (strcmp(what, "same_stream") == 0) same_stream();
  else if (strcmp(what, "step") == 0) step();
  else if (strcmp(what, "pieces") == 0) refill(256 * KIB, 1024);
  else refill(8 * KIB, 2048);
  return 0;
}
