// Stream-ordered calls in a capture belong to the graph: the capture stays whole, the graph can be launched again and again, what it
// leaves is freed outside, and nothing of it counts as the pool's.
//! check c["live_blocks"]["current"] == 0 and c["live_bytes"]["current"] == 0 and c["allocations"] == c["frees"]
//! check calls("cuMemFree_v2") <= native.calls("cuMemFree_v2")
//! case freed_in_the_graph
//! args inside 0
//! case freed_in_stream_order
//! args async 0
//! case freed_at_once
//! args plain 0
//! case freed_on_launch
//! args auto 0
//! case in_a_thread_local_capture
//! args inside 1
//! case in_a_relaxed_capture
//! args async 2
//! case under_platform
//! env CUPOOL_POLICY=platform
//! args async 0
//! check report["data_quality"]["unpooled_apis_seen"] == ["cuMemAllocAsync"]
//! case under_async
//! env CUPOOL_POLICY=async
//! args async 0
//! check report["data_quality"]["unpooled_apis_seen"] == ["cuMemAllocAsync"]
//! case under_a_limit
//! env CUPOOL_LIMIT=1GiB
//! args async 0
#include "victim.h"

static unsigned char first_byte(CUdeviceptr address) {
  unsigned char back = 0;
  MUST(cuMemcpyDtoH(&back, address, 1));
  return back;
}

int main(int argc, char** argv) {
  const char* way = argc > 2 ? argv[1] : "inside";
  enter_device(0);
  CUstream stream;
  CUgraph graph = NULL;
  CUgraphExec exec = NULL, second = NULL;
  CUdeviceptr captured = 0, ordered = 0;
  CUstreamCaptureStatus status;
  CUdeviceptr result = allocate(4096), plain = allocate(3 * MIB);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemAllocAsync(&ordered, MIB, stream));
  MUST(cuStreamBeginCapture(stream, (CUstreamCaptureMode)atoi(argv[2])));
  SAY(cuMemAllocAsync(&captured, 4 * MIB, stream));
  SAY(cuMemsetD8Async(captured, 42, 4 * MIB, stream));
  SAY(cuMemcpyDtoDAsync(result, captured + MIB, 1, stream));
  if (strcmp(way, "inside") == 0) SAY(cuMemFreeAsync(captured, stream));
  MUST(cuStreamIsCapturing(stream, &status));
  printf("capturing: %d\n", status);
  MUST(cuStreamEndCapture(stream, &graph));
  size_t count = 0;
  MUST(cuGraphGetNodes(graph, NULL, &count));
  printf("nodes: %zu\n", count);
  SAY(cuGraphInstantiateWithFlags(&exec, graph, strcmp(way, "auto") == 0 ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0));
  SAY(cuGraphInstantiateWithFlags(&second, graph, 0));
  for (int i = 0; i < 3; ++i) {
    MUST(cuMemsetD8(result, 0, 1));
    MUST(cuCtxSynchronize());
    SAY(cuGraphLaunch(exec, stream));
    MUST(cuStreamSynchronize(stream));
    printf("wrote %d\n", first_byte(result));
    if (strcmp(way, "async") == 0) SAY(cuMemFreeAsync(captured, stream));
    if (strcmp(way, "plain") == 0) SAY(cuMemFree(captured));
    CUdeviceptr between = allocate(MIB); /* the pool goes on meanwhile */
    MUST(cuMemFree(between));
  }
  if (strcmp(way, "auto") == 0) SAY(cuMemFreeAsync(captured, stream));
  SAY(cuStreamSynchronize(stream));
  SAY(cuMemFreeAsync(ordered, stream));
  SAY(cuStreamSynchronize(stream));
  SAY(cuGraphExecDestroy(exec));
  SAY(cuGraphDestroy(graph));
  SAY(cuDeviceGraphMemTrim(0));
  SAY(cuMemFree(plain));
  SAY(cuMemFree(result));
  return 0;
}
