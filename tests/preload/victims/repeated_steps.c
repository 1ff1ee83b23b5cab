// Sixty identical steps of a job that allocates and frees plainly, each waited for, or polled, in one of the ways that programs have. What a step needs must
// not depend on where its predecessors ended: only the first, which makes the pool grow five times, may do that.
//! env CUSIM_MEMORY=160GiB
//! env CUPOOL_BACKING=pages
//! check c["rung_grow"] == 5
//! check c["rung_remap"] + c["rung_release"] + c["rung_poll"] + c["native_fallbacks"] == 0 and c["live_bytes"]["current"] == 0
//! case first
//! args stream 1
//! case context
//! args context
//! case context_v2
//! args context_v2
//! case stream
//! args stream
//! case stream_per_thread
//! args stream_per_thread
//! case event
//! args event
//! case stream_query
//! args stream_query
//! case stream_query_per_thread
//! args stream_query_per_thread
//! case event_query
//! args event_query
//! case read
//! args read
#include "cusim.h"
#include "victim.h"

CUresult cuStreamSynchronize_ptsz(CUstream stream);
CUresult cuStreamQuery_ptsz(CUstream stream);
CUresult cuCtxSynchronize_v2(CUcontext context);

enum { kBlocks = 40, kSteps = 60 };

static CUcontext g_context;
static CUstream g_stream;
static CUevent g_end;
static CUdeviceptr g_results;

static CUresult ask_stream(void) { return cuStreamQuery(g_stream); }
static CUresult ask_stream_per_thread(void) { return cuStreamQuery_ptsz(g_stream); }
static CUresult ask_event(void) { return cuEventQuery(g_end); }

static void poll_until_done(CUresult (*ask)(void)) {
  CUresult answer = CUDA_ERROR_NOT_READY;
  while ((answer = ask()) == CUDA_ERROR_NOT_READY) cusim_advance_ns(100000);
  MUST(answer);
}

static void wait_for_step(const char* way) {
  char result = 0;
  if (strcmp(way, "context") == 0) MUST(cuCtxSynchronize());
  else if (strcmp(way, "context_v2") == 0) MUST(cuCtxSynchronize_v2(g_context));
  else if (strcmp(way, "stream") == 0) MUST(cuStreamSynchronize(g_stream));
  else if (strcmp(way, "stream_per_thread") == 0) MUST(cuStreamSynchronize_ptsz(g_stream));
  else if (strcmp(way, "read") == 0) MUST(cuMemcpyDtoH(&result, g_results, 1));
  else if (strcmp(way, "stream_query") == 0) poll_until_done(ask_stream);
  else if (strcmp(way, "stream_query_per_thread") == 0) poll_until_done(ask_stream_per_thread);
  else {
    MUST(cuEventCreate(&g_end, CU_EVENT_DISABLE_TIMING));
    MUST(cuEventRecord(g_end, g_stream));
    if (strcmp(way, "event_query") == 0) poll_until_done(ask_event);
    else MUST(cuEventSynchronize(g_end));
    MUST(cuEventDestroy(g_end));
  }
}

static size_t size_of(int block) { return (size_t)(block * 37 % 61 + 1) * MIB + (size_t)(block * 7919 % 1000) * KIB; }

static void run_step(void) {
  CUdeviceptr blocks[kBlocks];
  for (int i = 0; i < kBlocks; ++i) {
    blocks[i] = allocate(size_of(i));
    MUST(cusim_launch_fill(g_stream, blocks[i], 64, (unsigned char)i, 50000));
    if (i % 3 == 2) MUST(cuMemFree(blocks[i - 1]));
  }
  for (int i = kBlocks - 1; i >= 0; --i) {
    if (i % 3 == 1 && i + 1 < kBlocks) continue;  // freed above
    MUST(cusim_launch_check(g_stream, blocks[i], 64, (unsigned char)i, 20000));
    MUST(cuMemFree(blocks[i]));
  }
}

int main(int argc, char** argv) {
  const char* way = argc > 1 ? argv[1] : "stream";
  g_context = enter_device(0);
  if (strcmp(way, "read") != 0) MUST(cuStreamCreate(&g_stream, CU_STREAM_NON_BLOCKING));  // a read waits for the default stream
  g_results = allocate(GIB);
  for (int step = 0; step < (argc > 2 ? atoi(argv[2]) : kSteps); ++step) {
    run_step();
    wait_for_step(way);
  }
  MUST(cuMemFree(g_results));
  printf("mismatched %d\n", (int)cusim_mismatched_bytes());
  return cusim_mismatched_bytes() != 0;
}
