// Memory nodes of graphs, by hand and by capture, and what the device keeps for them.
// Source: CUDA Driver API 13.0, "Graph Management"; CUDA programming guide, "Graph Memory Nodes".
#include <algorithm>
#include <cstring>

#include "tests/sim/graph_nodes.hpp"
#include "tests/sim/pool_calls.hpp"

using namespace cusim;

namespace {

Work allocation_work(const std::shared_ptr<GraphMemory>& memory) {
  Work work;
  work.node_type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
  work.action = [memory] { memory->on_device = memory->context != nullptr; };
  return work;
}

Work free_work(const std::shared_ptr<GraphMemory>& memory) {
  Work work;
  work.node_type = CU_GRAPH_NODE_TYPE_MEM_FREE;
  work.action = [memory] { memory->on_device = false; };
  return work;
}

/// Whether the allocation node of `memory` comes before a node that would depend on `frontier`.
template <class Indices> bool comes_before(const Graph& graph, const GraphMemory& memory, const Indices& frontier) {
  std::set<std::size_t> seen;
  std::vector<std::size_t> open(frontier.begin(), frontier.end());
  while (!open.empty()) {
    const std::size_t next = open.back();
    open.pop_back();
    if (graph.nodes[next].allocates.get() == &memory) return true;
    if (!seen.insert(next).second) continue;
    open.insert(open.end(), graph.nodes[next].predecessors.begin(), graph.nodes[next].predecessors.end());
  }
  return false;
}

/// The rules of cuGraphAddMemFreeNode, which a captured free follows too.
template <class Indices>
CUresult admit_free(Call& c, const Graph& graph, CUdeviceptr address, const Indices& frontier, std::shared_ptr<GraphMemory>* out) {
  const std::shared_ptr<GraphMemory> memory = c.sim.find_graph_memory(address);
  if (memory == nullptr) {
    c.sim.violate(c.name() + ": a free node of memory that no allocation node made");
    return CUDA_ERROR_INVALID_VALUE;
  }
  const bool is_owner = memory->owner == graph.id;
  const bool taken = memory->freed_by.count(graph.id) != 0 || (is_owner ? memory->freed_by_other() : memory->freed_by_owner());
  if (taken) {
    c.sim.violate(c.name() + ": graph memory that already has a free node");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (is_owner && !comes_before(graph, *memory, frontier)) {
    c.sim.violate(c.name() + ": a free node that is not ordered after the allocation node");
  }
  *out = memory;
  return CUDA_SUCCESS;
}

/// Handles of nodes of `graph` to their places in it.
CUresult resolve(const Graph& graph, const CUgraphNode* handles, std::size_t count, std::vector<std::size_t>* out) {
  if (handles == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
  for (std::size_t i = 0; i < count; ++i) {
    const auto node = std::find_if(graph.nodes.begin(), graph.nodes.end(), [&](const Node& each) { return as_node(each) == handles[i]; });
    if (node == graph.nodes.end()) return CUDA_ERROR_INVALID_VALUE;
    const auto index = static_cast<std::size_t>(node - graph.nodes.begin());
    if (std::find(out->begin(), out->end(), index) != out->end()) return CUDA_ERROR_INVALID_VALUE;
    out->push_back(index);
  }
  return CUDA_SUCCESS;
}

struct Place {
  std::shared_ptr<Graph> graph;
  std::vector<std::size_t> after;
};

CUresult find_place(Call& c, CUgraph handle, const CUgraphNode* dependencies, std::size_t count, Place* out) {
  CUSIM_TRY(find_graph(c, handle, &out->graph));
  return resolve(*out->graph, dependencies, count, &out->after);
}

CUgraphNode add(Call& c, Place& place, Work work) {
  Node node;
  node.work = std::move(work);
  node.predecessors = place.after;
  node.handle = c.sim.new_handle();
  place.graph->nodes.push_back(std::move(node));
  return as_node(place.graph->nodes.back());
}

template <class Parameters> CUresult add_allocation(Call& c, CUgraphNode* out, Place& place, Parameters* wanted) {
  if (out == nullptr || wanted == nullptr || wanted->bytesize == 0) return CUDA_ERROR_INVALID_VALUE;
  PoolPlace kind;
  CUSIM_TRY(check_pool_properties(c, wanted->poolProps, &kind));
  if (kind.is_of_host()) return c.refuse_unmodelled("an allocation node of the host, or of managed memory");
  if (wanted->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_INVALID_VALUE;
  if (wanted->accessDescCount > c.sim.devices.size()) return CUDA_ERROR_INVALID_VALUE;
  if (wanted->accessDescs == nullptr && wanted->accessDescCount != 0) return CUDA_ERROR_INVALID_VALUE;
  const int ordinal = kind.id;
  Device& device = *c.sim.devices[static_cast<std::size_t>(ordinal)];
  for (std::size_t i = 0; i < wanted->accessDescCount; ++i) {
    Device* peer = nullptr;
    if (wanted->accessDescs[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    CUSIM_TRY(c.device(wanted->accessDescs[i].location.id, &peer));
  }
  // With which context it ends; a pointer to it names none.
  Context* current = c.thread.stack.empty() ? nullptr : c.thread.stack.back();
  if (current == nullptr || !current->alive || current->device != ordinal) current = device.primary;
  const auto memory = c.sim.create_graph_memory(*current, ordinal, wanted->bytesize);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->properties = wanted->poolProps;
  for (std::size_t i = 0; i < wanted->accessDescCount; ++i) {
    memory->descriptors.push_back(wanted->accessDescs[i]);
    memory->access[wanted->accessDescs[i].location.id] = wanted->accessDescs[i].flags;
  }
  memory->owner = place.graph->id;
  *out = add(c, place, allocation_work(memory));
  place.graph->nodes.back().allocates = memory;
  wanted->dptr = memory->base;
  return CUDA_SUCCESS;
}

CUresult add_free(Call& c, CUgraphNode* out, Place& place, CUdeviceptr address) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  std::shared_ptr<GraphMemory> memory;
  CUSIM_TRY(admit_free(c, *place.graph, address, place.after, &memory));
  memory->freed_by.insert(place.graph->id);
  *out = add(c, place, free_work(memory));
  place.graph->nodes.back().frees = memory;
  return CUDA_SUCCESS;
}

CUresult add_empty(Call& c, CUgraphNode* out, Place& place) {
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.node_type = CU_GRAPH_NODE_TYPE_EMPTY;
  *out = add(c, place, std::move(work));
  return CUDA_SUCCESS;
}

CUresult add_node(Call& c, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, std::size_t count, CUgraphNodeParams* parameters) {
  if (parameters == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Place place;
  CUSIM_TRY(find_place(c, graph, dependencies, count, &place));
  switch (parameters->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return add_allocation(c, out, place, &parameters->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return add_free(c, out, place, parameters->free.dptr);
    case CU_GRAPH_NODE_TYPE_EMPTY: return add_empty(c, out, place);
    default: return c.refuse_unmodelled("a node that is not of memory");
  }
}

CUresult add_node(Call& c, CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, std::size_t count,
                  CUgraphNodeParams* parameters) {
  const CUgraphEdgeData plain{};
  for (std::size_t i = 0; edges != nullptr && i < count; ++i) {
    if (std::memcmp(&edges[i], &plain, sizeof plain) != 0) return c.refuse_unmodelled("an edge with data");
  }
  return add_node(c, out, graph, dependencies, count, parameters);
}

}  // namespace

namespace cusim {

CUresult capture_allocation(Call& c, CUdeviceptr* out, std::size_t bytes, const MemoryPool& pool, Stream& stream) {
  if (stream.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  Graph& graph = *stream.capture->graph;
  const auto memory = c.sim.create_graph_memory(*stream.context, pool.device, bytes);
  if (memory == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  memory->properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory->properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, pool.device};
  memory->access = pool.access;  // as the pool's is now
  for (const auto& [device, flags] : pool.access) {
    memory->descriptors.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, device}, flags});
  }
  memory->owner = graph.id;
  CUSIM_TRY(c.sim.enqueue(stream, allocation_work(memory), c.lock));
  graph.nodes.back().allocates = memory;
  *out = memory->base;
  return CUDA_SUCCESS;
}

CUresult capture_free(Call& c, CUdeviceptr address, Stream& stream) {
  if (stream.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  Graph& graph = *stream.capture->graph;
  std::shared_ptr<GraphMemory> memory;
  CUSIM_TRY(admit_free(c, graph, address, stream.capture_frontier, &memory));
  CUSIM_TRY(c.sim.enqueue(stream, free_work(memory), c.lock));
  memory->freed_by.insert(graph.id);
  graph.nodes.back().frees = memory;
  return CUDA_SUCCESS;
}

CUresult may_free_outside(Call& c, const GraphMemory& memory) {
  if (memory.freed_by_owner()) {
    c.sim.violate(c.name() + " of graph memory that its own graph frees");
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (!memory.live) {
    c.sim.violate(c.name() + " of graph memory that is not live (double free, or no launch yet?)");
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

void free_graph_memory(Call& c, const std::shared_ptr<GraphMemory>& memory, Stream& stream) {
  memory->live = false;
  std::vector<OperationPtr> before = c.sim.stream_predecessors(stream);
  const OperationPtr freed = c.sim.submit(*stream.context, free_work(memory), std::move(before), c.lock, &stream.tail);
  memory->freed = freed;
}

}  // namespace cusim

extern "C" {

CUresult cuGraphAddMemAllocNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS* parameters) {
  return call(Symbol::cuGraphAddMemAllocNode, [&](Call& c) -> CUresult {
    Place place;
    CUSIM_TRY(find_place(c, graph, dependencies, count, &place));
    return add_allocation(c, out, place, parameters);
  });
}

CUresult cuGraphAddMemFreeNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count, CUdeviceptr address) {
  return call(Symbol::cuGraphAddMemFreeNode, [&](Call& c) -> CUresult {
    Place place;
    CUSIM_TRY(find_place(c, graph, dependencies, count, &place));
    return add_free(c, out, place, address);
  });
}

CUresult cuGraphAddEmptyNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count) {
  return call(Symbol::cuGraphAddEmptyNode, [&](Call& c) -> CUresult {
    Place place;
    CUSIM_TRY(find_place(c, graph, dependencies, count, &place));
    return add_empty(c, out, place);
  });
}

CUresult cuGraphAddNode(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, size_t count, CUgraphNodeParams* parameters) {
  return call(Symbol::cuGraphAddNode, [&](Call& c) { return add_node(c, out, graph, dependencies, count, parameters); });
}

CUresult cuGraphAddNode_v2(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
                           CUgraphNodeParams* parameters) {
  return call(Symbol::cuGraphAddNode_v2, [&](Call& c) { return add_node(c, out, graph, dependencies, edges, count, parameters); });
}
CUresult cuGraphAddNode_v3(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
                           CUgraphNodeParams* parameters) {
  return call(Symbol::cuGraphAddNode_v3, [&](Call& c) { return add_node(c, out, graph, dependencies, edges, count, parameters); });
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode handle, CUDA_MEM_ALLOC_NODE_PARAMS* out) {
  return call(Symbol::cuGraphMemAllocNodeGetParams, [&](Call& c) -> CUresult {
    const Node* node = find_node(c, handle);
    if (out == nullptr || node == nullptr || node->allocates == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const GraphMemory& memory = *node->allocates;
    *out = {};
    out->poolProps = memory.properties;
    out->accessDescs = memory.descriptors.empty() ? nullptr : memory.descriptors.data();
    out->accessDescCount = memory.descriptors.size();
    out->bytesize = memory.bytes;
    out->dptr = memory.base;
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode handle, CUdeviceptr* out) {
  return call(Symbol::cuGraphMemFreeNodeGetParams, [&](Call& c) -> CUresult {
    const Node* node = find_node(c, handle);
    if (out == nullptr || node == nullptr || node->frees == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = node->frees->base;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGraphMemTrim(CUdevice ordinal) {
  return call(Symbol::cuDeviceGraphMemTrim, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    c.sim.trim_graph_memory(ordinal);  // during a capture too, as an H100 does (driver 580)
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void* out) {
  return call(Symbol::cuDeviceGetGraphMemAttribute, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    c.sim.sweep_graph_memory();
    cuuint64_t value = 0;
    switch (attribute) {
      case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: value = c.sim.graph_bytes_in_use(ordinal); break;
      case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: value = device->graph_pool.used_high; break;
      case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: value = device->graph_pool.reserved; break;
      case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: value = device->graph_pool.reserved_high; break;
      default: return CUDA_ERROR_INVALID_VALUE;
    }
    std::memcpy(out, &value, sizeof value);
    return CUDA_SUCCESS;
  });
}

/// The high-water marks can be reset to zero (they then start from what is current: an H100, driver 580), and to nothing else.
CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute, void* value) {
  return call(Symbol::cuDeviceSetGraphMemAttribute, [&](Call& c) -> CUresult {
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    cuuint64_t wanted = 1;
    if (value != nullptr) std::memcpy(&wanted, value, sizeof wanted);
    if (wanted != 0) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) {
      device->graph_pool.used_high = c.sim.graph_bytes_in_use(ordinal);
    } else if (attribute == CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH) {
      device->graph_pool.reserved_high = device->graph_pool.reserved;
    } else {
      return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
