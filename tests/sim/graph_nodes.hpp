// What the files of graphs share: finding graphs and nodes, and memory nodes, added by hand or by a capture.
#pragma once

#include "tests/sim/call.hpp"

namespace cusim {

CUresult find_graph(Call& c, CUgraph handle, std::shared_ptr<Graph>* out);
/// The node behind a handle in any graph that is not destroyed; null for an unknown one.
const Node* find_node(Call& c, CUgraphNode handle);
inline CUgraphNode as_node(const Node& node) { return reinterpret_cast<CUgraphNode>(node.handle); }

/// An allocation or a free in a stream that captures: becomes a node. A refused free leaves the capture alive (an H100, driver 580).
CUresult capture_allocation(Call& c, CUdeviceptr* out, std::size_t bytes, const MemoryPool& pool, Stream& stream);
CUresult capture_free(Call& c, CUdeviceptr address, Stream& stream);

/// cuMemFreeAsync and cuMemFree outside of captures may free this graph memory; if not, why stands among the violations.
CUresult may_free_outside(Call& c, const GraphMemory& memory);
/// Frees it in the order of `stream`.
void free_graph_memory(Call& c, const std::shared_ptr<GraphMemory>& memory, Stream& stream);

}  // namespace cusim
