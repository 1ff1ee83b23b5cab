// Graphs: what captures recorded (and memory nodes added by hand), run as one list in the order of recording.
// Source: CUDA Driver API 13.0, "Graph Management". Other hand-built nodes, child graphs and updates are loud.
#include <algorithm>
#include <set>

#include "tests/sim/graph_nodes.hpp"

using namespace cusim;

namespace {

constexpr unsigned long long kAutoFree = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH;

CUresult instantiate(Call& c, CUgraphExec* out, CUgraph graph_handle, unsigned long long flags) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Graph> graph;
  CUSIM_TRY(find_graph(c, graph_handle, &graph));
  constexpr unsigned long long kKnown = kAutoFree | CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH) != 0) {
    if ((flags & kAutoFree) != 0 || graph->has_memory_nodes()) return CUDA_ERROR_INVALID_VALUE;
    return c.refuse_unmodelled("a launch from the device");
  }
  // With memory nodes there is one executable graph at a time; the code is an H100's, driver 580.
  if (graph->has_memory_nodes() && !graph->exec.expired()) return CUDA_ERROR_NOT_SUPPORTED;
  CUSIM_TRY(c.sim.forbid_while_capturing());
  auto exec = std::make_shared<GraphExec>();
  exec->objects = graph->objects;
  exec->nodes = graph->nodes;
  exec->flags = flags;
  graph->exec = exec;
  const std::uint64_t handle = c.sim.new_handle();
  c.sim.graph_execs.emplace(handle, std::move(exec));
  *out = reinterpret_cast<CUgraphExec>(handle);
  return CUDA_SUCCESS;
}

CUresult find_exec(Call& c, CUgraphExec handle, std::shared_ptr<GraphExec>* out) {
  const auto found = c.sim.graph_execs.find(as_number(handle));
  if (found == c.sim.graph_execs.end()) return CUDA_ERROR_INVALID_VALUE;
  *out = found->second;
  return CUDA_SUCCESS;
}

/// Whether every memory node may run now, in their order; gives them bytes.
CUresult admit_memory(Call& c, const GraphExec& exec) {
  std::set<const GraphMemory*> live;
  for (const auto& memory : c.sim.graph_memory) {
    if (memory->live) live.insert(memory.get());
  }
  for (const Node& node : exec.nodes) {
    const GraphMemory* memory = node.allocates != nullptr ? node.allocates.get() : node.frees.get();
    if (memory == nullptr) continue;
    if (memory->context == nullptr) {
      c.sim.violate(c.name() + " of a graph whose memory belongs to a context that has ended");
      return CUDA_ERROR_INVALID_VALUE;
    }
    if (node.allocates != nullptr) {
      // Still live from an earlier launch.
      if (!live.insert(memory).second && (exec.flags & kAutoFree) == 0) return CUDA_ERROR_INVALID_VALUE;
    } else if (live.erase(memory) == 0) {
      c.sim.violate(c.name() + " of a graph that frees graph memory which is not live");
      return CUDA_ERROR_INVALID_VALUE;
    }
  }
  for (const Node& node : exec.nodes) {
    if (node.allocates != nullptr && !c.sim.back_graph_memory(*node.allocates)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult launch_into_capture(Call& c, const GraphExec& exec, Stream& stream) {
  for (const Node& node : exec.nodes) {
    if (node.allocates != nullptr || node.frees != nullptr) {
      return c.refuse_unmodelled("a captured launch of a graph with memory nodes");
    }
  }
  for (const Node& node : exec.nodes) CUSIM_TRY(c.sim.enqueue(stream, node.work, c.lock));
  return CUDA_SUCCESS;
}

CUresult launch(Call& c, CUgraphExec exec_handle, CUstream stream_handle) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(stream_handle, &stream));
  std::shared_ptr<GraphExec> exec;
  CUSIM_TRY(find_exec(c, exec_handle, &exec));
  if (stream->capture != nullptr) return launch_into_capture(c, *exec, *stream);
  if (stream->legacy) CUSIM_TRY(c.sim.forbid_implicit(*stream->context));
  CUSIM_TRY(admit_memory(c, *exec));
  for (const Node& node : exec->nodes) {
    if (node.allocates != nullptr && node.allocates->live) free_graph_memory(c, node.allocates, *stream);
  }
  // Also after the previous launch of the same executable graph, whatever stream that was in. The host's view first: the
  // submission may give up the lock.
  for (const Node& node : exec->nodes) {
    if (node.allocates != nullptr) node.allocates->live = true;
    if (node.frees != nullptr) node.frees->live = false;
  }
  for (const Node& node : exec->nodes) {
    std::vector<OperationPtr> before = c.sim.stream_predecessors(*stream);
    before.push_back(exec->last);
    if (node.allocates != nullptr) before.push_back(node.allocates->freed);
    const OperationPtr done = c.sim.submit(*stream->context, node.work, std::move(before), c.lock, &stream->tail);
    if (node.frees != nullptr) node.frees->freed = done;
    exec->last = done;
  }
  if (!exec->objects.empty()) {  // until the launch is over, also when the graph is destroyed before
    Work held;
    held.action = [objects = exec->objects]() mutable { objects.clear(); };
    exec->last = c.sim.submit(*stream->context, held, {exec->last}, c.lock, &stream->tail);
  }
  for (const Node& node : exec->nodes) {
    if (node.allocates != nullptr) node.allocates->last_use = exec->last;
    if (node.frees != nullptr) node.frees->last_use = exec->last;
  }
  return CUDA_SUCCESS;
}

CUresult upload(Call& c, CUgraphExec exec_handle, CUstream stream_handle) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(stream_handle, &stream));
  std::shared_ptr<GraphExec> exec;
  CUSIM_TRY(find_exec(c, exec_handle, &exec));
  CUSIM_TRY(c.sim.forbid_while_capturing());  // [?]
  for (const Node& node : exec->nodes) {
    if (node.allocates != nullptr && !c.sim.back_graph_memory(*node.allocates)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  return CUDA_SUCCESS;
}

CUresult instantiate_with(Call& c, CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters, bool per_thread_stream) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  constexpr cuuint64_t kUpload = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
  parameters->hErrNode_out = nullptr;
  parameters->result_out = CUDA_GRAPH_INSTANTIATE_ERROR;
  CUSIM_TRY(instantiate(c, out, graph, parameters->flags & ~kUpload));
  if ((parameters->flags & kUpload) != 0) {
    const CUstream stream = parameters->hUploadStream;
    if (const CUresult code = upload(c, *out, per_thread_stream ? per_thread(stream) : stream); code != CUDA_SUCCESS) {
      c.sim.graph_execs.erase(as_number(*out));
      return code;
    }
  }
  parameters->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
  return CUDA_SUCCESS;
}

template <class Map> CUresult destroy(Symbol symbol, Map Simulator::*map, const void* handle) {
  return call(symbol, [&](Call& c) -> CUresult {
    if ((c.sim.*map).erase(as_number(handle)) == 0) {
      c.sim.violate(c.name() + " of a graph that is destroyed or unknown");
      return CUDA_ERROR_INVALID_VALUE;
    }
    c.sim.sweep_graph_memory();
    return CUDA_SUCCESS;
  });
}

CUresult legacy_instantiate(Symbol symbol, CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log, std::size_t log_bytes) {
  if (error_node != nullptr) *error_node = nullptr;
  if (log != nullptr && log_bytes > 0) *log = '\0';
  return call(symbol, [&](Call& c) { return instantiate(c, out, graph, 0); });
}

CUresult get_nodes(Call& c, CUgraph graph_handle, CUgraphNode* nodes, std::size_t* count, bool roots_only) {
  if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<Graph> graph;
  CUSIM_TRY(find_graph(c, graph_handle, &graph));
  std::vector<CUgraphNode> found;
  for (const Node& node : graph->nodes) {
    if (!roots_only || node.predecessors.empty()) found.push_back(as_node(node));
  }
  if (nodes != nullptr) {
    for (std::size_t i = 0; i < *count; ++i) nodes[i] = i < found.size() ? found[i] : nullptr;
    *count = std::min(*count, found.size());
  } else {
    *count = found.size();
  }
  return CUDA_SUCCESS;
}

}  // namespace

namespace cusim {

CUresult find_graph(Call& c, CUgraph handle, std::shared_ptr<Graph>* out) {
  const auto found = c.sim.graphs.find(as_number(handle));
  if (found == c.sim.graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  *out = found->second;
  return CUDA_SUCCESS;
}

const Node* find_node(Call& c, CUgraphNode handle) {
  for (const auto& [graph_handle, graph] : c.sim.graphs) {
    for (const Node& node : graph->nodes) {
      if (as_node(node) == handle) return &node;
    }
  }
  return nullptr;
}

}  // namespace cusim

extern "C" {

CUresult cuGraphCreate(CUgraph* out, unsigned flags) {
  return call(Symbol::cuGraphCreate, [&](Call& c) -> CUresult {
    if (out == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    auto graph = std::make_shared<Graph>();
    graph->id = c.sim.next_id();
    const std::uint64_t handle = c.sim.new_handle();
    c.sim.graphs.emplace(handle, std::move(graph));
    *out = reinterpret_cast<CUgraph>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphClone(CUgraph* out, CUgraph original_handle) {
  return call(Symbol::cuGraphClone, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Graph> original;
    CUSIM_TRY(find_graph(c, original_handle, &original));
    if (original->has_memory_nodes()) return CUDA_ERROR_NOT_SUPPORTED;  // as an H100 answers, driver 580
    auto clone = std::make_shared<Graph>();
    clone->id = c.sim.next_id();
    clone->nodes = original->nodes;
    clone->objects = original->objects;
    for (Node& node : clone->nodes) node.handle = c.sim.new_handle();
    const std::uint64_t handle = c.sim.new_handle();
    c.sim.graphs.emplace(handle, std::move(clone));
    *out = reinterpret_cast<CUgraph>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec* out, CUgraph graph, unsigned long long flags) {
  return call(Symbol::cuGraphInstantiateWithFlags, [&](Call& c) { return instantiate(c, out, graph, flags); });
}
CUresult cuGraphInstantiateWithParams(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return call(Symbol::cuGraphInstantiateWithParams, [&](Call& c) { return instantiate_with(c, out, graph, parameters, false); });
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec* out, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
  return call(Symbol::cuGraphInstantiateWithParams_ptsz, [&](Call& c) { return instantiate_with(c, out, graph, parameters, true); });
}
CUresult cuGraphInstantiate(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  return legacy_instantiate(Symbol::cuGraphInstantiate, out, graph, error_node, log, log_bytes);
}
CUresult cuGraphInstantiate_v2(CUgraphExec* out, CUgraph graph, CUgraphNode* error_node, char* log, size_t log_bytes) {
  return legacy_instantiate(Symbol::cuGraphInstantiate_v2, out, graph, error_node, log, log_bytes);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  return call(Symbol::cuGraphLaunch, [&](Call& c) { return launch(c, exec, stream); });
}
CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) {
  return call(Symbol::cuGraphLaunch_ptsz, [&](Call& c) { return launch(c, exec, per_thread(stream)); });
}
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
  return call(Symbol::cuGraphUpload, [&](Call& c) { return upload(c, exec, stream); });
}
CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) {
  return call(Symbol::cuGraphUpload_ptsz, [&](Call& c) { return upload(c, exec, per_thread(stream)); });
}

CUresult cuGraphExecDestroy(CUgraphExec exec) { return destroy(Symbol::cuGraphExecDestroy, &Simulator::graph_execs, exec); }
CUresult cuGraphDestroy(CUgraph graph) { return destroy(Symbol::cuGraphDestroy, &Simulator::graphs, graph); }

CUresult cuGraphExecGetFlags(CUgraphExec handle, cuuint64_t* out) {
  return call(Symbol::cuGraphExecGetFlags, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<GraphExec> exec;
    CUSIM_TRY(find_exec(c, handle, &exec));
    *out = exec->flags;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return call(Symbol::cuGraphGetNodes, [&](Call& c) { return get_nodes(c, graph, nodes, count, false); });
}
CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
  return call(Symbol::cuGraphGetRootNodes, [&](Call& c) { return get_nodes(c, graph, nodes, count, true); });
}
CUresult cuGraphNodeGetType(CUgraphNode handle, CUgraphNodeType* out) {
  return call(Symbol::cuGraphNodeGetType, [&](Call& c) -> CUresult {
    const Node* node = find_node(c, handle);
    if (out == nullptr || node == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = node->work.node_type;
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
