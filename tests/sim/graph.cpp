// Graphs: what captures recorded, run as one list in the order of recording.
// Source: CUDA Driver API 13.0, "Graph Management". Nodes are not handed out; building graphs by hand is loud.
#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

using GraphMap = std::unordered_map<std::uint64_t, std::shared_ptr<Graph>>;

CUresult find(GraphMap& map, const void* handle, std::shared_ptr<Graph>* out) {
  const auto found = map.find(as_number(handle));
  if (found == map.end()) return CUDA_ERROR_INVALID_VALUE;
  *out = found->second;
  return CUDA_SUCCESS;
}

CUresult instantiate(Symbol symbol, CUgraphExec* out, CUgraph graph_handle) {
  return call(symbol, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Graph> graph;
    CUSIM_TRY(find(c.sim.graphs, graph_handle, &graph));
    // A copy: changes of the graph do not reach what was instantiated.
    const std::uint64_t handle = c.sim.new_handle();
    c.sim.graph_execs.emplace(handle, std::make_shared<Graph>(*graph));
    *out = reinterpret_cast<CUgraphExec>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult launch(Call& c, CUgraphExec exec, CUstream stream_handle) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(stream_handle, &stream));
  std::shared_ptr<Graph> graph;
  CUSIM_TRY(find(c.sim.graph_execs, exec, &graph));
  for (const Node& node : graph->nodes) CUSIM_TRY(c.sim.enqueue(*stream, node.work, c.lock));
  return CUDA_SUCCESS;
}

CUresult destroy(Symbol symbol, GraphMap Simulator::* map, const void* handle) {
  return call(symbol, [&](Call& c) -> CUresult {
    if ((c.sim.*map).erase(as_number(handle)) != 0) return CUDA_SUCCESS;
    c.sim.violate(c.name() + " of a graph that is destroyed or unknown");
    return CUDA_ERROR_INVALID_VALUE;
  });
}

}  // namespace

extern "C" {

CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  return call(Symbol::cuGraphCreate, [&](Call& c) -> CUresult {
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t handle = c.sim.new_handle();
    c.sim.graphs.emplace(handle, std::make_shared<Graph>());
    *out = reinterpret_cast<CUgraph>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long) {
  return instantiate(Symbol::cuGraphInstantiateWithFlags, out, graph);
}
CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes > 0) *log = '\0';
  return instantiate(Symbol::cuGraphInstantiate, out, graph);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log,
                               size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes > 0) *log = '\0';
  return instantiate(Symbol::cuGraphInstantiate_v2, out, graph);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return call(Symbol::cuGraphLaunch, [&](Call& c) { return launch(c, exec, stream); });
}
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return call(Symbol::cuGraphLaunch_ptsz, [&](Call& c) { return launch(c, exec, per_thread(stream)); });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) {
  return destroy(Symbol::cuGraphExecDestroy, &Simulator::graph_execs, exec);
}
CUresult cuGraphDestroy(CUgraph graph) { return destroy(Symbol::cuGraphDestroy, &Simulator::graphs, graph); }

/// Counting works; the node handles themselves are not modelled.
CUresult cuGraphGetNodes(CUgraph graph_handle, CUgraphNode* nodes, size_t* count) {
  return call(Symbol::cuGraphGetNodes, [&](Call& c) -> CUresult {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Graph> graph;
    CUSIM_TRY(find(c.sim.graphs, graph_handle, &graph));
    if (nodes != nullptr) {
      c.sim.violate("cuGraphGetNodes: node handles are not modelled");
      std::fprintf(stderr, "cusim: cuGraphGetNodes: node handles are not modelled\n");
      return CUDA_ERROR_NOT_SUPPORTED;
    }
    *count = graph->nodes.size();
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
