// Memory of CUDA graphs is device memory, also where a process has no other: it leaves a report, which says how much. What a plain allocation then takes
// of it, or of what a memory pool keeps idle, is not counted there any more, nor as nobody's.
//! env CUSIM_MEMORY=1GiB
//! case grow
//! args alone
//! check d["ledger"]["outside_graphs"] == 300 * MiB and d["ledger"]["driver_free"] == 724 * MiB and d["ledger"]["unattributed"] == 0
//! case platform
//! args alone
//! env CUPOOL_POLICY=platform
//! check d["ledger"]["outside_graphs"] == 300 * MiB and d["ledger"]["driver_free"] == 724 * MiB
//! case async
//! args alone
//! env CUPOOL_POLICY=async
//! check d["ledger"]["outside_graphs"] == 300 * MiB and d["ledger"]["driver_free"] == 724 * MiB
//! case taken_by_a_plain_call
//! args taken
//! env CUPOOL_POLICY=platform
//! check d["ledger"]["outside_graphs"] == 0 and d["ledger"]["driver_free"] == 324 * MiB and d["ledger"]["unattributed"] == 0
//! case taken_from_a_pool
//! args pool
//! env CUPOOL_POLICY=platform
//! check d["ledger"]["outside_mempools"] == 0 and d["ledger"]["driver_free"] == 324 * MiB and d["ledger"]["unattributed"] == 0
//! case never_launched
//! args captured
//! report absent
#include "victim.h"

static CUstream stream;

static CUgraphExec graph_with_memory(size_t bytes) {
  CUgraph graph;
  CUgraphExec executable;
  CUdeviceptr block;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemAllocAsync(&block, bytes, stream));
  MUST(cuMemFreeAsync(block, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiate(&executable, graph, 0));
  MUST(cuGraphDestroy(graph));
  return executable;
}

static void launch(CUgraphExec graph) {
  MUST(cuGraphLaunch(graph, stream));
  MUST(cuStreamSynchronize(stream));
}

static void leave_in_pool(size_t bytes) {
  CUmemoryPool pool;
  CUdeviceptr block;
  cuuint64_t all = ~(cuuint64_t)0;
  MUST(cuDeviceGetDefaultMemPool(&pool, 0));
  MUST(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &all));
  MUST(cuMemAllocAsync(&block, bytes, stream));
  MUST(cuMemFreeAsync(block, stream));
  MUST(cuStreamSynchronize(stream));
}

int main(int argc, char** argv) {
  const char* how = argc > 1 ? argv[1] : "";
  enter_device(0);
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  if (strcmp(how, "captured") == 0) {
    graph_with_memory(300 * MIB);
  } else if (strcmp(how, "alone") == 0) {
    launch(graph_with_memory(300 * MIB));
  } else if (strcmp(how, "taken") == 0) {
    CUgraphExec graph = graph_with_memory(700 * MIB);
    launch(graph);
    MUST(cuGraphExecDestroy(graph));
    allocate(700 * MIB);
  } else {
    leave_in_pool(700 * MIB);
    allocate(700 * MIB);
  }
  return 0;
}
