// The bodies of calls that make, launch and end graphs, some of which take memory. Each serves every variant of its call. Thread-safe.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <tuple>

#include "shim/front_door.hpp"

namespace cupool::shim::front_door {

/// On which devices the graph's allocation nodes take memory, one bit per device; PoolSet::kAnyDevice where that cannot be told. Asks the driver.
std::uint64_t devices_of_graph(const Process& own, CUgraph graph) noexcept;

/// One more executable graph. Its nodes are looked at only if the program has made a memory node before.
template <class... Args>
CUresult instantiate_graph(const Real<CUresult(CUgraphExec*, CUgraph, Args...)>& real, CUgraphExec* out, CUgraph graph, Args... args) {
  const CUresult result = with_room(real, out, graph, args...);
  Process& own = process();
  if (result == CUDA_SUCCESS && out != nullptr && own.pools.expects_graph_memory())
    own.graphs.made(*out, devices_of_graph(own, graph), current_owner(own));
  return result;
}

CUresult end_graph(const Real<CUresult(CUgraphExec)>& real, CUgraphExec graph);

/// A launch or an upload. The first ones of a graph with allocation nodes take memory that stays with the driver.
template <class... Args> CUresult launch_graph(const Real<CUresult(CUgraphExec, Args...)>& real, CUgraphExec graph, Args... args) {
  const CUresult result = with_room(real, graph, args...);
  Process& own = process();
  if (result == CUDA_SUCCESS && own.pools.expects_graph_memory()) own.pools.graph_launched(own.graphs.is_first_launch(graph));
  return result;
}

/// A node of a graph, of the type that its parameters say, which are the last argument.
template <class... Args> CUresult add_graph_node(const Real<CUresult(Args...)>& real, Args... args) {
  const CUresult result = real(args...);
  const CUgraphNodeParams* parameters = std::get<sizeof...(Args) - 1>(std::tie(args...));
  if (result == CUDA_SUCCESS && parameters->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) process().saw_graph_memory(real.symbol());
  return result;
}
/// A call that adds memory nodes only.
template <class... Args> CUresult add_allocation_node(const Real<CUresult(Args...)>& real, Args... args) {
  const CUresult result = real(args...);
  if (result == CUDA_SUCCESS) process().saw_graph_memory(real.symbol());
  return result;
}

/// The program's own trim of what the driver keeps for graphs.
template <class... Args> CUresult trim_graphs(const Real<CUresult(Args...)>& real, Args... args) {
  const CUresult result = real(args...);
  if (result == CUDA_SUCCESS) process().pools.note_graph_memory();
  return result;
}

}  // namespace cupool::shim::front_door
