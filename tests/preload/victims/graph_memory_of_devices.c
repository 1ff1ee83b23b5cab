// What the driver keeps for graphs goes to others where no executable graph lives that could need it: one of another device, one without memory nodes, or one that
// ended with its context is in nobody's way. Where one lives the report says so, and names the trim that the program itself can make.
//! env CUSIM_MEMORY=256MiB
//! env CUSIM_CONTEXT_BYTES=4MiB
//! env CUSIM_DEVICES=2
//! native skip
//! case of_another_device
//! args another
//! check "wanted: 0" in out and ooms == []
//! case of_another_device_on_segments
//! env CUPOOL_BACKING=segments
//! args another
//! check "wanted: 0" in out and ooms == []
//! case of_another_device_in_stream_order
//! args another ordered
//! check "wanted: 0" in out and ooms == []
//! case of_another_device_by_an_array
//! args another array
//! check "wanted: 0" in out and ooms == []
//! case made_elsewhere_of_this_device
//! native same
//! args elsewhere
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and "launched again: 0" in out and ooms[0]["ooms"][0]["evidence"]["living_graphs"] == 1
//! case without_memory
//! args empty array
//! check "wanted: 0" in out and ooms == []
//! case ended_by_a_reset
//! args reset array
//! check "wanted: 0" in out and ooms == []
//! case ended_with_its_context
//! args context array
//! check "wanted: 0" in out and ooms == []
//! case advice
//! native same
//! args advice
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and "after the trim: 0" in out and "launched again: 0" in out
//! check [s["rule_id"] for s in ooms[0]["ooms"][0]["suggestions"]] == ["non_pool_memory", "graph_memory"]
//! check "cudaDeviceGraphMemTrim" in ooms[0]["ooms"][0]["suggestions"][1]["message"] and ooms[0]["ooms"][0]["evidence"]["living_graphs"] == 1
//! case advice_under_platform
//! native same
//! env CUPOOL_POLICY=platform
//! args advice
//! ooms 1
//! stderr* (cupool\[<pid>\]: out of memory on GPU 0.*|  (cause|holds|elsewhere|try|report| ) .*)
//! check "wanted: 2" in out and "after the trim: 0" in out and "launched again: 0" in out
//! check "cudaDeviceGraphMemTrim" in ooms[0]["ooms"][0]["suggestions"][1]["message"] and "CUPOOL_POLICY" not in ooms[0]["ooms"][0]["suggestions"][1]["message"]
#include "victim.h"

/* A graph that takes and frees memory of `device`. */
static CUgraph graph_of(int device, size_t bytes) {
  CUgraph graph = NULL;
  CUgraphNode allocation, end;
  CUDA_MEM_ALLOC_NODE_PARAMS parameters;
  memset(&parameters, 0, sizeof parameters);
  parameters.poolProps.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  parameters.poolProps.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  parameters.poolProps.location.id = device;
  parameters.bytesize = bytes;
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphAddMemAllocNode(&allocation, graph, NULL, 0, &parameters));
  MUST(cuGraphAddMemFreeNode(&end, graph, &allocation, 1, parameters.dptr));
  return graph;
}

static CUgraphExec launched(CUgraph graph) {
  CUgraphExec exec = NULL;
  MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  MUST(cuGraphLaunch(exec, 0));
  MUST(cuCtxSynchronize());
  MUST(cuGraphDestroy(graph));
  return exec;
}

static CUgraphExec launched_empty(void) {
  CUgraph graph = NULL;
  CUgraphNode node;
  MUST(cuGraphCreate(&graph, 0));
  MUST(cuGraphAddEmptyNode(&node, graph, NULL, 0));
  return launched(graph);
}

int main(int count, char** names) {
  const char* what = count > 1 ? names[1] : "";
  const char* how = count > 2 ? names[2] : "";
  CUgraphExec lives = NULL;
  CUcontext context = NULL;
  enter_device(0);
  if (strcmp(what, "another") == 0 || strcmp(what, "elsewhere") == 0) enter_device(1);
  if (strcmp(what, "another") == 0) lives = launched(graph_of(1, 2 * MIB));
  if (strcmp(what, "elsewhere") == 0) lives = launched(graph_of(0, 128 * MIB));
  enter_device(0);
  MUST(cuMemFree(allocate(MIB)));
  if (strcmp(what, "reset") == 0) {
    launched(graph_of(0, 2 * MIB));
    MUST(cuDevicePrimaryCtxReset(0));
    enter_device(0);
    MUST(cuMemFree(allocate(MIB)));
  }
  if (strcmp(what, "context") == 0) {
    MUST(create_context(&context, 0, 0));
    launched(graph_of(0, 2 * MIB));
    MUST(cuCtxDestroy(context));
    enter_device(0);
  }
  if (strcmp(what, "advice") == 0) lives = launched(graph_of(0, 128 * MIB));
  else if (strcmp(what, "elsewhere") != 0) MUST(cuGraphExecDestroy(launched(graph_of(0, 128 * MIB))));
  if (strcmp(what, "empty") == 0) lives = launched_empty();
  CUdeviceptr block = 0;
  CUarray array = NULL;
  CUDA_ARRAY_DESCRIPTOR description = {8192, 6144, CU_AD_FORMAT_FLOAT, 1}; /* 192 MiB */
  int code = strcmp(how, "array") == 0     ? (int)cuArrayCreate(&array, &description)
             : strcmp(how, "ordered") == 0 ? (int)cuMemAllocAsync(&block, 192 * MIB, 0)
                                           : (int)cuMemAlloc(&block, 192 * MIB);
  printf("wanted: %d\n", code);
  if (strcmp(what, "advice") == 0) {
    MUST(cuDeviceGraphMemTrim(0));
    printf("after the trim: %d\n", cuMemAlloc(&block, 192 * MIB));
  }
  if (block != 0) MUST(cuMemFree(block));
  if (array != NULL) MUST(cuArrayDestroy(array));
  MUST(cuCtxSynchronize());
  if (strcmp(what, "another") == 0 || strcmp(what, "elsewhere") == 0) enter_device(1);
  if (lives != NULL) printf("launched again: %d\n", cuGraphLaunch(lives, 0));
  MUST(cuCtxSynchronize());
  if (lives != NULL) MUST(cuGraphExecDestroy(lives));
  return 0;
}
