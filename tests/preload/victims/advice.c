// What an out-of-memory advises is true when it is followed: nothing that ends a capture, no setting that would change nothing, no place to look that is empty.
//! native skip
//! ooms 1
//! env CUSIM_MEMORY=1GiB
//! stderr cupool\[<pid>\]: out of memory on GPU 0.*
//! stderr \s+cause .*
//! stderr* (\s+\S|cupool\[<pid>\]: out of memory on GPU 0).*
//! case capture
//! args capture
//! check ooms[0]["ooms"][0]["cause"] == "deferred_free" and ooms[0]["ooms"][0]["evidence"]["capturing"] and [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["before_capture"]
//! case stream_ordered
//! args stream_ordered
//! check ooms[0]["ooms"][0]["cause"] == "deferred_free" and [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["synchronize_first"] and ooms[0]["ooms"][0]["evidence"]["deferred_in_order_bytes"] == ooms[0]["ooms"][0]["evidence"]["deferred_bytes"]
//! case every_page_is_held_segments
//! args riddled
//! env CUPOOL_BACKING=segments
//! check ooms[0]["ooms"][0]["cause"] == "external_fragmentation" and [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["pinned_by"] and ooms[0]["ooms"][0]["evidence"]["pages_available"]
//! case every_page_is_held_preallocated
//! args riddled
//! env CUPOOL_BACKING=pages
//! env CUPOOL_POLICY=preallocate
//! check ooms[0]["ooms"][0]["cause"] == "external_fragmentation" and [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["backing_pages", "pinned_by"]
//! case some_pages_are_free_segments
//! args pages
//! env CUPOOL_BACKING=segments
//! check ooms[0]["ooms"][0]["cause"] == "external_fragmentation" and ooms[0]["ooms"][0]["suggestions"][0]["rule_id"] == "backing_pages" and ooms[0]["ooms"][0]["suggestions"][0]["level"] == "fix"
//! case async
//! args riddled
//! env CUPOOL_POLICY=async
//! check ooms[0]["ooms"][0]["cause"] == "external_fragmentation" and ooms[0]["ooms"][0]["confidence"] == "medium" and [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["driver_pool_pieces", "pool_of_ours"]
//! check "largest_free_bytes" in ooms[0]["ooms"][0]["missing_inputs"] and "largest hole unknown" in err
//! case limit_in_pieces
//! args limit_in_pieces
//! env CUPOOL_LIMIT=200MiB
//! check ooms[0]["ooms"][0]["cause"] == "limit" and ooms[0]["ooms"][0]["suggestions"][0]["rule_id"] == "raise_limit" and "pinned_by" in str(ooms[0]["ooms"][0]["suggestions"])
//! case limit_pending
//! args limit_pending
//! env CUPOOL_LIMIT=900MiB
//! env CUSIM_MEMORY=2GiB
//! check ooms[0]["ooms"][0]["cause"] == "limit" and [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["synchronize_first", "raise_limit"]
//! case others
//! args others
//! env CUSIM_CONTEXT_BYTES=900MiB
//! check ooms[0]["ooms"][0]["cause"] == "true_exhaustion" and ooms[0]["ooms"][0]["confidence"] == "medium" and [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["look_elsewhere", "request_exceeds_reach"]
//! check ooms[0]["ooms"][0]["evidence"]["unattributed_bytes"] == 900 * MiB and ooms[0]["ooms"][0]["counterfactuals"][1] == {"cause": "limit", "shortfall_bytes": None}
//! check "900.00 MiB" in err and "nvidia-smi" in err
#include "victim.h"

#include "cusim.h"

/* `before_bytes`: live besides. */
static void free_while_work_waits(size_t before_bytes) {
  static uint32_t flag;
  CUstream stream;
  CUdeviceptr block = 0, other = 0;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if (before_bytes != 0) allocate(before_bytes);
  MUST(cuMemAllocAsync(&block, 700 * MIB, stream));
  cusim_launch_wait_host(stream, &flag);
  MUST(cuMemFreeAsync(block, stream));
  SAY(cuMemAlloc(&other, 700 * MIB));
  __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
  MUST(cuCtxSynchronize());
  SAY(cuMemAlloc(&other, 700 * MIB)); /* the advice, followed */
}

static void allocate_in_capture(void) {
  static CUdeviceptr blocks[10];
  CUdeviceptr other = 0;
  CUstream stream;
  CUgraph graph = NULL;
  for (int i = 0; i < 10; ++i) blocks[i] = allocate(100 * MIB);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_GLOBAL));
  for (int i = 0; i < 10; ++i) MUST(cuMemFree(blocks[i]));
  SAY(cuMemAlloc(&other, 200 * MIB));
  MUST(cuStreamEndCapture(stream, &graph));
  SAY(cuMemAlloc(&other, 200 * MIB));
}

/* Blocks of two sizes in turns, until there are `most` or no more; the first of each two goes. */
static void riddle(size_t going_bytes, size_t staying_bytes, int most, size_t wanted_bytes) {
  static CUdeviceptr going[1024];
  CUdeviceptr other = 0;
  int count = 0;
  while (count < most) {
    if (cuMemAlloc(&going[count], going_bytes) != 0) break;
    ++count;
    MUST(cuMemAlloc(&other, staying_bytes));
  }
  for (int i = 0; i < count; ++i) MUST(cuMemFree(going[i]));
  MUST(cuCtxSynchronize());
  SAY(cuMemAlloc(&other, wanted_bytes));
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  CUdeviceptr other = 0;
  enter_device(0);
  if (strcmp(what, "capture") == 0) allocate_in_capture();
  else if (strcmp(what, "stream_ordered") == 0) free_while_work_waits(0);
  else if (strcmp(what, "limit_pending") == 0) free_while_work_waits(150 * MIB);
  else if (strcmp(what, "riddled") == 0) riddle(3 * MIB / 2, MIB / 2, 512, 100 * MIB);
  else if (strcmp(what, "pages") == 0) riddle(13 * MIB, MIB, 60, 500 * MIB);
  else if (strcmp(what, "limit_in_pieces") == 0) riddle(3 * MIB / 2, MIB / 2, 100, 60 * MIB);
  else SAY(cuMemAlloc(&other, 200 * MIB));
  return 0;
}
