// What the driver keeps for graphs is told as it is: after the first launch of a graph that comes late, when the driver has given it to other calls since, and in an
// out-of-memory while a stream captures, when it cannot be asked.
//! env CUSIM_MEMORY=256MiB
//! env CUSIM_CONTEXT_BYTES=4MiB
//! native skip
//! check sum(d["ledger"].values()) == d["total_bytes"]
//! case of_a_later_graph
//! args later
//! check d["outside"]["graphs"] == 136 * MiB and d["ledger"]["outside_graphs"] == 136 * MiB and d["ledger"]["unattributed"] <= 8 * MiB
//! case of_a_later_graph_under_platform
//! env CUPOOL_POLICY=platform
//! args later
//! check d["outside"]["graphs"] == 136 * MiB and d["ledger"]["outside_graphs"] == 136 * MiB and d["ledger"]["unattributed"] <= 8 * MiB
//! case given_to_physical_memory
//! args physical
//! check d["outside"]["graphs"] == 0 and d["outside"]["program_vmm"] == 192 * MiB and d["ledger"]["driver_free"] >= 48 * MiB
//! case given_to_physical_memory_under_platform
//! env CUPOOL_POLICY=platform
//! args physical
//! check d["outside"]["graphs"] == 0 and d["outside"]["program_vmm"] == 192 * MiB and d["ledger"]["driver_free"] >= 48 * MiB
//! case during_a_capture
//! env CUPOOL_BACKING=segments
//! args capture
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! check ooms[0]["ooms"][0]["evidence"]["capturing"] and ooms[0]["ooms"][0]["evidence"]["graph_bytes"] + ooms[0]["ooms"][0]["evidence"]["driver_free_bytes"] + ooms[0]["ooms"][0]["evidence"]["held_bytes"] <= 256 * MiB
//! check ooms[0]["ooms"][0]["cause"] != "non_pool_memory" and ooms[0]["devices"][0]["outside"]["graphs"] == ooms[0]["ooms"][0]["evidence"]["graph_bytes"]
#include "victim.h"

static CUgraphExec made(size_t bytes) {
  CUgraph graph = NULL;
  CUgraphExec exec = NULL;
  CUgraphNode allocation, end;
  CUDA_MEM_ALLOC_NODE_PARAMS parameters;
  memset(&parameters, 0, sizeof parameters);
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  parameters.bytesize = bytes;
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphAddMemAllocNode(&allocation, graph, NULL, 0, &parameters));
  MUST(cuGraphAddMemFreeNode(&end, graph, &allocation, 1, parameters.dptr));
  MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  MUST(cuGraphDestroy(graph));
  return exec;
}

static void launch(CUgraphExec exec, int times) {
  for (int i = 0; i < times; ++i) MUST(cuGraphLaunch(exec, 0));
  MUST(cuCtxSynchronize());
}

int main(int count, char** names) {
  const char* what = count > 1 ? names[1] : "";
  enter_device(0);
  allocate(MIB);
  if (strcmp(what, "later") == 0) {
    launch(made(8 * MIB), 70);
    launch(made(128 * MIB), 1);
    return 0;
  }
  CUgraphExec exec = made(128 * MIB);
  launch(exec, 1);
  MUST(cuGraphExecDestroy(exec));
  if (strcmp(what, "physical") == 0) {
    CUmemGenericAllocationHandle handle;
    CUmemAllocationProp properties;
    memset(&properties, 0, sizeof properties);
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    MUST(cuMemCreate(&handle, 192 * MIB, &properties, 0));
    return 0;
  }
  CUstream stream;
  CUgraph graph;
  CUdeviceptr block = 0;
  for (int i = 0; i < 3; ++i) allocate(64 * MIB); /* for the last of them the driver gives what it kept */
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  SAY(cuMemAlloc(&block, 100 * MIB));
  MUST(cuStreamEndCapture(stream, &graph));
  return 0;
}
