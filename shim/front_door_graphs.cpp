// Executable graphs: on which devices their allocation nodes take memory, and their end. CUDA Driver API 13.0, Graph Management.
#include "shim/front_door_graphs.hpp"

#include <new>
#include <utility>
#include <vector>

#include "shim/memory_location.hpp"

namespace cupool::shim::front_door {
namespace {

/// The bit of the device on which the node takes memory; 0: it takes none. Graphs within a graph are not looked into and count as any device.
std::uint64_t device_of_node(const Process& own, CUgraphNode node) {
  CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
  if (own.api.cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return PoolSet::kAnyDevice;
  if (type == CU_GRAPH_NODE_TYPE_GRAPH || type == CU_GRAPH_NODE_TYPE_CONDITIONAL) return PoolSet::kAnyDevice;
  if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return 0;
  CUDA_MEM_ALLOC_NODE_PARAMS parameters{};
  if (own.api.cuGraphMemAllocNodeGetParams(node, &parameters) != CUDA_SUCCESS) return PoolSet::kAnyDevice;
  const std::optional<int> device = device_of(parameters.poolProps.location);
  const bool is_told = device && *device >= 0 && *device < static_cast<int>(observe::kMaxDevices);
  return is_told ? std::uint64_t{1} << *device : PoolSet::kAnyDevice;
}

}  // namespace

std::uint64_t devices_of_graph(const Process& own, CUgraph graph) noexcept {
  if (own.api.cuGraphGetNodes == nullptr || own.api.cuGraphNodeGetType == nullptr || own.api.cuGraphMemAllocNodeGetParams == nullptr)
    return PoolSet::kAnyDevice;
  std::size_t count = 0;
  if (own.api.cuGraphGetNodes(graph, nullptr, &count) != CUDA_SUCCESS) return PoolSet::kAnyDevice;
  if (count == 0) return 0;
  try {
    std::vector<CUgraphNode> nodes(count);
    if (own.api.cuGraphGetNodes(graph, nodes.data(), &count) != CUDA_SUCCESS || count > nodes.size()) return PoolSet::kAnyDevice;
    std::uint64_t devices = 0;
    for (std::size_t i = 0; i < count && devices != PoolSet::kAnyDevice; ++i) devices |= device_of_node(own, nodes[i]);
    return devices;
  } catch (const std::bad_alloc&) {
    return PoolSet::kAnyDevice;
  }
}

CUresult end_graph(const Real<CUresult(CUgraphExec)>& real, CUgraphExec graph) {
  Process& own = process();
  GraphBook::Taken was = own.graphs.take(graph);
  const CUresult result = real(graph);
  own.graphs.over(std::move(was), result == CUDA_SUCCESS);
  return result;
}

}  // namespace cupool::shim::front_door
