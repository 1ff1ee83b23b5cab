// One stream (or plain calls) allocates, another frees behind it, and has a small block of its own now and then: what the second has freed comes back to the
// first, and the pool stays as large as what is on its way.
//! env CUSIM_MEMORY=80GiB
//! check c["reserved_bytes"]["peak"] <= 512 << 20 and c["live_blocks"]["current"] == 0
//! check "mismatched: 0" in out
//! case waited_for_each_step
//! args wait
//! check c["rung_grow"] <= 8 and c["driver_calls"].get("cuStreamWaitEvent", 0) == 0
//! case waited_for_each_step_on_segments
//! args wait
//! env CUPOOL_BACKING=segments
//! case stream_waited_for
//! args stream
//! case two_steps_ahead
//! args ahead
//! check c["rung_grow"] <= 8
//! case two_steps_ahead_on_segments
//! args ahead
//! env CUPOOL_BACKING=segments
//! case two_steps_ahead_without_a_block_of_its_own
//! args ahead none
//! case plain_calls
//! args plain
//! case plain_calls_with_a_threshold
//! args plain
//! env CUPOOL_RELEASE_THRESHOLD=64MiB
//! case nothing_is_kept
//! args ahead
//! env CUPOOL_RELEASE_THRESHOLD=0
#include "cusim.h"
#include "victim.h"

enum { kSteps = 400, kAhead = 2, kRing = 4 };
static const size_t kBytes = 20 * MIB;

int main(int argc, char** argv) {
  const char* const how = argc > 1 ? argv[1] : "wait";
  const int has_own = argc < 3;
  const int is_ahead = strcmp(how, "ahead") == 0 || strcmp(how, "plain") == 0;
  const int blocks = is_ahead ? 2 : 8;
  CUstream producer, consumer;
  CUevent filled, ends[kRing];
  enter_device(0);
  MUST(cuStreamCreate(&producer, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamCreate(&consumer, CU_STREAM_NON_BLOCKING));
  MUST(cuEventCreate(&filled, CU_EVENT_DISABLE_TIMING));
  for (int i = 0; i < kRing; ++i) MUST(cuEventCreate(&ends[i], CU_EVENT_DISABLE_TIMING));
  for (int step = 0; step < kSteps; ++step) {
    if (is_ahead && step >= kAhead) MUST(cuEventSynchronize(ends[(step - kAhead) % kRing]));
    for (int i = 0; i < blocks; ++i) {
      CUdeviceptr block = 0, own = 0;
      if (strcmp(how, "plain") == 0) MUST(cuMemAlloc(&block, kBytes));
      else MUST(cuMemAllocAsync(&block, kBytes, producer));
      const unsigned char mark = (unsigned char)(step * blocks + i + 1);
      MUST(cusim_launch_fill(producer, block, kBytes / 64, mark, 100000));
      MUST(cuEventRecord(filled, producer));
      MUST(cuStreamWaitEvent(consumer, filled, 0));
      MUST(cusim_launch_check(consumer, block, kBytes / 64, mark, 100000));
      if (has_own) {
        MUST(cuMemAllocAsync(&own, 1000, consumer));
        MUST(cusim_launch_fill(consumer, own, 1000, mark, 1000));
        MUST(cuMemFreeAsync(own, consumer));
      }
      MUST(cuMemFreeAsync(block, consumer));
    }
    MUST(cuEventRecord(ends[step % kRing], consumer));
    if (strcmp(how, "wait") == 0) MUST(cuCtxSynchronize());
    if (strcmp(how, "stream") == 0) MUST(cuStreamSynchronize(consumer));
  }
  MUST(cuCtxSynchronize());
  printf("mismatched: %llu\n", (unsigned long long)cusim_mismatched_bytes());
  return 0;
}
