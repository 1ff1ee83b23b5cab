// Identical steps of a job whose host never waits, with the GPU always forty kernels behind, on a device of nearly four times what a step needs. Once the job is
// known nothing waits for the GPU in our name: there is room for what waits.
//! env CUSIM_MEMORY=800MiB
//! check c["rung_remap"] + c["rung_release"] + c["native_fallbacks"] == 0 and c["live_bytes"]["current"] == 0
//! check c["deferred_bytes"]["peak"] > 256 * 2**20
//! env CUPOOL_BACKING=pages
#include "cusim.h"
#include "victim.h"

enum { kLayers = 12, kKnown = 20, kSteps = 60, kBehind = 40, kKernel_ns = 100000 };

static CUstream g_stream;
static uint64_t g_launches;

/* The clock moves on by one kernel once there are `kBehind` to do: also after somebody has waited. */
static void keep_ahead(void) {
  if (++g_launches > cusim_now_ns() / kKernel_ns + kBehind) cusim_advance_ns(kKernel_ns);
}

static CUdeviceptr begin(int layer) {
  CUdeviceptr block = 0;
  MUST(cuMemAlloc(&block, (size_t)(layer * 5 % 13 + 6) * MIB));
  MUST(cusim_launch_fill(g_stream, block, 64, (unsigned char)layer, kKernel_ns));
  keep_ahead();
  return block;
}

static void end(CUdeviceptr block, int layer) {
  MUST(cusim_launch_check(g_stream, block, 64, (unsigned char)layer, kKernel_ns));
  keep_ahead();
  MUST(cuMemFree(block));
}

static void run_step(void) {
  CUdeviceptr activations[kLayers];
  for (int layer = 0; layer < kLayers; ++layer) {
    activations[layer] = begin(layer);
    end(begin(kLayers + layer), kLayers + layer);
  }
  for (int layer = kLayers - 1; layer >= 0; --layer) {
    end(begin(2 * kLayers + layer), 2 * kLayers + layer);
    end(activations[layer], layer);
  }
}

int main(void) {
  enter_device(0);
  MUST(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));
  CUdeviceptr weights = 0;
  MUST(cuMemAlloc(&weights, 48 * MIB));
  for (int step = 0; step < kKnown; ++step) run_step();
  const uint64_t waits = cusim_calls("cuEventSynchronize");
  for (int step = kKnown; step < kSteps; ++step) run_step();
  printf("waits %d\n", (int)(cusim_calls("cuEventSynchronize") - waits));
  MUST(cuMemFree(weights));
  MUST(cuCtxSynchronize());
  printf("mismatched %d\n", (int)cusim_mismatched_bytes());
  return cusim_mismatched_bytes() != 0;
}
