// What the counters say that they count: allocations that returned whatever error, also past the pool and with or without a limit, and frees of what nobody here has
// served, be it managed memory or that of graphs.
//! check c["failed_allocations"] == 2 and c["foreign_frees"] == 2 and ooms == []
//! case without_a_limit
//! case with_a_limit
//! env CUPOOL_LIMIT=1GiB
//! case under_platform
//! env CUPOOL_POLICY=platform
//! case under_async
//! env CUPOOL_POLICY=async
#include "victim.h"

int main(void) {
  enter_device(0);
  CUdeviceptr block = 0, of_graph = 0, managed = 0;
  CUarray array = NULL;
  CUmemGenericAllocationHandle handle;
  CUmemAllocationProp properties;
  CUDA_ARRAY_DESCRIPTOR no_array = {1024, 1024, CU_AD_FORMAT_FLOAT, 3};
  CUstream stream;
  CUgraph graph;
  CUgraphExec exec;
  memset(&properties, 0, sizeof properties);
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  block = allocate(MIB);
  SAY(cuArrayCreate(&array, &no_array));
  SAY(cuMemCreate(&handle, 2 * MIB + 1, &properties, 0));
  MUST(cuMemAllocManaged(&managed, MIB, CU_MEM_ATTACH_GLOBAL));
  SAY(cuMemFree(managed));
  MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
  MUST(cuMemAllocAsync(&of_graph, MIB, stream));
  MUST(cuStreamEndCapture(stream, &graph));
  MUST(cuGraphInstantiateWithFlags(&exec, graph, 0));
  MUST(cuGraphLaunch(exec, stream));
  SAY(cuMemFreeAsync(of_graph, stream));
  MUST(cuStreamSynchronize(stream));
  MUST(cuMemAllocAsync(&of_graph, MIB, stream));
  SAY(cuMemFreeAsync(of_graph, stream));
  SAY(cuMemFree(block));
  return 0;
}
