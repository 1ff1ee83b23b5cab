// A library that finds the driver before us (RTLD_DEEPBIND) frees what the program allocated through us, as it may natively where the block is one of the driver's own. The driver gives
// the address out again: the block that we still have there is gone from the books then, and the new one is like any other.
//! check c["allocations"] == 6000 and c["frees"] == 3000 and c["ended_blocks"] == 2997 and c["failed_allocations"] == 0
//! check c["live_blocks"]["current"] == 3 and c["live_bytes"]["current"] == 49152  # of the last round, whose addresses were not given out again
//! case platform
//! env CUPOOL_POLICY=platform
//! native same
//! case async
//! env CUPOOL_POLICY=async
//! native same
//! case limit
//! env CUPOOL_POLICY=platform
//! env CUPOOL_LIMIT=4MiB
//! native same
#define _GNU_SOURCE
#include "resolve_object.h"
#include "victim.h"

enum { kRounds = 1000, kBlocks = 3, kBlock_bytes = 16384, kNeighbours = 64, kNode_bytes = 632, kMark = 0x41 };

int main(void) {
  enter_device(0);
  void* library = open_library("libdeepbind.so", RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND);
  int (*plugin_free)(CUdeviceptr) = (int (*)(CUdeviceptr))dlsym(library, "plugin_free");
  int refused = 0, overwritten = 0;
  for (int round = 0; round < kRounds; ++round) {
    CUdeviceptr blocks[kBlocks];
    for (int i = 0; i < kBlocks; ++i) blocks[i] = allocate(kBlock_bytes);
    for (int i = 0; i < kBlocks; ++i) refused += plugin_free(blocks[i]) != 0;
    for (int i = 0; i < kBlocks; ++i) blocks[i] = allocate(kBlock_bytes / 2);
    unsigned char* neighbours[kNeighbours];
    for (int i = 0; i < kNeighbours; ++i) {
      neighbours[i] = malloc(kNode_bytes);
      memset(neighbours[i], kMark, kNode_bytes);
    }
    for (int i = 0; i < kBlocks; ++i) MUST(cuMemFree(blocks[i]));
    for (int i = 0; i < kNeighbours; ++i) {
      for (int k = 0; k < kNode_bytes; ++k) overwritten += neighbours[i][k] != kMark;
      free(neighbours[i]);
    }
  }
  printf("%d refused, %d bytes of the program's overwritten\n", refused, overwritten);
  return 0;
}
