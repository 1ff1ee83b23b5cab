// What the program freed in the order of a stream is the driver's, and nobody else's until the stream has come to it: an out-of-memory that a wait for
// the stream cures says so, under every policy. What the program has waited for, or the device is done with, does not wait.
//! native skip
//! env CUSIM_MEMORY=1GiB
//! env CUPOOL_POLICY=platform
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0.*
//! stderr \s+cause .*
//! stderr* (\s+\S|cupool\[<pid>\]: out of memory on GPU 0).*
//! case ordered
//! args ordered
//! check "other stream: 0" in out and "plain: 2" in out and "after the wait: 0" in out
//! check ooms[0]["ooms"][0]["cause"] == "deferred_free" and ooms[0]["ooms"][0]["confidence"] == "medium" and ooms[0]["ooms"][0]["shortfall_bytes"] == 276 * MiB
//! check [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["synchronize_first"] and ooms[0]["ooms"][0]["suggestions"][0]["level"] == "consider"
//! check all(ooms[0]["ooms"][0]["evidence"][k] == 700 * MiB for k in ("deferred_bytes", "deferred_at_driver_bytes", "deferred_unheld_bytes"))
//! case ordered_async
//! args ordered
//! env CUPOOL_POLICY=async
//! check "plain: 2" in out and "after the wait: 0" in out
//! check ooms[0]["ooms"][0]["cause"] == "deferred_free" and [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["synchronize_first"]
//! check ooms[0]["ooms"][0]["evidence"]["deferred_at_driver_bytes"] == 700 * MiB and ooms[0]["ooms"][0]["evidence"]["deferred_unheld_bytes"] == 0
//! case plain
//! args plain
//! check "plain: 2" in out and "after the wait: 0" in out
//! check ooms[0]["ooms"][0]["cause"] == "deferred_free" and ooms[0]["ooms"][0]["evidence"]["unattributed_bytes"] == 0
//! case plain_async
//! args plain
//! env CUPOOL_POLICY=async
//! check "plain: 2" in out and "after the wait: 0" in out and ooms[0]["ooms"][0]["cause"] == "deferred_free"
//! case own_pool
//! args own_pool
//! env CUPOOL_POLICY=grow
//! check "plain: 2" in out and "after the wait: 0" in out and ooms[0]["ooms"][0]["cause"] == "deferred_free"
//! check ooms[0]["ooms"][0]["evidence"]["mempool_idle_bytes"] == 0 and ooms[0]["ooms"][0]["evidence"]["deferred_at_driver_bytes"] == 700 * MiB
//! case made_context
//! args made_context
//! env CUPOOL_POLICY=grow
//! env CUPOOL_BACKING=segments
//! check "plain: 2" in out and "after the wait: 0" in out and ooms[0]["ooms"][0]["cause"] == "deferred_free"
//! case limit
//! args ordered
//! env CUPOOL_POLICY=async
//! env CUPOOL_LIMIT=800MiB
//! check "plain: 2" in out and "after the wait: 0" in out and ooms[0]["ooms"][0]["cause"] in ("limit", "deferred_free")
//! check ooms[0]["ooms"][0]["suggestions"][0]["rule_id"] == "synchronize_first"
//! case too_little
//! args too_little
//! check "plain: 2" in out and "after the wait: 2" in out
//! ooms 2
//! check all(o["ooms"][i]["cause"] == "true_exhaustion" and o["ooms"][i]["shortfall_bytes"] == 76 * MiB for i, o in enumerate(ooms))
//! case waited_for
//! args waited_for
//! check "plain: 2" in out and ooms[0]["ooms"][0]["cause"] == "non_pool_memory" and ooms[0]["ooms"][0]["evidence"]["deferred_bytes"] == 0
//! check [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["mempool_idle", "pool_of_ours"] and "lies idle, but in pieces" in err
//! case done
//! args done
//! check "plain: 2" in out and ooms[0]["ooms"][0]["cause"] == "non_pool_memory" and ooms[0]["ooms"][0]["evidence"]["deferred_bytes"] == 0
#include "cusim.h"
#include "victim.h"

#define LONG_NS ((uint64_t)3600 * 1000000000)
#define PIECES 1600

static CUstream stream, other;

static CUdeviceptr allocate_on(size_t bytes, CUstream on) {
  CUdeviceptr block = 0;
  MUST(cuMemAllocAsync(&block, bytes, on));
  return block;
}

static void free_behind_work(CUdeviceptr block) {
  MUST(cusim_launch_spin(stream, LONG_NS));
  MUST(cuMemFreeAsync(block, stream));
}

static CUdeviceptr allocate_from_own_pool(size_t bytes) {
  CUmemPoolProps properties;
  CUmemoryPool pool;
  CUdeviceptr block = 0;
  memset(&properties, 0, sizeof properties);
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.maxSize = 900 * MIB; /* so that it stays the driver's */
  MUST(cuMemPoolCreate(&pool, &properties));
  MUST(cuMemAllocFromPoolAsync(&block, bytes, pool, stream));
  return block;
}

/* Three of four go: whatever waits for whom, 500 MiB in one piece there are not. */
static void leave_pieces(void) {
  static CUdeviceptr blocks[PIECES];
  for (int i = 0; i < PIECES; ++i) blocks[i] = allocate_on(500 * KIB, stream);
  for (int i = 0; i < PIECES; ++i)
    if (i % 4 != 0) MUST(cuMemFreeAsync(blocks[i], stream));
}

static CUresult try_plain(size_t bytes) {
  CUdeviceptr block = 0;
  const CUresult result = cuMemAlloc(&block, bytes);
  if (result == CUDA_SUCCESS) MUST(cuMemFree(block));
  return result;
}

int main(int argc, char** argv) {
  const char* how = argc > 1 ? argv[1] : "";
  CUcontext made;
  size_t wanted_bytes = 600 * MIB;
  enter_device(0);
  if (strcmp(how, "made_context") == 0) MUST(create_context(&made, 0, 0));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
  if (strcmp(how, "plain") == 0) free_behind_work(allocate(700 * MIB));
  else if (strcmp(how, "own_pool") == 0) free_behind_work(allocate_from_own_pool(700 * MIB));
  else if (strcmp(how, "too_little") == 0) {
    allocate_on(500 * MIB, other);
    free_behind_work(allocate_on(300 * MIB, stream));
  } else if (strcmp(how, "waited_for") == 0 || strcmp(how, "done") == 0) {
    wanted_bytes = 500 * MIB;
    leave_pieces();
    if (strcmp(how, "waited_for") == 0) {
      MUST(cuStreamSynchronize(stream));
      MUST(cusim_launch_spin(other, LONG_NS)); /* of no concern */
    } else {
      cusim_advance_ns(LONG_NS);
    }
  } else {
    CUdeviceptr block = allocate_on(700 * MIB, stream);
    free_behind_work(block);
    block = allocate_on(MIB, other);
    printf("other stream: %d\n", block == 0);
    MUST(cuMemFreeAsync(block, other));
    MUST(cuStreamSynchronize(other));
  }
  printf("plain: %d\n", try_plain(wanted_bytes));
  if (wanted_bytes == 500 * MIB) return 0;
  MUST(cuCtxSynchronize());
  printf("after the wait: %d\n", try_plain(wanted_bytes));
  return 0;
}
