// An illegal access breaks one context. Its next real driver call says so, as the native driver's calls do, never "out of memory"; hits of the pool
// may still succeed. Other contexts and devices go on. When the broken one has ended and comes again, everything works in it.
//! misuse
//! native skip
//! env CUSIM_DEVICES=2
//! check not ooms and "wrong: 0" in out and all(x["counters"]["disabled"] == 0 for x in report["devices"] if "disabled" in x["counters"])
//! check "out of memory" not in err and report["devices"][0]["counters"]["live_blocks"]["current"] == 0
//! case destroyed
//! args destroy 700
//! case destroyed_with_an_error
//! env CUSIM_END_ERRORS=1
//! args destroy 700
//! case reset
//! args reset 719
//! case reset_with_an_error
//! env CUSIM_END_ERRORS=1
//! args reset 719
//! case released_with_an_error
//! env CUSIM_END_ERRORS=1
//! args release 226
//! case handle_comes_again
//! env CUSIM_END_ERRORS=1
//! env CUSIM_REUSE_HANDLES=1
//! args destroy 721
//! case synchronous_frees
//! env CUPOOL_FREE=sync
//! args reset 911
//! case async
//! env CUPOOL_POLICY=async
//! args reset 700
//! case stream_ordered
//! args reset 700 ordered
#include "cusim.h"
#include "victim.h"

static int g_wrong;
static CUstream g_stream;
static int g_ordered;

static void expect(const char* what, int code, int wanted, int may_succeed) {
  if (code == wanted || (may_succeed && code == CUDA_SUCCESS)) return;
  printf("%s: %d, not %d\n", what, code, wanted);
  ++g_wrong;
}

static CUresult take(CUdeviceptr* block, size_t bytes) { return g_ordered ? cuMemAllocAsync(block, bytes, g_stream) : cuMemAlloc(block, bytes); }
static CUresult give(CUdeviceptr block) { return g_ordered ? cuMemFreeAsync(block, g_stream) : cuMemFree(block); }

/* The current context serves: whole blocks, and what was freed comes again. */
static void work(unsigned char mark) {
  unsigned char back = 0;
  MUST(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 80; ++i) {
    CUdeviceptr block = 0;
    MUST(take(&block, 64 * MIB));
    MUST(cuMemsetD8Async(block, mark, 1000, g_stream));
    MUST(cuStreamSynchronize(g_stream));
    MUST(cuMemcpyDtoH(&back, block + 999, 1));
    g_wrong += back != mark;
    MUST(give(block));
  }
  MUST(cuStreamDestroy(g_stream));
}

/* In the broken context; frees of every kind of block, hits and misses. */
static void be_refused(CUresult code, const CUdeviceptr* blocks, int count) {
  CUdeviceptr block = 0;
  size_t bytes = 0, total = 0;
  for (int i = 0; i < count; ++i) expect("free", give(blocks[i]), code, 1);
  for (int i = 0; i < 3; ++i) expect("miss", take(&block, (size_t)(700 + i) * MIB), code, 0);
  expect("hit", take(&block, 512), code, 1);
  expect("too much", cuMemAlloc(&block, 500 * GIB), code, 0);
  expect("info", cuMemGetInfo(&bytes, &total), code, 0);
  expect("synchronize", cuCtxSynchronize(), code, 0);
}

int main(int argc, char** argv) {
  const char* way = argc > 1 ? argv[1] : "destroy";
  const CUresult code = (CUresult)atoi(argc > 2 ? argv[2] : "700");
  const int destroys = strcmp(way, "destroy") == 0;
  CUcontext broken = NULL, beside = NULL;
  g_ordered = argc > 3;
  CUcontext other_device = enter_device(1);
  MUST(create_context(&beside, 0, 0));
  for (int round = 0; round < 2; ++round) {
    CUdeviceptr blocks[70];
    MUST(destroys ? create_context(&broken, 0, 0) : cuDevicePrimaryCtxRetain(&broken, 0));
    MUST(cuCtxSetCurrent(broken));
    work(1);
    MUST(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
    for (int i = 0; i < 70; ++i) MUST(take(&blocks[i], MIB));
    CUdeviceptr deferred = 0;
    MUST(take(&deferred, 64 * MIB));
    MUST(cusim_launch_spin(g_stream, 1000000));
    if (strcmp(getenv("CUPOOL_FREE") != NULL ? getenv("CUPOOL_FREE") : "", "sync") != 0) MUST(give(deferred));
    cusim_break_context(broken, code);
    be_refused(code, blocks, 70);
    MUST(cuCtxSetCurrent(beside));
    work(2);
    MUST(cuCtxSetCurrent(other_device));
    work(3);
    MUST(cuCtxSetCurrent(broken));
    const CUresult ended = destroys ? cuCtxDestroy(broken) : strcmp(way, "reset") == 0 ? cuDevicePrimaryCtxReset(0) : cuDevicePrimaryCtxRelease(0);
    expect("end", ended, getenv("CUSIM_END_ERRORS") != NULL ? code : CUDA_SUCCESS, 0);
    MUST(cuCtxSetCurrent(beside));
    work(4);
  }
  MUST(destroys ? create_context(&broken, 0, 0) : cuDevicePrimaryCtxRetain(&broken, 0));
  MUST(cuCtxSetCurrent(broken));
  work(5);
  printf("wrong: %d\n", g_wrong);
  return g_wrong != 0;
}
