// What recording an event and waiting for one mean, outside and inside of captures.
#include "tests/sim/call.hpp"

namespace cusim {

CUresult Simulator::record_in_stream(Event& event, Stream& stream, Lock& lock) {
  if (event.context->memory_owner() != stream.context->memory_owner()) return CUDA_ERROR_INVALID_HANDLE;
  if (stream.capture != nullptr) {
    if (stream.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    event.capture = stream.capture;
    event.captured_frontier = stream.capture_frontier;
    event.recorded = true;
    return CUDA_SUCCESS;
  }
  OperationPtr operation;
  Work work;
  if ((event.flags & CU_EVENT_DISABLE_TIMING) == 0) {
    auto stamp = std::make_shared<std::uint64_t>(0);
    event.stamp = stamp;
    work.action = [this, stamp] { *stamp = timeline.now_ns(); };
  }
  CUSIM_TRY(enqueue(stream, std::move(work), lock, &operation));
  event.operation = operation;
  event.capture = nullptr;
  event.recorded = true;
  return CUDA_SUCCESS;
}

/// A stream that waits for an event of a capture joins it.
CUresult Simulator::wait_in_stream(Stream& stream, Event& event, Lock& lock) {
  if (event.capture != nullptr && event.capture->origin != nullptr) {
    if (event.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream.legacy) {
      event.capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (stream.capture != nullptr && stream.capture != event.capture) {
      stream.capture->invalidated = true;
      event.capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream.capture == nullptr) {
      stream.capture = event.capture;
      event.capture->streams.push_back(&stream);
    }
    stream.capture_frontier.insert(event.captured_frontier.begin(), event.captured_frontier.end());
    return CUDA_SUCCESS;
  }
  if (stream.capture != nullptr) {
    if (stream.capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (!event.recorded) return CUDA_SUCCESS;
    // Work outside of the capture cannot be a dependency inside of it.
    stream.capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  }
  if (stream.legacy) CUSIM_TRY(forbid_implicit(*stream.context));
  if (event.complete()) return CUDA_SUCCESS;
  std::vector<OperationPtr> before = stream_predecessors(stream);
  before.push_back(event.operation);
  submit(*stream.context, Work{}, std::move(before), lock, &stream.tail);
  return CUDA_SUCCESS;
}

}  // namespace cusim
