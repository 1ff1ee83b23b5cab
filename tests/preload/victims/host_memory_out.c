// Host memory is out for a moment, at each request in turn that the library makes inside one call: that call or the next may say so, but memory
// is served and given back as before, and a program that ends without any ends as it wants to.
//! env CUSIM_MEMORY=1GiB
//! check "left: 0" in out
//! case segments
//! env CUPOOL_BACKING=segments
//! check c["live_blocks"]["current"] == 0 and c["reserved_bytes"]["current"] == 0
//! case pages
//! env CUPOOL_BACKING=pages
//! check c["live_blocks"]["current"] == 0 and c["reserved_bytes"]["current"] == 0
//! case platform
//! env CUPOOL_POLICY=platform
//! check c["live_blocks"]["current"] == 0 and c["reserved_bytes"]["current"] == 0
//! case async
//! env CUPOOL_POLICY=async
//! check c["live_blocks"]["current"] == 0
//! case at_the_end
//! args at_the_end
//! stderr cupool\[<pid>\]: at the exit, and host memory is out: no report
//! env CUPOOL_BACKING=segments
//! report absent
//! page left
//! check pages[0].devices[0].gauges["live_blocks"][0] == 0
//! case at_a_refusal
//! args at_a_refusal
//! ooms any
//! stderr* (cupool\[<pid>\]: out of memory on the GPU, and host memory is out: no report|cupool\[<pid>\]: out of memory on GPU 0.*|cupool\[<pid>\]: warning: no report.*|  .*)
//! check err.count("and host memory is out: no report") > 0
#define _GNU_SOURCE
#include "host_memory.h"

#include "victim.h"

static uint64_t requests;

/* `call` with its nth request failing. */
#define SHORT(nth, call)                   \
  ({                                       \
    fail_host_memory(requests + (nth), 1); \
    const CUresult code_ = (call);         \
    fail_host_memory(UINT64_MAX, 1);       \
    code_;                                 \
  })

static void expect(CUresult code, const char* what, unsigned nth) {
  if (code != CUDA_SUCCESS && code != CUDA_ERROR_OUT_OF_MEMORY) printf("%s, request %u: %d\n", what, nth, (int)code);
}

/* What the driver has given; the native run has no pool that could keep any. */
static uint64_t used_bytes(void) {
  uint64_t (*ask)(int) = NULL;
  *(void**)&ask = dlsym(RTLD_DEFAULT, "cusim_used_bytes");
  return ask(0);
}

static void try_streams(unsigned nth, CUmemoryPool pool) {
  CUstream stream;
  CUgraph graph = NULL;
  CUdeviceptr block = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 3; ++i) {
    expect(SHORT(nth, cuMemAllocAsync(&block, 8 * MIB, stream)), "cuMemAllocAsync", nth);
    if (block != 0) MUST(SHORT(nth, cuMemFreeAsync(block, stream)));
    block = 0;
  }
  const CUresult begun = SHORT(nth, cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  expect(begun, "cuStreamBeginCapture", nth);
  if (begun == CUDA_SUCCESS) {
    MUST(SHORT(nth, cuStreamEndCapture(stream, &graph)));
    MUST(cuGraphDestroy(graph));
  }
  MUST(SHORT(nth, cuMemPoolTrimTo(pool, 0)));
  MUST(SHORT(nth, cuStreamDestroy(stream)));
}

static void try_context(unsigned nth) {
  CUcontext context, before;
  MUST(cuCtxGetCurrent(&before));
  const CUresult created = SHORT(nth, create_context(&context, 0, 0));
  expect(created, "cuCtxCreate", nth);
  if (created != CUDA_SUCCESS) return;
  CUdeviceptr kept = allocate(4 * MIB), freed = allocate(4 * MIB);
  MUST(SHORT(nth, cuMemFree(freed)));
  MUST(cuMemsetD8(kept, 1, 4 * MIB));
  MUST(SHORT(nth, cuCtxDestroy(context)));
  MUST(cuCtxSetCurrent(before));
}

int main(int argc, char** argv) {
  enter_device(0);
  watch_host_memory("libcupool", &requests);
  CUmemoryPool pool;
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  for (unsigned nth = 1; nth <= 24; ++nth) {
    try_streams(nth, pool);
    try_context(nth);
  }
  MUST(cuCtxSynchronize());
  for (int i = 0; i < 2; ++i) MUST(cuMemPoolTrimTo(pool, 0));
  printf("left: %llu\n", (unsigned long long)used_bytes());
  fflush(stdout);
  if (argc == 1) return 0;
  if (strcmp(argv[1], "at_a_refusal") == 0) { /* from some request on nothing is left to write a report with */
    CUdeviceptr huge;
    for (uint64_t nth = 1; nth <= 40; ++nth) {
      fail_host_memory(requests + nth, UINT32_MAX);
      if (cuMemAlloc(&huge, 100 * GIB) != CUDA_ERROR_OUT_OF_MEMORY) printf("not refused\n");
      fail_host_memory(UINT64_MAX, 1);
    }
    return 0;
  }
  CUipcMemHandle handle;
  CUdeviceptr shared = allocate(MIB);
  MUST(cuIpcGetMemHandle(&handle, shared));
  MUST(cuMemFree(shared));
  fail_host_memory(requests + 1, UINT32_MAX);
  return 0;
}
