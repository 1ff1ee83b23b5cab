// Blocks that other devices reach: peer access given before and after the allocation, in both directions, taken away again, asked for twice; copies
// with and without it; a memory pool's access beside the program's own. As natively, and every byte arrives.
//! env CUSIM_DEVICES=3
//! check "wrong: 0" in out and all(x["counters"]["live_blocks"]["current"] == 0 for x in report["devices"])
//! case default
//! case platform
//! env CUPOOL_POLICY=platform
//! case synchronous_frees
//! env CUPOOL_FREE=sync
//! case async
//! env CUPOOL_POLICY=async
//! case old_driver_that_gets_pages_back
//! env CUSIM_DRIVER_VERSION=11080
//! env CUPOOL_RELEASE_THRESHOLD=1MiB
//! stderr cupool\[<pid>\]: warning: .*cuCtxRecordEvent.*
//! check d["backing"] == "pages"
//! case frees_wait_for_peers
//! args waits
//! native skip
//! env CUPOOL_FREE=sync
//! check "waited: 0, 1" in out
//! case frees_wait_for_peers_of_a_pool
//! args waits pool
//! native skip
//! env CUPOOL_FREE=sync
//! check "waited: 0, 1" in out
//! case segments
//! env CUPOOL_BACKING=segments
//! case pages
//! env CUPOOL_BACKING=pages
//! check all(x["backing"] == "pages" for x in report["devices"])
//! case pages_that_wait
//! env CUPOOL_BACKING=pages
//! env CUSIM_NOTE_SYNC=1
#include "cusim.h"
#include "victim.h"

static CUcontext g_contexts[3];
static CUstream g_streams[3];
static int g_wrong;

static void current(int device) { MUST(cuCtxSetCurrent(g_contexts[device])); }

/* A kernel of `device` writes and reads the block. */
static void touch(int device, CUdeviceptr block, unsigned char mark) {
  current(device);
  MUST(cusim_launch_fill(g_streams[device], block, 100 * KIB, mark, 1000));
  MUST(cusim_launch_check(g_streams[device], block, 100 * KIB, mark, 1000));
  SAY(cuStreamSynchronize(g_streams[device]));
}

static void expect(CUdeviceptr block, unsigned char mark) {
  unsigned char back = 0;
  MUST(cuMemcpyDtoH(&back, block + 100 * KIB - 1, 1));
  g_wrong += back != mark;
}

static void copies_without_access(void) {
  current(0);
  CUdeviceptr from = allocate(100 * KIB);
  MUST(cuMemsetD8(from, 31, 100 * KIB));
  MUST(cuCtxSynchronize());
  current(2);
  CUdeviceptr to = allocate(100 * KIB), unified = allocate(100 * KIB);
  SAY(cuMemcpyPeer(to, g_contexts[2], from, g_contexts[0], 100 * KIB));
  SAY(cuMemcpyPeerAsync(unified, g_contexts[2], from, g_contexts[0], 100 * KIB, g_streams[2]));
  SAY(cuStreamSynchronize(g_streams[2]));
  expect(to, 31);
  expect(unified, 31);
  SAY(cuMemcpy(unified, to, 100 * KIB));
  CUevent copied;
  MUST(cuEventCreate(&copied, CU_EVENT_DISABLE_TIMING));
  SAY(cuMemcpyAsync(to, from, 100 * KIB, g_streams[2]));
  MUST(cuEventRecord(copied, g_streams[2]));
  current(0);
  MUST(cuStreamWaitEvent(g_streams[0], copied, 0)); /* a free waits for the work of the owner only */
  current(2);
  SAY(cuMemFree(from)); /* while its copy may run: the free is for after it */
  current(0);
  for (int i = 0; i < 70; ++i) {
    CUdeviceptr next = allocate(100 * KIB);
    MUST(cuMemsetD8Async(next, 99, 100 * KIB, g_streams[0]));
    MUST(cuMemFree(next));
  }
  current(2);
  SAY(cuStreamSynchronize(g_streams[2]));
  MUST(cuEventDestroy(copied));
  expect(to, 31);
  SAY(cuMemFree(to));
  SAY(cuMemFree(unified));
}

static void give_and_take_access(void) {
  current(0);
  CUdeviceptr before = allocate(100 * KIB);
  current(1);
  CUdeviceptr theirs = allocate(100 * KIB);
  SAY(cuCtxEnablePeerAccess(g_contexts[0], 0));
  SAY(cuCtxEnablePeerAccess(g_contexts[0], 0));
  touch(1, before, 41);
  current(0);
  CUdeviceptr after = allocate(40 * MIB); /* of a region that is new */
  SAY(cuCtxEnablePeerAccess(g_contexts[1], 0));
  touch(1, after, 42);
  touch(0, theirs, 43);
  current(1);
  MUST(cuMemFree(after)); /* the other device's, with its own kernels just over */
  SAY(cuCtxDisablePeerAccess(g_contexts[0]));
  SAY(cuCtxDisablePeerAccess(g_contexts[0]));
  touch(0, theirs, 44); /* the other direction stays */
  current(1);
  SAY(cuCtxEnablePeerAccess(g_contexts[0], 0));
  touch(1, before, 45);
  MUST(cuMemFree(before));
  current(0);
  MUST(cuMemFree(theirs));
  SAY(cuCtxDisablePeerAccess(g_contexts[1]));
}

/* The program has access already, gives it to a memory pool as well, and takes its own away: the pool's stays. */
static void pool_beside_program(void) {
  CUmemoryPool pool = NULL;
  CUdeviceptr ordered = 0;
  CUmemAccessDesc access = {0};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 1;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  current(0);
  MUST(cuMemAllocAsync(&ordered, 100 * KIB, g_streams[0]));
  MUST(cuStreamSynchronize(g_streams[0]));
  SAY(cuMemPoolSetAccess(pool, &access, 1));
  touch(1, ordered, 51);
  current(1);
  SAY(cuCtxDisablePeerAccess(g_contexts[0])); /* its own, from before */
  SAY(cuCtxDisablePeerAccess(g_contexts[0]));
  touch(1, ordered, 52);
  current(1);
  SAY(cuCtxEnablePeerAccess(g_contexts[0], 0));
  SAY(cuCtxDisablePeerAccess(g_contexts[0]));
  touch(1, ordered, 53);
  SAY(cuMemFreeAsync(ordered, g_streams[1])); /* in a stream of the other device */
  SAY(cuStreamSynchronize(g_streams[1]));
}

/* Has a free by device 0 waited for device 1's work? */
static int frees_after_the_other(void) {
  const uint64_t spin_ns = 50000000, began_ns = cusim_now_ns();
  current(0);
  CUdeviceptr block = allocate(100 * KIB);
  current(1);
  MUST(cusim_launch_spin(g_streams[1], spin_ns));
  current(0);
  SAY(cuMemFree(block));
  const int has_waited = cusim_now_ns() - began_ns >= spin_ns;
  current(1);
  MUST(cuStreamSynchronize(g_streams[1]));
  return has_waited;
}

/* A free waits for the work of devices from which its memory is reached, and of no others. */
static void waits_once_linked(int is_by_pool) {
  CUmemoryPool pool = NULL;
  const CUmemAccessDesc access = {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 1}, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  const int before = frees_after_the_other();
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  if (is_by_pool) SAY(cuMemPoolSetAccess(pool, &access, 1));
  else SAY(cuCtxEnablePeerAccess(g_contexts[0], 0));
  printf("waited: %d, %d\n", before, frees_after_the_other());
}

int main(int argc, char** argv) {
  for (int i = 0; i < 3; ++i) {
    g_contexts[i] = enter_device(i);
    MUST(cuStreamCreate(&g_streams[i], CU_STREAM_NON_BLOCKING));
  }
  (void)argv;
  if (argc > 1) waits_once_linked(argc > 2);
  copies_without_access();
  give_and_take_access();
  pool_beside_program();
  g_wrong += cusim_mismatched_bytes() != 0;
  printf("wrong: %d\n", g_wrong);
  return g_wrong != 0;
}
