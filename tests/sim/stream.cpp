// What a stream handle means, and what new work in a stream comes after.
#include <algorithm>
#include <ctime>

#include "tests/sim/call.hpp"

namespace cusim {

CUresult Simulator::resolve_stream(CUstream handle, Stream** out) {
  if (handle != nullptr && handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
    const auto found = streams.find(as_number(handle));
    if (found == streams.end()) {
      violate(was_handle(handle) ? "a stream was used after it was destroyed" : "an unknown stream handle was used");
      return CUDA_ERROR_INVALID_HANDLE;
    }
    *out = found->second.get();
    if ((*out)->context->alive) return CUDA_SUCCESS;
    violate("a stream of a green context was used after that was destroyed");
    return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  }
  ThreadState& state = thread();
  Context* context = state.stack.empty() ? nullptr : state.stack.back();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  if (handle != CU_STREAM_PER_THREAD) {
    *out = context->legacy.get();
    return CUDA_SUCCESS;
  }
  auto& own = context->per_thread[&state];
  if (own == nullptr) {
    own = std::make_unique<Stream>();
    own->context = context;
    own->id = next_id();
  }
  *out = own.get();
  return CUDA_SUCCESS;
}

void Work::touch(CUdeviceptr address, std::size_t bytes) {
  const bool may_be_mapped = address >= kReservationArea && is_device_address(address);
  if (may_be_mapped && bytes != 0) touches.push_back({address, bytes});
}

Event* Simulator::find_event(CUevent handle) {
  const auto found = events.find(as_number(handle));
  if (found != events.end()) return found->second.get();
  if (was_handle(handle)) violate("an event was used after it was destroyed");
  return nullptr;
}

std::vector<OperationPtr> Simulator::stream_predecessors(Stream& stream) {
  Context& context = *stream.context;
  std::vector<OperationPtr> before = {stream.tail, context.gate};
  if (stream.legacy) {
    for (const Stream* other : context.streams) {
      if (other->blocking()) before.push_back(other->tail);
    }
    for (const auto& [thread, other] : context.per_thread) before.push_back(other->tail);
    before.insert(before.end(), context.orphans.begin(), context.orphans.end());
  } else if (stream.blocking()) {
    before.push_back(context.legacy->tail);
  }
  return before;
}

OperationPtr Simulator::submit(Context& context, const Work& work, std::vector<OperationPtr> predecessors, Lock& lock, OperationPtr* tail) {
  auto operation = std::make_shared<Operation>();
  operation->duration_ns = work.duration_ns;
  operation->action = work.action;
  const std::optional<std::uint64_t> stamp = work.touches.empty() ? std::nullopt : mapping_stamp(work.touches);
  if (stamp) {
    operation->action = [this, stamp, touches = work.touches, action = work.action] {
      const std::optional<std::uint64_t> now = mapping_stamp(touches);
      if (now && *now != *stamp) violate("work ran on pages that came under its addresses after it had been submitted");
      if (action) action();
    };
  }
  operation->host_flag = work.host_flag;
  operation->pending_count = &context.pending;
  if (work.host_function) {
    operation->host_function = [this, function = work.host_function] {
      ThreadState& state = thread();
      state.in_host_function = true;
      function();
      state.in_host_function = false;
    };
  }
  // Before the submission, which may give up the lock: what another thread enqueues meanwhile comes after this.
  if (tail != nullptr) *tail = operation;
  timeline.submit(operation, predecessors, lock);
  return operation;
}

CUresult Simulator::enqueue(Stream& stream, Work work, Lock& lock, OperationPtr* operation) {
  if (stream.capture != nullptr) {
    Capture& capture = *stream.capture;
    if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    Graph& graph = *capture.graph;
    Node node;
    node.work = std::move(work);
    node.predecessors = {stream.capture_frontier.begin(), stream.capture_frontier.end()};
    node.handle = new_handle();
    graph.nodes.push_back(std::move(node));
    stream.capture_frontier = {graph.nodes.size() - 1};
    if (operation != nullptr) *operation = nullptr;
    return CUDA_SUCCESS;
  }
  if (stream.legacy) CUSIM_TRY(forbid_implicit(*stream.context));
  const OperationPtr submitted = submit(*stream.context, work, stream_predecessors(stream), lock, &stream.tail);
  if (operation != nullptr) *operation = submitted;
  return CUDA_SUCCESS;
}

CUstream Simulator::create_stream(Context& context, unsigned flags, int priority) {
  auto stream = std::make_unique<Stream>();
  stream->handle = take_handle(given_back_streams);
  stream->id = next_id();
  stream->context = &context;
  stream->flags = flags;
  stream->priority = std::clamp(priority, -5, 0);
  context.streams.insert(stream.get());
  const CUstream handle = as_stream(stream->handle);
  streams.emplace(stream->handle, std::move(stream));
  return handle;
}

OperationPtr Simulator::context_marker(Context& context, Lock& lock) {
  std::vector<OperationPtr> before;
  std::size_t pending = 0;
  for (Context* member : family(context)) {
    pending += member->pending;
    before.push_back(member->gate);
    before.push_back(member->legacy->tail);
    for (const Stream* stream : member->streams) before.push_back(stream->tail);
    for (const auto& [thread, stream] : member->per_thread) before.push_back(stream->tail);
    std::erase_if(member->orphans, [](const OperationPtr& operation) { return operation->done; });
    before.insert(before.end(), member->orphans.begin(), member->orphans.end());
  }
  if (pending == 0) return nullptr;
  return submit(context, Work{}, std::move(before), lock);
}

void Simulator::wait_for_context(Context& context, Lock& lock) {
  timeline.wait(context_marker(context, lock), lock);
  if (!pools.empty()) trim_to_thresholds(context.device);
}

void run_clock(Simulator& sim, Lock& lock) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  static const std::int64_t start_s = now.tv_sec;
  const auto elapsed_s = static_cast<std::uint64_t>(now.tv_sec - start_s);
  sim.timeline.advance_to(elapsed_s * 1'000'000'000ULL + static_cast<std::uint64_t>(now.tv_nsec), lock);
}

}  // namespace cusim
