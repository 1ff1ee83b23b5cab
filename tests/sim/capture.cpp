// The rules of stream capture (cuThreadExchangeStreamCaptureMode, cuStreamBeginCapture): which calls a capture
// forbids, and how it dies. Source: CUDA Driver API 13.0, "Stream Management".
#include "tests/sim/call.hpp"

namespace cusim {

CUresult Simulator::forbid_while_capturing() {
  if (captures.empty()) return CUDA_SUCCESS;
  const ThreadState& self = thread();
  if (self.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_SUCCESS;
  bool is_forbidden = false;
  for (const auto& capture : captures) {
    const bool own = capture->thread == &self && capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    const bool global = capture->mode == CU_STREAM_CAPTURE_MODE_GLOBAL && self.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
    if (!own && !global) continue;
    capture->invalidated = true;
    is_forbidden = true;
  }
  return is_forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult Simulator::conflict_with_captures(Context& context) {
  bool is_forbidden = false;
  for (const auto& capture : captures) {
    bool touches = false;
    for (const Stream* stream : capture->streams) {
      touches = touches || stream->context == &context || stream->context->parent == &context;
    }
    if (!touches) continue;
    capture->invalidated = true;
    is_forbidden = true;
  }
  return is_forbidden ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

CUresult Simulator::forbid_implicit(Context& context) {
  bool is_forbidden = false;
  for (const auto& capture : captures) {
    // A relaxed capture is not protected from the legacy stream, but the dependency would still be uncapturable.
    for (const Stream* stream : capture->streams) {
      if (stream->context != &context || !stream->blocking()) continue;
      capture->invalidated = true;
      is_forbidden = true;
    }
  }
  return is_forbidden ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_SUCCESS;
}

void Simulator::forget_capture(std::shared_ptr<Capture> capture) {
  for (Stream* stream : capture->streams) {
    stream->capture = nullptr;
    stream->capture_frontier.clear();
  }
  capture->streams.clear();
  capture->origin = nullptr;
  std::erase(captures, capture);
}

}  // namespace cusim
