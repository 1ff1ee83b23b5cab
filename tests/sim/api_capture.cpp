// Stream capture. Source: CUDA Driver API 13.0, "Stream Management".
#include "shim/newer_api.hpp"
#include "tests/sim/graph_nodes.hpp"

using namespace cusim;

namespace {

CUresult begin(Call& c, CUstream handle, CUstreamCaptureMode mode, std::shared_ptr<Graph> graph, std::uint64_t graph_handle) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return CUDA_ERROR_ILLEGAL_STATE;
  }
  auto capture = std::make_shared<Capture>();
  capture->id = c.sim.next_id();
  capture->mode = mode;
  capture->thread = &c.thread;
  capture->origin = stream;
  capture->streams = {stream};
  capture->graph = graph != nullptr ? std::move(graph) : std::make_shared<Graph>();
  if (capture->graph->id == 0) capture->graph->id = c.sim.next_id();
  capture->graph_handle = graph_handle;
  stream->capture = capture;
  c.sim.captures.push_back(std::move(capture));
  return CUDA_SUCCESS;
}

CUresult begin_to_graph(Call& c, CUstream handle, CUgraph graph_handle, const CUgraphNode* dependencies, const CUgraphEdgeData* edges,
                        std::size_t count, CUstreamCaptureMode mode) {
  const auto found = c.sim.graphs.find(as_number(graph_handle));
  if (found == c.sim.graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  if (count != 0 || dependencies != nullptr || edges != nullptr) {
    return c.refuse_unmodelled("a dependency on existing nodes");
  }
  return begin(c, handle, mode, found->second, found->first);
}

/// The nodes are put in anew. A recapture of another shape fails at once natively, and tells a callback of other parameters: not modelled.
CUresult begin_recapture(Call& c, CUstream handle, CUstreamCaptureMode mode, CUgraph graph_handle) {
  const auto found = c.sim.graphs.find(as_number(graph_handle));
  if (found == c.sim.graphs.end()) return CUDA_ERROR_INVALID_VALUE;
  Graph& graph = *found->second;
  const std::size_t nodes = graph.nodes.size();
  CUSIM_TRY(begin(c, handle, mode, found->second, found->first));
  graph.nodes.clear();
  c.sim.captures.back()->recaptured_nodes = nodes;
  return CUDA_SUCCESS;
}

/// Every node that nothing depends on must be behind the origin stream; else a forked stream was not joined.
bool has_unjoined_work(const Capture& capture) {
  std::vector<bool> has_dependent(capture.graph->nodes.size(), false);
  for (const Node& node : capture.graph->nodes) {
    for (const std::size_t predecessor : node.predecessors) has_dependent[predecessor] = true;
  }
  for (std::size_t i = 0; i < has_dependent.size(); ++i) {
    if (!has_dependent[i] && capture.origin->capture_frontier.count(i) == 0) return true;
  }
  return false;
}

CUresult end(Call& c, CUstream handle, CUgraph* out) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  *out = nullptr;
  if (stream->capture == nullptr) return CUDA_ERROR_ILLEGAL_STATE;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture->thread != &c.thread) {
    return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
  }
  if (capture->origin != stream) {
    capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
  }
  const bool invalidated = capture->invalidated;
  if (!invalidated && capture->recaptured_nodes && *capture->recaptured_nodes != capture->graph->nodes.size()) {
    c.sim.forget_capture(capture);
    return c.refuse_unmodelled("a recapture of another shape");
  }
  const bool unjoined = !invalidated && has_unjoined_work(*capture);
  c.sim.forget_capture(capture);
  if (invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (unjoined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
  if (capture->graph_handle == 0) {
    capture->graph_handle = c.sim.new_handle();
    c.sim.graphs.emplace(capture->graph_handle, capture->graph);
  }
  *out = reinterpret_cast<CUgraph>(capture->graph_handle);
  return CUDA_SUCCESS;
}

CUstreamCaptureStatus status_of(const Stream& stream) {
  if (stream.capture == nullptr) return CU_STREAM_CAPTURE_STATUS_NONE;
  return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

/// Asking about the legacy stream while a blocking stream captures: IMPLICIT (it does not end the capture).
CUresult legacy_status(Call& c, const Stream& stream) {
  if (!stream.legacy) return CUDA_SUCCESS;
  for (const auto& capture : c.sim.captures) {
    for (const Stream* other : capture->streams) {
      if (other->context == stream.context && other->blocking()) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  }
  return CUDA_SUCCESS;
}

CUresult is_capturing(Call& c, CUstream handle, CUstreamCaptureStatus* out) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(legacy_status(c, *stream));
  *out = status_of(*stream);
  return CUDA_SUCCESS;
}

CUresult capture_info(Call& c, CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(legacy_status(c, *stream));
  *status = status_of(*stream);
  if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
  if (id != nullptr) *id = stream->capture->id;
  if (graph != nullptr) {
    Capture& capture = *stream->capture;
    if (capture.graph_handle == 0) {
      capture.graph_handle = c.sim.new_handle();
      c.sim.graphs.emplace(capture.graph_handle, capture.graph);
    }
    *graph = reinterpret_cast<CUgraph>(capture.graph_handle);
  }
  return CUDA_SUCCESS;
}

struct WantedNodes {
  const CUgraphNode** nodes = nullptr;
  const CUgraphEdgeData** edges = nullptr;
  std::size_t* count = nullptr;
};

/// With what the next captured node depends on; the lists live until the next such call for the stream.
CUresult full_info(Symbol symbol, CUstream handle, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const WantedNodes& wanted) {
  return call(symbol, [&](Call& c) -> CUresult {
    CUSIM_TRY(capture_info(c, handle, status, id, graph));
    if (*status != CU_STREAM_CAPTURE_STATUS_ACTIVE) return CUDA_SUCCESS;
    Stream* stream = nullptr;
    CUSIM_TRY(c.stream(handle, &stream));
    stream->told_nodes.clear();
    for (const std::size_t index : stream->capture_frontier) {
      stream->told_nodes.push_back(as_node(stream->capture->graph->nodes[index]));
    }
    stream->told_edges.assign(stream->told_nodes.size(), CUgraphEdgeData{});
    if (wanted.nodes != nullptr) *wanted.nodes = stream->told_nodes.data();
    if (wanted.edges != nullptr) *wanted.edges = stream->told_edges.data();
    if (wanted.count != nullptr) *wanted.count = stream->told_nodes.size();
    return CUDA_SUCCESS;
  });
}

}  // namespace

extern "C" {

CUresult cuStreamBeginCapture(CUstream stream) {
  return call(Symbol::cuStreamBeginCapture, [&](Call& c) { return begin(c, stream, CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, 0); });
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
  return call(Symbol::cuStreamBeginCapture_ptsz, [&](Call& c) { return begin(c, per_thread(stream), CU_STREAM_CAPTURE_MODE_GLOBAL, nullptr, 0); });
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
  return call(Symbol::cuStreamBeginCapture_v2, [&](Call& c) { return begin(c, stream, mode, nullptr, 0); });
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
  return call(Symbol::cuStreamBeginCapture_v2_ptsz, [&](Call& c) { return begin(c, per_thread(stream), mode, nullptr, 0); });
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
                                     CUstreamCaptureMode mode) {
  return call(Symbol::cuStreamBeginCaptureToGraph, [&](Call& c) { return begin_to_graph(c, stream, graph, dependencies, edges, count, mode); });
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
                                          CUstreamCaptureMode mode) {
  return call(Symbol::cuStreamBeginCaptureToGraph_ptsz,
              [&](Call& c) { return begin_to_graph(c, per_thread(stream), graph, dependencies, edges, count, mode); });
}
CUresult cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback, void*) {
  return call(Symbol::cuStreamBeginRecaptureToGraph, [&](Call& c) { return begin_recapture(c, stream, mode, graph); });
}
CUresult cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback, void*) {
  return call(Symbol::cuStreamBeginRecaptureToGraph_ptsz, [&](Call& c) { return begin_recapture(c, per_thread(stream), mode, graph); });
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
  return call(Symbol::cuStreamEndCapture, [&](Call& c) { return end(c, stream, graph); });
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
  return call(Symbol::cuStreamEndCapture_ptsz, [&](Call& c) { return end(c, per_thread(stream), graph); });
}
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus* status) {
  return call(Symbol::cuStreamIsCapturing, [&](Call& c) { return is_capturing(c, stream, status); });
}
CUresult cuStreamIsCapturing_ptsz(CUstream stream, CUstreamCaptureStatus* status) {
  return call(Symbol::cuStreamIsCapturing_ptsz, [&](Call& c) { return is_capturing(c, per_thread(stream), status); });
}
CUresult cuStreamGetCaptureInfo(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return call(Symbol::cuStreamGetCaptureInfo, [&](Call& c) { return capture_info(c, stream, status, id, nullptr); });
}
CUresult cuStreamGetCaptureInfo_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id) {
  return call(Symbol::cuStreamGetCaptureInfo_ptsz, [&](Call& c) { return capture_info(c, per_thread(stream), status, id, nullptr); });
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** nodes,
                                   size_t* count) {
  return full_info(Symbol::cuStreamGetCaptureInfo_v2, stream, status, id, graph, {nodes, nullptr, count});
}
CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** nodes,
                                        size_t* count) {
  return full_info(Symbol::cuStreamGetCaptureInfo_v2_ptsz, per_thread(stream), status, id, graph, {nodes, nullptr, count});
}
CUresult cuStreamGetCaptureInfo_v3(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** nodes,
                                   const CUgraphEdgeData** edges, size_t* count) {
  return full_info(Symbol::cuStreamGetCaptureInfo_v3, stream, status, id, graph, {nodes, edges, count});
}
CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph, const CUgraphNode** nodes,
                                        const CUgraphEdgeData** edges, size_t* count) {
  return full_info(Symbol::cuStreamGetCaptureInfo_v3_ptsz, per_thread(stream), status, id, graph, {nodes, edges, count});
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
  return call(Symbol::cuThreadExchangeStreamCaptureMode, [&](Call& c) -> CUresult {
    if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    std::swap(*mode, c.thread.capture_mode);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
