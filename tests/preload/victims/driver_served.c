// Stream-ordered memory that the driver serves itself is counted, listed and reported as what it is: blocks. To every call it stays the driver's.
//! check c["allocations"] == 6 and c["frees"] == 3 and c["driver_served"] == 9 and c["foreign_frees"] == 0 and c["failed_allocations"] == 0
//! check c["live_blocks"] == {"current": 3, "peak": 6} and c["live_bytes"]["current"] == (2 + 3 + 4) * MiB + 512 and c["requested_bytes"]["current"] == 9 * MiB + 100
//! check [b[1:4] for b in d["blocks"] if b[3] == "live"] == [[2 * MiB, 2 * MiB, "live"], [3 * MiB + 512, 3 * MiB + 100, "live"], [4 * MiB, 4 * MiB, "live"]]
//! check sum(leak["bytes"] for leak in report["leaks"]) == c["live_bytes"]["current"] == d["ledger"]["live"] + d["ledger"]["rounding"]
//! check [e[1] for e in d["timeline"]["events"]].count("free_requested") == [e[1] for e in d["timeline"]["events"]].count("free_completed") == 4
//! check c["outside_bytes"]["peak"] == 0
//! misuse
//! case platform
//! env CUPOOL_POLICY=platform
//! check c["reserved_bytes"]["current"] == c["live_bytes"]["current"] and report["data_quality"]["unpooled_apis_seen"] == []
//! case async
//! env CUPOOL_POLICY=async
//! check c["reserved_bytes"]["current"] >= c["live_bytes"]["current"] and report["data_quality"]["unpooled_apis_seen"] == []
//! check c["reserved_bytes"]["current"] <= sim["devices"][0]["used_bytes"] + 512 # rounding of ours
//! case own_allocations
//! env CUPOOL_IPC=native
//! case limited
//! env CUPOOL_POLICY=platform
//! env CUPOOL_LIMIT=64MiB
#include "victim.h"

int main(void) {
  CUcontext here = enter_device(0), other;
  CUstream first, second;
  CUdeviceptr blocks[5], stays;
  CUmemoryPool pool = NULL, standard;
  MUST(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&second, CU_STREAM_NON_BLOCKING));
  for (int i = 0; i < 5; ++i) MUST(cuMemAllocAsync(&blocks[i], (size_t)(i + 1) * MIB + (i == 2 ? 100 : 0), i % 2 ? first : second));
  /* Memory of pools is no context's. */
  MUST(create_context(&other, 0, 0));
  MUST(cuMemAllocAsync(&stays, MIB, 0));
  SAY(cuCtxDestroy(other));
  MUST(cuCtxSetCurrent(here));
  MUST(cuMemsetD8(stays, 7, MIB));
  SAY(cuPointerGetAttribute(&pool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, blocks[1]));
  MUST(cuDeviceGetDefaultMemPool(&standard, 0));
  printf("in the default pool: %d\n", pool == standard);
  SAY(cuMemFreeAsync(blocks[0], second));
  SAY(cuMemFreeAsync(blocks[0], second));          /* twice */
  SAY(cuMemFreeAsync(blocks[1], (CUstream)&pool)); /* no stream: it stays */
  SAY(cuMemFree(blocks[4]));
  SAY(cuMemFree(stays));
  MUST(cuStreamSynchronize(second));
  return 0;
}
