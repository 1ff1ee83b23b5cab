// Graphs as captures leave them, and their memory nodes.
#include <cstring>

#include "tests/sim/runtime/runtime_state.hpp"

using namespace cusim_runtime;

namespace {
constexpr auto kLegacy = DefaultStream::kLegacy;
constexpr auto kPerThread = DefaultStream::kPerThread;
}  // namespace

extern "C" {

cudaError_t cudaGraphCreate(cudaGraph_t* out, unsigned flags) { return call_driver(DRIVER_ROW(cuGraphCreate, kLegacy), out, flags); }
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return call_driver(DRIVER_ROW(cuGraphDestroy, kLegacy), graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) { return call_driver(DRIVER_ROW(cuGraphExecDestroy, kLegacy), exec); }
cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  return call_driver(DRIVER_ROW(cuGraphGetNodes, kLegacy), graph, nodes, count);
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  return call_in_context(DRIVER_ROW(cuGraphInstantiateWithFlags, kLegacy), out, graph, flags);
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* out, cudaGraph_t graph, unsigned long long flags) {
  return call_in_context(DRIVER_ROW(cuGraphInstantiateWithFlags, kLegacy), out, graph, flags);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) { return call_in_context(DRIVER_ROW(cuGraphLaunch, kLegacy), exec, stream); }
cudaError_t cudaGraphLaunch_ptsz(cudaGraphExec_t exec, cudaStream_t stream) {
  return call_in_context(DRIVER_ROW(cuGraphLaunch, kPerThread), exec, stream);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) { return call_in_context(DRIVER_ROW(cuGraphUpload, kLegacy), exec, stream); }
cudaError_t cudaGraphUpload_ptsz(cudaGraphExec_t exec, cudaStream_t stream) {
  return call_in_context(DRIVER_ROW(cuGraphUpload, kPerThread), exec, stream);
}

cudaError_t cudaGraphAddMemAllocNode(cudaGraphNode_t* out, cudaGraph_t graph, const cudaGraphNode_t* dependencies, size_t count,
                                     cudaMemAllocNodeParams* parameters) {
  if (parameters == nullptr) {
    return record(cudaErrorInvalidValue);
  }
  CUDA_MEM_ALLOC_NODE_PARAMS converted{};
  static_assert(sizeof converted.poolProps == sizeof parameters->poolProps);
  std::memcpy(&converted.poolProps, &parameters->poolProps, sizeof converted.poolProps);
  converted.accessDescs = reinterpret_cast<const CUmemAccessDesc*>(parameters->accessDescs);
  converted.accessDescCount = parameters->accessDescCount;
  converted.bytesize = parameters->bytesize;
  const cudaError_t error = call_in_context(DRIVER_ROW(cuGraphAddMemAllocNode, kLegacy), out, graph, dependencies, count, &converted);
  parameters->dptr = reinterpret_cast<void*>(converted.dptr);
  return error;
}

cudaError_t cudaGraphAddMemFreeNode(cudaGraphNode_t* out, cudaGraph_t graph, const cudaGraphNode_t* dependencies, size_t count, void* pointer) {
  return call_in_context(DRIVER_ROW(cuGraphAddMemFreeNode, kLegacy), out, graph, dependencies, count, reinterpret_cast<CUdeviceptr>(pointer));
}

cudaError_t cudaDeviceGraphMemTrim(int device) { return call_in_context(DRIVER_ROW(cuDeviceGraphMemTrim, kLegacy), device); }

}  // extern "C"
