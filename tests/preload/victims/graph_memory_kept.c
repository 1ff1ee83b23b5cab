// The driver keeps what a graph took for its allocation nodes, also when the graph is gone: then it gives it to others when memory is out, and before a
// trim to nobody while the graph lives, whose next launch would else be refused. So does the pool. The report says how much there is.
//! env CUSIM_MEMORY=256MiB
//! env CUSIM_CONTEXT_BYTES=4MiB
//! native skip
//! check sum(d["ledger"].values()) == d["total_bytes"]
//! case told
//! args told
//! check d["outside"]["graphs"] == 128 * MiB and d["ledger"]["outside_graphs"] == 128 * MiB and calls("cuDeviceGraphMemTrim") == 0
//! case told_under_platform
//! env CUPOOL_POLICY=platform
//! args told
//! check d["outside"]["graphs"] == 128 * MiB and d["ledger"]["outside_graphs"] == 128 * MiB and calls("cuDeviceGraphMemTrim") == 0
//! case told_of_a_node
//! args node
//! check d["outside"]["graphs"] == 128 * MiB and report["data_quality"]["unpooled_apis_seen"] == ["cuGraphAddMemAllocNode"]
//! case told_of_a_node_by_its_general_form
//! args general
//! check d["outside"]["graphs"] == 128 * MiB and report["data_quality"]["unpooled_apis_seen"] == ["cuGraphAddNode_v2"]
//! case told_of_a_node_by_its_newest_form
//! env CUSIM_DRIVER_VERSION=13040
//! args newest
//! check d["outside"]["graphs"] == 128 * MiB and report["data_quality"]["unpooled_apis_seen"] == ["cuGraphAddNode_v3"]
//! case trimmed_by_the_program
//! args trimmed
//! check d["outside"]["graphs"] == 0 and "outside_graphs" in d["ledger"]
//! case wanted
//! args wanted
//! check "wanted: 0" in out and c["rung_graphs"] == 1 and c["failed_allocations"] == 0 and ooms == []
//! case wanted_of_a_living_graph
//! native same
//! args living
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: wanted .*
//! stderr* (  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and "launched again: 0" in out and c["rung_graphs"] == 0 and ooms[0]["ooms"][0]["evidence"]["graph_bytes"] == 128 * MiB
//! case wanted_of_a_living_graph_beside_an_ended_context
//! native same
//! args beside
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: wanted .*
//! stderr* (  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and "launched again: 0" in out and c["rung_graphs"] == 0
//! case wanted_of_a_living_graph_of_the_older_call
//! native same
//! args older
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: wanted .*
//! stderr* (  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and "launched again: 0" in out and c["rung_graphs"] == 0
//! case wanted_of_a_living_graph_of_the_newest_node
//! native same
//! env CUSIM_DRIVER_VERSION=13040
//! args newest living
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: wanted .*
//! stderr* (  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and "launched again: 0" in out
//! case wanted_on_segments
//! native same
//! env CUPOOL_BACKING=segments
//! args wanted
//! check "wanted: 0" in out and c["rung_graphs"] == 0 and c["failed_allocations"] == 0 and ooms == []
//! case wanted_of_a_living_graph_on_segments
//! native same
//! env CUPOOL_BACKING=segments
//! args living
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: wanted .*
//! stderr* (  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and "launched again: 0" in out and c["rung_graphs"] == 0
//! case wanted_of_a_living_graph_under_async
//! native same
//! env CUPOOL_POLICY=async
//! args living
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: wanted .*
//! stderr* (  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and "launched again: 0" in out and c["rung_graphs"] == 0
//! case wanted_under_async
//! env CUPOOL_POLICY=async
//! args wanted
//! check "wanted: 0" in out and c["failed_allocations"] == 0 and ooms == []
//! case wanted_in_stream_order
//! args ordered
//! check "wanted: 0" in out and c["failed_allocations"] == 0 and ooms == []
//! case wanted_by_an_array
//! args array
//! check "wanted: 0" in out and c["failed_allocations"] == 0 and ooms == []
//! case wanted_under_platform
//! native same
//! env CUPOOL_POLICY=platform
//! args wanted
//! check "wanted: 0" in out and ooms == []
//! case wanted_of_a_living_graph_under_platform
//! native same
//! env CUPOOL_POLICY=platform
//! args living
//! ooms 1
//! stderr cupool\[<pid>\]: out of memory on GPU 0: wanted .*
//! stderr* (  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and ooms[0]["ooms"][0]["cause"] == "non_pool_memory"
//! check ooms[0]["ooms"][0]["evidence"]["graph_bytes"] == 128 * MiB
//! check [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["non_pool_memory", "graph_memory"]
#include "victim.h"

enum { kKept = 128 };

typedef CUresult (*AddNode)(CUgraphNode*, CUgraph, const CUgraphNode*, const CUgraphEdgeData*, size_t, CUgraphNodeParams*);
CUresult cuGraphInstantiate_v2(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t); /* what programs for CUDA 11 call */

static CUgraph captured(CUstream stream, size_t bytes) {
  CUgraph graph = NULL;
  CUdeviceptr address = 0;
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemAllocAsync(&address, bytes, stream));
  MUST(cuMemsetD8Async(address, 1, bytes, stream));
  MUST(cuMemFreeAsync(address, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  return graph;
}

/* The same made by hand; `general`: by cuGraphAddNode, as programs for driver `version` find it. */
static CUgraph by_hand(int general, int version) {
  CUgraph graph = NULL;
  CUgraphNode allocation, end;
  CUgraphNodeParams parameters;
  memset(&parameters, 0, sizeof parameters);
  parameters.type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  parameters.alloc.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.alloc.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  parameters.alloc.bytesize = kKept * MIB;
  CUDA_MEM_ALLOC_NODE_PARAMS old;
  memset(&old, 0, sizeof old);
  old.poolProps = parameters.alloc.poolProps;
  old.bytesize = kKept * MIB;
  MUST(cuGraphCreate(&graph, 0));
  AddNode add = NULL;
  MUST(cuGetProcAddress("cuGraphAddNode", (void**)&add, version, 0, NULL));
  if (general) MUST(add(&allocation, graph, NULL, NULL, 0, &parameters));
  else MUST(cuGraphAddMemAllocNode(&allocation, graph, NULL, 0, &old));
  MUST(cuGraphAddMemFreeNode(&end, graph, &allocation, 1, general ? parameters.alloc.dptr : old.dptr));
  return graph;
}

int main(int argc, char** argv) {
  const char* what = argc > 1 ? argv[1] : "";
  enter_device(0);
  CUstream stream;
  CUgraphExec exec = NULL;
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuMemFree(allocate(MIB)));
  const int by_general_form = strcmp(what, "general") == 0 || strcmp(what, "newest") == 0;
  CUgraph graph = by_general_form || strcmp(what, "node") == 0 ? by_hand(by_general_form, strcmp(what, "newest") == 0 ? 13040 : 12030)
                                                               : captured(stream, kKept * MIB);
  const int is_older = strcmp(what, "older") == 0;
  if (is_older) MUST(cuGraphInstantiate_v2(&exec, graph, NULL, NULL, 0));
  else MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  MUST(cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  if (argc > 2) { /* another one, which is gone */
    CUgraph other = captured(stream, 2 * MIB);
    CUgraphExec once = NULL;
    MUST(cuGraphInstantiateWithFlags(&once, other, 0));
    MUST(cuGraphLaunch(once, stream));
    MUST(cuStreamSynchronize(stream));
    MUST(cuGraphExecDestroy(once));
    MUST(cuGraphDestroy(other));
  }
  const int is_beside = strcmp(what, "beside") == 0; /* another context, which ends without a graph of its own */
  if (is_beside) {
    CUcontext other;
    MUST(create_context(&other, 0, 0));
    MUST(cuCtxDestroy(other));
  }
  const int lives = is_older || is_beside || strcmp(argc > 2 ? argv[2] : what, "living") == 0;
  if (!lives) MUST(cuGraphExecDestroy(exec));
  MUST(cuGraphDestroy(graph));
  if (strcmp(what, "trimmed") == 0) MUST(cuDeviceGraphMemTrim(0));
  CUdeviceptr block = 0;
  CUarray array = NULL;
  CUDA_ARRAY_DESCRIPTOR description = {8192, 6144, CU_AD_FORMAT_FLOAT, 1}; /* 192 MiB */
  int code = -1;
  if (strcmp(what, "wanted") == 0 || lives) code = (int)cuMemAlloc(&block, 192 * MIB);
  if (strcmp(what, "ordered") == 0) code = (int)cuMemAllocAsync(&block, 192 * MIB, stream);
  if (strcmp(what, "array") == 0) code = (int)cuArrayCreate(&array, &description);
  printf("wanted: %d\n", code);
  if (block != 0) MUST(cuMemsetD8(block, 7, 192 * MIB));
  if (block != 0) MUST(cuMemFree(block));
  if (array != NULL) MUST(cuArrayDestroy(array));
  if (lives) printf("launched again: %d\n", cuGraphLaunch(exec, stream));
  MUST(cuStreamSynchronize(stream));
  if (lives) MUST(cuGraphExecDestroy(exec));
  return 0;
}
