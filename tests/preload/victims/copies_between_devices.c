// Copies between two devices by unified addresses: every form, both directions, in streams, in a capture, with sides on the host, with peer
// access and without, while blocks come and go. The codes are the native ones, and every byte arrives.
//! env CUSIM_DEVICES=2
//! check "wrong: 0" in out and all(x["counters"]["live_blocks"]["current"] == 0 for x in report["devices"])
//! case default
//! case segments
//! env CUPOOL_BACKING=segments
//! case pages
//! env CUPOOL_BACKING=pages
//! check all(x["backing"] == "pages" for x in report["devices"]) and calls("cuMemcpyPeerAsync") > 0 and calls("cuMemcpy3DPeerAsync") > 0
//! case driver_without_peer_copies
//! env CUSIM_MISSING=cuMemcpyPeer
//! check all(x["backing"] == "segments" for x in report["devices"])
//! case pages_without_link
//! env CUPOOL_BACKING=pages
//! env CUSIM_PEERS=0
//! case async
//! env CUPOOL_POLICY=async
//! check calls("cuMemcpyPeerAsync") == native.calls("cuMemcpyPeerAsync")
//! case async_without_link
//! env CUPOOL_POLICY=async
//! env CUSIM_PEERS=0
//! check calls("cuMemcpyPeerAsync") > native.calls("cuMemcpyPeerAsync") and calls("cuMemcpy3DPeerAsync") > native.calls("cuMemcpy3DPeerAsync")
//! case async_of_old_driver
//! env CUPOOL_POLICY=async
//! env CUSIM_MISSING=cuMemPoolSetAccess,cuDeviceGetDefaultMemPool
//! check calls("cuMemcpyPeerAsync") > native.calls("cuMemcpyPeerAsync")
//! case async_taken_from_the_pools
//! args take
//! env CUPOOL_POLICY=async
//! case pages_taken_from_the_pools
//! args take
//! env CUPOOL_BACKING=pages
//! case pages_that_wait
//! env CUPOOL_BACKING=pages
//! env CUSIM_NOTE_SYNC=1
#include "cusim.h"
#include "victim.h"

enum { kBytes = 96 * KIB, kPitch = 4096, kWidth = 1000, kRows = 20 };

static CUcontext g_contexts[2];
static CUstream g_streams[2];
static CUdeviceptr g_blocks[2], g_others[2];
static unsigned char *g_host, *g_pinned;
static int g_wrong;
static unsigned char g_mark;

static void current(int device) { MUST(cuCtxSetCurrent(g_contexts[device])); }

/* Fills a block with a new mark, by its own device. */
static unsigned char fill(int device, CUdeviceptr block) {
  current(device);
  ++g_mark;
  MUST(cuMemsetD8(block, g_mark, kBytes));
  MUST(cuCtxSynchronize());
  return g_mark;
}

static void expect(const char* what, CUdeviceptr block, int device, unsigned char mark) {
  unsigned char ends[2] = {0, 0};
  current(device);
  MUST(cuMemcpyDtoH(&ends[0], block, 1));
  MUST(cuMemcpyDtoH(&ends[1], block + kBytes - 1, 1));
  if (ends[0] == mark && ends[1] == mark) return;
  printf("%s: %d %d, not %d\n", what, ends[0], ends[1], mark);
  ++g_wrong;
}

static void on_host(const char* what, unsigned char mark) {
  if (g_host[0] == mark && g_host[kBytes - 1] == mark) return;
  printf("%s: %d %d, not %d\n", what, g_host[0], g_host[kBytes - 1], mark);
  ++g_wrong;
}

/* From `from`'s block to `to`'s, called with `caller` current. */
static void device_to_device(int caller, int to, int from) {
  unsigned char mark = fill(from, g_blocks[from]);
  current(caller);
  SAY(cuMemcpyDtoD(g_blocks[to], g_blocks[from], kBytes));
  MUST(cuCtxSynchronize());
  expect("DtoD", g_blocks[to], to, mark);
  mark = fill(from, g_blocks[from]);
  current(caller);
  SAY(cuMemcpy(g_blocks[to], g_blocks[from], kBytes));
  MUST(cuCtxSynchronize());
  expect("unified", g_blocks[to], to, mark);
  mark = fill(from, g_blocks[from]);
  current(caller);
  SAY(cuMemcpyDtoDAsync(g_blocks[to], g_blocks[from], kBytes, g_streams[caller]));
  SAY(cuMemcpyAsync(g_others[to], g_blocks[to], kBytes, g_streams[caller])); /* in order behind it */
  SAY(cuStreamSynchronize(g_streams[caller]));
  expect("DtoDAsync", g_blocks[to], to, mark);
  expect("behind it", g_others[to], to, mark);
}

/* The host and a block of the device that is not current. */
static void with_the_host(int caller, int owner) {
  const unsigned char mark = fill(owner, g_blocks[owner]);
  current(caller);
  SAY(cuMemcpyDtoH(g_host, g_blocks[owner], kBytes));
  on_host("DtoH", mark);
  memset(g_host, ++g_mark, kBytes);
  SAY(cuMemcpyHtoD(g_blocks[owner], g_host, kBytes));
  expect("HtoD", g_blocks[owner], owner, g_mark);
  current(caller);
  memset(g_pinned, ++g_mark, kBytes);
  SAY(cuMemcpyHtoDAsync(g_blocks[owner], g_pinned, kBytes, g_streams[caller]));
  SAY(cuStreamSynchronize(g_streams[caller]));
  expect("HtoDAsync", g_blocks[owner], owner, g_mark);
  current(caller);
  memset(g_pinned, 0, kBytes);
  SAY(cuMemcpyDtoHAsync(g_pinned, g_blocks[owner], kBytes, g_streams[caller]));
  SAY(cuStreamSynchronize(g_streams[caller]));
  memcpy(g_host, g_pinned, kBytes);
  on_host("DtoHAsync", g_mark);
  memset(g_host, ++g_mark, kBytes);
  SAY(cuMemcpy(g_blocks[owner], (CUdeviceptr)(uintptr_t)g_host, kBytes));
  SAY(cuMemcpy((CUdeviceptr)(uintptr_t)g_host, g_blocks[owner], kBytes));
  on_host("unified both ways", g_mark);
}

static void shapes(int caller, int to, int from) {
  const unsigned char mark = fill(from, g_blocks[from]), before = fill(to, g_blocks[to]);
  unsigned char row[kWidth + 2];
  CUDA_MEMCPY2D flat;
  CUDA_MEMCPY3D deep;
  memset(&flat, 0, sizeof flat);
  memset(&deep, 0, sizeof deep);
  flat.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  flat.srcDevice = g_blocks[from];
  flat.srcPitch = 2048;
  flat.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
  flat.dstDevice = g_blocks[to];
  flat.dstPitch = kPitch;
  flat.dstXInBytes = 1;
  flat.dstY = 1;
  flat.WidthInBytes = kWidth;
  flat.Height = kRows;
  current(caller);
  SAY(cuMemcpy2DAsync(&flat, g_streams[caller]));
  SAY(cuStreamSynchronize(g_streams[caller]));
  current(to);
  MUST(cuMemcpyDtoH(row, g_blocks[to] + kRows * kPitch, sizeof row)); /* the last row */
  g_wrong += row[0] != before || row[1] != mark || row[kWidth] != mark || row[kWidth + 1] != before;
  deep.srcMemoryType = CU_MEMORYTYPE_DEVICE;
  deep.srcDevice = g_blocks[from];
  deep.srcPitch = 1024;
  deep.srcHeight = 4;
  deep.dstMemoryType = CU_MEMORYTYPE_HOST;
  deep.dstHost = g_host;
  deep.dstPitch = 100;
  deep.dstHeight = 3;
  deep.WidthInBytes = 100;
  deep.Height = 3;
  deep.Depth = 2;
  memset(g_host, 0, kBytes);
  current(caller);
  SAY(cuMemcpy3D(&deep));
  g_wrong += g_host[0] != mark || g_host[599] != mark || g_host[600] != 0;
  memset(g_host, mark + 1, kBytes);
  flat.srcMemoryType = CU_MEMORYTYPE_HOST;
  flat.srcHost = g_host;
  flat.srcPitch = kWidth;
  SAY(cuMemcpy2D(&flat));
  current(to);
  MUST(cuMemcpyDtoH(row, g_blocks[to] + kRows * kPitch, sizeof row));
  g_wrong += row[0] != before || row[1] != (unsigned char)(mark + 1) || row[kWidth] != (unsigned char)(mark + 1) || row[kWidth + 1] != before;
  current(caller);
  flat.srcPitch = 10; /* less than a row */
  SAY(cuMemcpy2D(&flat));
}

/* A captured copy runs with each launch of its graph. */
static void captured(int caller, int to, int from) {
  CUgraph graph = NULL;
  CUgraphExec executable = NULL;
  size_t nodes = 0;
  current(caller);
  MUST(cuStreamBeginCapture(g_streams[caller], CU_STREAM_CAPTURE_MODE_GLOBAL));
  SAY(cuMemcpyDtoDAsync(g_blocks[to], g_blocks[from], kBytes, g_streams[caller]));
  SAY(cuMemcpyAsync(g_others[to], g_blocks[to], kBytes, g_streams[caller]));
  SAY(cuMemcpyDtoHAsync(g_pinned, g_blocks[to], kBytes, g_streams[caller]));
  SAY(cuStreamEndCapture(g_streams[caller], &graph));
  SAY(cuGraphGetNodes(graph, NULL, &nodes));
  printf("nodes: %zu\n", nodes);
  SAY(cuGraphInstantiateWithFlags(&executable, graph, 0));
  for (int i = 0; i < 2; ++i) {
    const unsigned char mark = fill(from, g_blocks[from]);
    current(caller);
    SAY(cuGraphLaunch(executable, g_streams[caller]));
    SAY(cuStreamSynchronize(g_streams[caller]));
    expect("captured", g_others[to], to, mark);
    g_wrong += g_pinned[kBytes - 1] != mark;
  }
  MUST(cuGraphExecDestroy(executable));
  MUST(cuGraphDestroy(graph));
}

/* A synchronous copy during a capture is refused, and ends it, as any. */
static void refused_while_capturing(int caller, int to, int from) {
  CUgraph graph = NULL;
  current(caller);
  MUST(cuStreamBeginCapture(g_streams[caller], CU_STREAM_CAPTURE_MODE_GLOBAL));
  SAY(cuMemcpyDtoD(g_blocks[to], g_blocks[from], kBytes));
  SAY(cuStreamEndCapture(g_streams[caller], &graph));
}

static void all_ways(void) {
  for (int caller = 0; caller < 2; ++caller) {
    device_to_device(caller, 0, 1);
    device_to_device(caller, 1, 0);
    with_the_host(caller, 1 - caller);
    shapes(caller, 0, 1);
    shapes(caller, 1, 0);
    captured(caller, caller, 1 - caller);
    captured(caller, 1 - caller, caller);
    refused_while_capturing(caller, caller, 1 - caller);
  }
}

/* Freed while copies of it may run, one by either device. The free waits for the work of the owner, which an event puts behind the other's. */
static void freed_behind_a_copy(void) {
  const unsigned char mark = fill(0, g_blocks[0]);
  CUevent copied;
  current(1);
  MUST(cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));
  SAY(cuMemcpyAsync(g_blocks[1], g_blocks[0], kBytes, g_streams[1]));
  MUST(cuEventRecord(copied, g_streams[1]));
  current(0);
  MUST(cuStreamWaitEvent(g_streams[0], copied, 0));
  SAY(cuMemcpyAsync(g_others[1], g_blocks[0], kBytes, g_streams[0]));
  current(1);
  SAY(cuMemFree(g_blocks[0]));
  current(0);
  for (int i = 0; i < 70; ++i) {
    CUdeviceptr next = allocate(kBytes);
    MUST(cuMemsetD8Async(next, 255, kBytes, g_streams[0]));
    MUST(cuMemFree(next));
  }
  SAY(cuStreamSynchronize(g_streams[0]));
  current(1);
  SAY(cuStreamSynchronize(g_streams[1]));
  MUST(cuEventDestroy(copied));
  expect("of a freed block", g_blocks[1], 1, mark);
  expect("of a freed block, by its own device", g_others[1], 1, mark);
}

/* The program's own access to the driver's pools, in which its plain blocks do not lie. */
static void take_from_pools(void) {
  for (int i = 0; i < 2; ++i) {
    CUmemoryPool pool;
    CUmemAccessDesc access[2];
    memset(access, 0, sizeof access);
    for (int k = 0; k < 2; ++k) {
      access[k].location.type = CU_MEM_LOCATION_TYPE_DEVICE;
      access[k].location.id = k;
      access[k].flags = k == i ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    }
    MUST(cuDeviceGetDefaultMemPool(&pool, i));
    SAY(cuMemPoolSetAccess(pool, &access[1 - i], 1));
    SAY(cuMemPoolSetAccess(pool, access, 2));
    access[i].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE; /* of its own device: refused */
    SAY(cuMemPoolSetAccess(pool, access, 2));
  }
}

int main(int argc, char** argv) {
  void* pinned = NULL;
  for (int i = 0; i < 2; ++i) {
    g_contexts[i] = enter_device(i);
    MUST(cuStreamCreate(&g_streams[i], CU_STREAM_NON_BLOCKING));
    g_blocks[i] = allocate(kBytes);
    g_others[i] = allocate(kBytes);
  }
  MUST(cuMemHostAlloc(&pinned, kBytes, 0));
  g_pinned = pinned;
  g_host = malloc(kBytes);
  (void)argv;
  if (argc > 1) take_from_pools();
  all_ways();
  for (int i = 0; i < 2; ++i) {
    current(i);
    SAY(cuCtxEnablePeerAccess(g_contexts[1 - i], 0));
  }
  all_ways();
  freed_behind_a_copy();
  current(1);
  MUST(cuMemFree(g_blocks[1]));
  for (int i = 0; i < 2; ++i) MUST(cuMemFree(g_others[i]));
  MUST(cuMemFreeHost(g_pinned));
  free(g_host);
  printf("wrong: %d\n", g_wrong);
  return g_wrong != 0;
}
