// Captures and graphs. Nothing that this program does invalidates a capture; so a capture that is invalid is somebody else's doing.
#include <algorithm>

#include "cusim.h"
#include "interleave.hpp"
#include "program.hpp"

namespace explorer {

bool Program::begin(const Op& op) {
  const View on = view(op.args[0], op);
  if (op.args[1] >= kCaptures || captures_[op.args[1]].live || !on.usable || on.legacy || on.capture >= 0) return false;
  Capture& capture = captures_[op.args[1]];
  enter(on.context, op.thread);
  Capture fresh;
  fresh.live = true;
  fresh.mode = static_cast<CUstreamCaptureMode>(op.args[2] % 3);
  fresh.thread = op.thread;
  fresh.context = on.context;
  fresh.origin = op.args[0];
  must(cuEventCreate(&fresh.event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
  // Known before it begins: what others do meanwhile must be legal on both sides of that moment.
  capture = fresh;
  const int index = static_cast<int>(op.args[1]);
  if (op.args[0] < kStreams) streams_[op.args[0]].capture = index;
  else contexts_[on.context].threads_own[op.thread].capture = index;
  must(interruptible([&] { return cuStreamBeginCapture(on.handle, fresh.mode); }), "cuStreamBeginCapture");
  say("cuStreamBeginCapture(s%u, %d)", op.args[0], fresh.mode);
  return true;
}

/// A thread's own stream can be named by that thread only.
bool Program::may_name_origin(const Capture& capture, const Op& op) const {
  return capture.live && (capture.origin < kStreams || capture.thread == op.thread);
}

bool Program::fork(const Op& op) {
  if (op.args[0] >= kCaptures || op.args[1] >= kStreams || !may_name_origin(captures_[op.args[0]], op)) return false;
  Capture& capture = captures_[op.args[0]];
  Stream& stream = streams_[op.args[1]];
  if (!stream.live || stream.capture >= 0 || contexts_[stream.context].owner != contexts_[capture.context].owner) return false;
  Op named = op;
  named.context = static_cast<std::uint8_t>(capture.context);
  const View origin = view(capture.origin, named);
  enter(capture.context, op.thread);
  must(cuEventRecord(capture.event, origin.handle), "cuEventRecord");
  must(cuStreamWaitEvent(stream.handle, capture.event, 0), "cuStreamWaitEvent");
  ++totals_.own_records;
  say("fork: s%u joins the capture of s%u", op.args[1], capture.origin);
  stream.capture = static_cast<int>(op.args[0]);
  capture.forked.push_back(op.args[1]);
  return true;
}

/// A kernel in a stream that captures: when the graph runs, it touches the block.
bool Program::capture_touch(const View& on, std::size_t slot, bool writes, std::uint8_t value, std::uint32_t duration_ns) {
  Capture& capture = captures_[static_cast<std::size_t>(on.capture)];
  const Block& block = blocks_[slot];
  if (!may_touch(on, block) || capture.nodes.size() > 30) return false;
  const auto [user, is_first] = capture.users.emplace(slot, on.timeline);
  if (!is_first && user->second != on.timeline) return false;
  for (const Node& node : capture.nodes) {
    if (node.block != slot) continue;
    if (node.generation != block.generation) return false;  // it was freed meanwhile: such a graph is never launched
    if (!writes) value = node.value;
  }
  enter(on.context, actor_);
  say("captured %s<<<%u ns>>>(b%zu, 0x%02x)", writes ? "fill" : "check", duration_ns, slot, value);
  touch_block(on, block, writes, value, duration_ns);
  capture.nodes.push_back({slot, block.generation, writes, value});
  return true;
}

bool Program::graph_memory(const Op& op) {
  if (op.args[0] >= kCaptures || op.args[1] == 0 || !may_name_origin(captures_[op.args[0]], op)) return false;
  Capture& capture = captures_[op.args[0]];
  Op named = op;
  named.context = static_cast<std::uint8_t>(capture.context);
  const View origin = view(capture.origin, named);
  enter(capture.context, op.thread);
  CUdeviceptr address = 0;
  say("graph memory of %u bytes in s%u", op.args[1], capture.origin);
  if (!must(cuMemAllocAsync(&address, op.args[1], origin.handle), "cuMemAllocAsync in a capture")) return true;
  const auto value = static_cast<std::uint8_t>(op.args[2] % 255 + 1);
  const std::size_t bytes = std::min<std::size_t>(op.args[1], 4096);
  must(cusim_launch_fill(origin.handle, address, bytes, value, op.args[2]), "the launch of a fill");
  must(cusim_launch_check(origin.handle, address, bytes, value, op.args[2]), "the launch of a check");
  must(cuMemFreeAsync(address, origin.handle), "cuMemFreeAsync in a capture");
  capture.has_memory = true;
  return true;
}

bool Program::end(const Op& op) {
  if (op.args[0] >= kCaptures || op.args[1] >= kGraphs || !may_name_origin(captures_[op.args[0]], op)) return false;
  const Capture& capture = captures_[op.args[0]];
  if (capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED && capture.thread != op.thread) return false;
  return end_capture(op.args[0], op.args[1], op);
}

/// Joins what was forked, ends the capture and makes it a graph in `graph_slot` (none if that is taken).
bool Program::end_capture(std::size_t slot, std::size_t graph_slot, const Op& op) {
  Capture& capture = captures_[slot];
  Op named = op;
  named.context = static_cast<std::uint8_t>(capture.context);
  const View origin = view(capture.origin, named);
  enter(capture.context, op.thread);
  for (const std::size_t forked : capture.forked) {
    must(cuEventRecord(capture.event, streams_[forked].handle), "cuEventRecord");
    must(cuStreamWaitEvent(origin.handle, capture.event, 0), "cuStreamWaitEvent");
    ++totals_.own_records;
  }
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  must(cuStreamIsCapturing(origin.handle, &status), "cuStreamIsCapturing");
  if (status != CU_STREAM_CAPTURE_STATUS_ACTIVE) hit("a capture has status " + std::to_string(status) + " before its end");
  CUgraph made = nullptr;
  const CUresult result = interruptible([&] { return cuStreamEndCapture(origin.handle, &made); });
  say("cuStreamEndCapture(s%u) = %d", capture.origin, result);
  must(result, "cuStreamEndCapture");
  for (const std::size_t forked : capture.forked) streams_[forked].capture = -1;
  must(cuEventDestroy(capture.event), "cuEventDestroy");
  if (capture.origin < kStreams) streams_[capture.origin].capture = -1;
  else contexts_[capture.context].threads_own[op.thread].capture = -1;
  Graph graph{nullptr, contexts_[capture.context].owner, capture.has_memory, capture.nodes, 0};
  capture = Capture{};
  if (result != CUDA_SUCCESS) return true;
  if (graph_slot < kGraphs && graphs_[graph_slot].handle == nullptr && may_call_unsafe(op.thread)) {
    must(cuGraphInstantiateWithFlags(&graph.handle, made, 0), "cuGraphInstantiateWithFlags");
    graphs_[graph_slot] = graph;
  }
  must(cuGraphDestroy(made), "cuGraphDestroy");
  return true;
}

/// Its blocks live, and hold what its checks expect.
bool Program::is_replayable(const Graph& graph) const {
  std::map<std::size_t, std::uint8_t> values;
  for (const Node& node : graph.nodes) {
    const Block& block = blocks_[node.block];
    if (!block.live || block.generation != node.generation) return false;
    const auto known = values.emplace(node.block, block.value).first;
    if (!node.writes && (known->second != node.value || (!block.written && block.value == 0))) return false;
    if (node.writes) known->second = node.value;
  }
  return true;
}

bool Program::launch(const Op& op) {
  const View on = view(op.args[1], op);
  if (op.args[0] >= kGraphs || graphs_[op.args[0]].handle == nullptr || !on.usable || on.capture >= 0) return false;
  Graph& graph = graphs_[op.args[0]];
  if (contexts_[on.context].owner != graph.owner || !is_replayable(graph)) return false;
  for (const Node& node : graph.nodes)
    if (!order_all(blocks_[node.block], on)) return false;
  enter(on.context, op.thread);
  const CUresult result = cuGraphLaunch(graph.handle, on.handle);
  say("cuGraphLaunch(g%u, s%u) = %d", op.args[0], op.args[1], result);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && graph.has_memory) {
    ++totals_.refused;
    return true;
  }
  if (!must(result, "cuGraphLaunch")) return true;
  const bool is_empty = graph.nodes.empty() && !graph.has_memory;  // [?] then nothing may run, and nothing waits for the legacy stream
  const Access access = is_empty ? clocks_.touch(on.timeline) : clocks_.submit(on.timeline);
  graph.held = clocks_.at(on.timeline).clock.held |= graph.held;
  for (const Node& node : graph.nodes) {
    Block& block = blocks_[node.block];
    block.write = access;  // for a check as well: stricter than need be
    block.reads.clear();
    if (!node.writes) continue;
    block.written = true;
    block.value = node.value;
  }
  return true;
}

void Program::destroy_graph(Graph& graph) {
  must(cuGraphExecDestroy(graph.handle), "cuGraphExecDestroy");
  graph = Graph{};
}

bool Program::graph_destroy(const Op& op) {
  if (op.args[0] >= kGraphs || graphs_[op.args[0]].handle == nullptr) return false;
  say("cuGraphExecDestroy(g%u)", op.args[0]);
  destroy_graph(graphs_[op.args[0]]);
  return true;
}

}  // namespace explorer
