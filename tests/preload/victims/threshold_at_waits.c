// CUPOOL_RELEASE_THRESHOLD: what is above it goes back when the program waits, as the driver's own pools give theirs back, also after few large frees in
// stream order; and nothing below it does.
//! env CUSIM_MEMORY=1GiB
//! case nothing_is_kept
//! env CUPOOL_RELEASE_THRESHOLD=0
//! check c["reserved_bytes"]["current"] == 0
//! case nothing_is_kept_on_segments
//! env CUPOOL_BACKING=segments
//! env CUPOOL_RELEASE_THRESHOLD=0
//! check c["reserved_bytes"]["current"] == 0
//! case some_is
//! env CUPOOL_RELEASE_THRESHOLD=300MiB
//! native skip
//! check "still held: 0" not in out and 0 < c["reserved_bytes"]["current"] <= 310 * MiB
#define _GNU_SOURCE
#include <dlfcn.h>

#include "victim.h"

static uint64_t used_bytes(void) {
  uint64_t (*ask)(int) = NULL;
  *(void**)&ask = dlsym(RTLD_DEFAULT, "cusim_used_bytes");
  return ask(0);
}

int main(void) {
  enter_device(0);
  CUstream stream, other;
  CUdeviceptr blocks[2];
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  const uint64_t before = used_bytes();
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 2; ++i) MUST(cuMemAllocAsync(&blocks[i], 400 * MIB, stream));
    for (int i = 0; i < 2; ++i) MUST(cuMemFreeAsync(blocks[i], stream));
    MUST(round == 0 ? cuStreamSynchronize(stream) : cuCtxSynchronize());
    printf("still held: %d\n", (int)(used_bytes() > before));
  }
  return 0;
}
