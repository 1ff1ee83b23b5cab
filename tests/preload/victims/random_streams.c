// A random but correct program: blocks from stream-ordered and plain allocation wander between streams behind events, are filled, checked and
// freed in every way, while streams come and go, captures run and the device is nearly full. Nothing is ever overwritten too early.
//! env CUSIM_REUSE_HANDLES=1
//! env CUSIM_CLOCK=real
//! env CUSIM_MEMORY=256MiB
//! check "overwritten too early: 0" in out and c["live_blocks"]["current"] == 0
//! native skip
//! case one
//! args 1 150
//! case two
//! args 2 150
//! case three
//! args 3 150
//! case nearly_full
//! env CUSIM_MEMORY=48MiB
//! args 4 150
//! ooms any
//! stderr* cupool\[<pid>\]: out of memory.*|  .*
//! case limited
//! env CUPOOL_LIMIT=40MiB
//! args 5 150
//! ooms any
//! stderr* cupool\[<pid>\]: out of memory.*|  .*
//! case synchronous_frees
//! env CUPOOL_FREE=sync
//! args 7 150
//! case preallocated
//! env CUPOOL_PREALLOCATE=64MiB
//! args 8 150
#define _GNU_SOURCE
#include <dlfcn.h>

#include "victim.h"

enum { kStreams = 6, kBlocks = 40 };

typedef struct Block {
  CUdeviceptr address;
  size_t bytes;
  unsigned char mark;
  int last; /* the stream that used it last */
  int is_plain;
} Block;

static CUresult (*fill)(CUstream, CUdeviceptr, size_t, unsigned char, unsigned long long);
static CUresult (*check)(CUstream, CUdeviceptr, size_t, unsigned char, unsigned long long);
static void (*advance)(unsigned long long);
static unsigned long long (*mismatches)(void);
static CUstream streams[kStreams]; /* 0: the legacy one, 1: the thread's own */
static Block blocks[kBlocks];
static CUevent event;
static unsigned long long state;
static int captures, allocated, refused;

static unsigned random_below(unsigned limit) {
  state = state * 6364136223846793005ULL + 1442695040888963407ULL;
  return (unsigned)(state >> 33) % limit;
}

static void order(int from, int to) {
  if (from == to) return;
  MUST(cuEventRecord(event, streams[from]));
  MUST(cuStreamWaitEvent(streams[to], event, 0));
}

static void allocate_block(Block* block) {
  static unsigned char mark;
  int at = (int)random_below(kStreams);
  block->bytes = random_below(4) ? 1 + random_below(200000) : 1 + random_below(6000000);
  block->is_plain = random_below(3) == 0;
  CUresult result = block->is_plain ? cuMemAlloc(&block->address, block->bytes) : cuMemAllocAsync(&block->address, block->bytes, streams[at]);
  if (result == CUDA_ERROR_OUT_OF_MEMORY) {
    ++refused;
    block->address = 0;
    return;
  }
  MUST(result);
  ++allocated;
  block->mark = ++mark;
  block->last = at;
  MUST(fill(streams[at], block->address, block->bytes, block->mark, random_below(3000)));
}

static void use_block(Block* block) {
  int at = (int)random_below(kStreams);
  order(block->last, at);
  block->last = at;
  MUST(check(streams[at], block->address, block->bytes, block->mark, random_below(3000)));
}

static void free_block(Block* block) {
  use_block(block);
  if (random_below(4) == 0) {
    if (!block->is_plain) MUST(cuStreamSynchronize(streams[block->last])); /* that free does not wait */
    MUST(cuMemFree(block->address));
  } else {
    int at = (int)random_below(kStreams);
    order(block->last, at);
    MUST(cuMemFreeAsync(block->address, streams[at]));
  }
  block->address = 0;
}

static void replace_stream(void) {
  int at = 2 + (int)random_below(kStreams - 2);
  int other = (int)random_below(kStreams);
  for (int i = 0; i < kBlocks; ++i) {
    if (blocks[i].address == 0 || blocks[i].last != at) continue;
    order(at, other);
    blocks[i].last = other;
  }
  if (other == at) return;
  MUST(cuStreamDestroy(streams[at]));
  MUST(cuStreamCreate(&streams[at], CU_STREAM_NON_BLOCKING));
}

/* A graph with memory of its own, while blocks that were there before are freed around it. */
static void capture(void) {
  int at = 2 + (int)random_below(kStreams - 2);
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUdeviceptr inside = 0;
  MUST(cuStreamBeginCapture(streams[at], CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  MUST(cuMemAllocAsync(&inside, 100000, streams[at]));
  MUST(fill(streams[at], inside, 100000, 99, 500));
  MUST(check(streams[at], inside, 100000, 99, 500));
  Block* victim = &blocks[random_below(kBlocks)];
  if (victim->address != 0 && victim->last != at && !victim->is_plain) {
    MUST(check(streams[victim->last], victim->address, victim->bytes, victim->mark, 1000));
    MUST(cuMemFreeAsync(victim->address, streams[victim->last]));
    victim->address = 0;
  }
  MUST(cuMemFreeAsync(inside, streams[at]));
  MUST(cuStreamEndCapture(streams[at], &graph));
  MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  for (int i = 0; i < 2; ++i) {
    CUresult result = cuGraphLaunch(exec, streams[at]);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) MUST(result);
  }
  MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));
  ++captures;
}

int main(int argc, char** argv) {
  state = strtoull(argv[1], NULL, 10) * 7919 + 17;
  int rounds = argc > 2 ? atoi(argv[2]) : 100;
  *(void**)&fill = dlsym(RTLD_DEFAULT, "cusim_launch_fill");
  *(void**)&check = dlsym(RTLD_DEFAULT, "cusim_launch_check");
  *(void**)&advance = dlsym(RTLD_DEFAULT, "cusim_advance_ns");
  *(void**)&mismatches = dlsym(RTLD_DEFAULT, "cusim_mismatched_bytes");
  enter_device(0);
  MUST(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  streams[1] = CU_STREAM_PER_THREAD;
  for (int i = 2; i < kStreams; ++i) MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
  for (int round = 0; round < rounds * 10; ++round) {
    Block* block = &blocks[random_below(kBlocks)];
    unsigned what = random_below(100);
    if (what < 2) replace_stream();
    else if (what < 4) capture();
    else if (what < 10) advance(random_below(20000));
    else if (what < 11) MUST(cuStreamSynchronize(streams[random_below(kStreams)]));
    else if (block->address == 0) allocate_block(block);
    else if (what < 50) use_block(block);
    else free_block(block);
  }
  for (int i = 0; i < kBlocks; ++i) {
    if (blocks[i].address != 0) free_block(&blocks[i]);
  }
  MUST(cuCtxSynchronize());
  fprintf(stdout, "captures %d, allocated %d, refused %d\n", captures > 0, allocated > 100, refused > 0);
  printf("overwritten too early: %llu\n", mismatches());
  return 0;
}
