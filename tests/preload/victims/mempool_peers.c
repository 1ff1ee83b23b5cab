// A peer that was given access to a memory pool reaches its blocks, old and new, and the program's own peer access looks untouched.
//! case default
//! env CUSIM_DEVICES=2
//! check c["allocations"] == 4 and c["live_blocks"]["current"] == 0
//! case pages
//! env CUSIM_DEVICES=2
//! env CUPOOL_BACKING=pages
//! check d["backing"] == "pages" and c["allocations"] == 4 and c["live_blocks"]["current"] == 0
//! case created_later
//! env CUSIM_DEVICES=2
//! args later
#include "cusim.h"
#include "victim.h"

static void touch(CUcontext peer, CUstream stream, CUdeviceptr block) {
  MUST(cuCtxPushCurrent(peer));
  SAY(cusim_launch_fill(stream, block, 4096, 7, 1000));
  SAY(cusim_launch_check(stream, block, 4096, 7, 1000));
  SAY(cuCtxSynchronize());
  MUST(cuCtxPopCurrent(&peer));
}

/* A context of the pool's device that begins after the access was given. */
static void from_a_later_context(CUcontext peer, CUstream peer_stream) {
  CUcontext later;
  CUstream stream;
  CUdeviceptr block = 0;
  MUST(cuCtxCreate_v2(&later, 0, 0));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAllocAsync(&block, MIB, stream));
  MUST(cuStreamSynchronize(stream));
  touch(peer, peer_stream, block);
  SAY(cuMemFreeAsync(block, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuCtxDestroy(later));
}

int main(int argc, char** argv) {
  const int later = argc > 1 && strcmp(argv[1], "later") == 0;
  CUcontext home = enter_device(0);
  CUcontext peer = NULL;
  CUstream stream;
  CUstream peer_stream;
  CUmemoryPool pool;
  CUdeviceptr before = 0;
  CUdeviceptr after = 0;
  CUmemAccessDesc access = {0};
  CUmemAccess_flags flags = 0;
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 1;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  if (!later) MUST(cuDevicePrimaryCtxRetain(&peer, 1));
  MUST(cuMemAllocAsync(&before, MIB, stream));
  MUST(cuStreamSynchronize(stream));
  SAY(cuMemPoolSetAccess(pool, &access, 1));
  SAY(cuMemPoolGetAccess(&flags, pool, &access.location));
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  MUST(cuThreadExchangeStreamCaptureMode(&mode)); /* that of the thread is as it was */
  printf("flags %d, mode %d\n", (int)flags, (int)mode);
  if (later) MUST(cuDevicePrimaryCtxRetain(&peer, 1));
  MUST(cuMemAllocAsync(&after, 2 * MIB, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuCtxPushCurrent(peer));
  MUST(cuStreamCreate(&peer_stream, CU_STREAM_NON_BLOCKING));
  MUST(cuCtxPopCurrent(&peer));
  touch(peer, peer_stream, before);
  touch(peer, peer_stream, after);

  MUST(cuCtxPushCurrent(peer));
  SAY(cuCtxDisablePeerAccess(home));
  SAY(cuCtxEnablePeerAccess(home, 1)); /* flags must be 0 */
  SAY(cuCtxEnablePeerAccess(home, 0));
  SAY(cuCtxEnablePeerAccess(home, 0));
  SAY(cuCtxDisablePeerAccess(home));
  SAY(cuCtxDisablePeerAccess(home));
  MUST(cuCtxPopCurrent(&peer));
  touch(peer, peer_stream, after); /* the pool's access is not the program's */
  SAY(cuMemFreeAsync(before, stream));
  SAY(cuMemFreeAsync(after, stream));
  CUdeviceptr again = 0;
  MUST(cuMemAllocAsync(&again, 4 * MIB, stream)); /* a region that is new */
  MUST(cuStreamSynchronize(stream));
  touch(peer, peer_stream, again);
  SAY(cuMemFreeAsync(again, stream));
  from_a_later_context(peer, peer_stream);
  SAY(cuStreamSynchronize(stream));
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  SAY(cuMemPoolSetAccess(pool, &access, 1));
  access.location.id = 0;
  SAY(cuMemPoolSetAccess(pool, &access, 1)); /* the owner's cannot be taken away */
  access.location.id = 9;
  SAY(cuMemPoolSetAccess(pool, &access, 1));
  return 0;
}
