// Events, of streams and of whole contexts. A query never completes work.
#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

CUresult record(Call& c, CUevent handle, CUstream stream_handle, unsigned flags) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(stream_handle, &stream));
  Event* event = c.sim.find_event(handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  return c.sim.record_in_stream(*event, *stream, c.lock);
}

CUresult destroy(Call& c, CUevent handle) {
  if (c.sim.find_event(handle) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  c.sim.events.erase(as_number(handle));
  c.sim.given_back_events.push_back(as_number(handle));
  return CUDA_SUCCESS;
}

bool is_captured(const Event& event) { return event.capture != nullptr && event.capture->origin != nullptr; }

/// As an H100 tells them apart (driver 580): its context is a primary one that was reset and that nobody has retained again.
bool is_of_dead_primary(const Simulator& sim, CUevent handle) {
  const auto found = sim.events_of_primaries.find(as_number(handle));
  return found != sim.events_of_primaries.end() && !found->second->alive;
}

/// Of an event that was done before the fork the child is told so, and of nothing else anything (an H100, driver 580).
bool is_done_in_child(CUevent handle) {
  Simulator& sim = Simulator::instance();
  if (!sim.forked || sim.deinitialised) return false;
  const Lock lock(sim.mutex);
  const auto found = sim.events.find(as_number(handle));
  return found != sim.events.end() && !is_captured(*found->second) && found->second->complete();
}

CUresult elapsed(Call& c, float* milliseconds, CUevent start_handle, CUevent end_handle) {
  const Event* start = c.sim.find_event(start_handle);
  const Event* end = c.sim.find_event(end_handle);
  if (start == nullptr || end == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (is_captured(*start) || is_captured(*end)) return CUDA_ERROR_CAPTURED_EVENT;
  if (start->stamp == nullptr || end->stamp == nullptr) return CUDA_ERROR_INVALID_HANDLE;  // not recorded, or no timing
  if (!start->complete() || !end->complete()) return CUDA_ERROR_NOT_READY;
  const double nanoseconds = static_cast<double>(*end->stamp) - static_cast<double>(*start->stamp);
  *milliseconds = static_cast<float>(nanoseconds / 1e6);
  return CUDA_SUCCESS;
}

}  // namespace

extern "C" {

CUresult cuEventCreate(CUevent* out, unsigned flags) {
  return call(Symbol::cuEventCreate, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.current(&context));
    constexpr unsigned kKnown = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (out == nullptr || (flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) != 0 && (flags & CU_EVENT_DISABLE_TIMING) == 0) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    auto event = std::make_unique<Event>();
    event->handle = c.sim.take_handle(c.sim.given_back_events);
    event->context = context;
    event->flags = flags;
    *out = reinterpret_cast<CUevent>(event->handle);
    c.sim.events.emplace(event->handle, std::move(event));
    return CUDA_SUCCESS;
  });
}

CUresult cuEventDestroy(CUevent event) {
  return call(Symbol::cuEventDestroy, [&](Call& c) { return destroy(c, event); });
}
CUresult cuEventDestroy_v2(CUevent event) {
  return call(Symbol::cuEventDestroy_v2, [&](Call& c) { return destroy(c, event); });
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  return call(Symbol::cuEventRecord, [&](Call& c) { return record(c, event, stream, 0); });
}
CUresult cuEventRecord_ptsz(CUevent event, CUstream stream) {
  return call(Symbol::cuEventRecord_ptsz, [&](Call& c) { return record(c, event, per_thread(stream), 0); });
}
CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
  return call(Symbol::cuEventRecordWithFlags, [&](Call& c) { return record(c, event, stream, flags); });
}
CUresult cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream, unsigned flags) {
  return call(Symbol::cuEventRecordWithFlags_ptsz, [&](Call& c) { return record(c, event, per_thread(stream), flags); });
}

CUresult cuEventQuery(CUevent handle) {
  const CUresult code = call(Symbol::cuEventQuery, [&](Call& c) -> CUresult {
    const Event* event = c.sim.find_event(handle);
    if (event == nullptr) return is_of_dead_primary(c.sim, handle) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_HANDLE;
    if (is_captured(*event)) {
      event->capture->invalidated = true;  // conflicts with the capture in any mode
      return CUDA_ERROR_CAPTURED_EVENT;
    }
    CUSIM_TRY(c.sim.forbid_while_capturing());
    if (event->context->broken != CUDA_SUCCESS) return event->context->broken;
    return event->complete() ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
  });
  return code == CUDA_ERROR_NOT_INITIALIZED && is_done_in_child(handle) ? CUDA_SUCCESS : code;
}

CUresult cuEventSynchronize(CUevent handle) {
  return call(Symbol::cuEventSynchronize, [&](Call& c) -> CUresult {
    const Event* event = c.sim.find_event(handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (is_captured(*event)) {
      event->capture->invalidated = true;
      return CUDA_ERROR_CAPTURED_EVENT;
    }
    CUSIM_TRY(c.sim.forbid_while_capturing());
    Context* context = event->context;
    const OperationPtr operation = event->operation;
    c.sim.timeline.wait(operation, c.lock);
    return context->broken;
  });
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
  return call(Symbol::cuEventElapsedTime, [&](Call& c) { return elapsed(c, milliseconds, start, end); });
}
CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent start, CUevent end) {
  return call(Symbol::cuEventElapsedTime_v2, [&](Call& c) { return elapsed(c, milliseconds, start, end); });
}

CUresult cuCtxRecordEvent(CUcontext handle, CUevent event_handle) {
  return call(Symbol::cuCtxRecordEvent, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.named_or_current(handle, &context));
    if (context->broken != CUDA_SUCCESS) return context->broken;
    Event* event = c.sim.find_event(event_handle);
    if (event == nullptr || event->context->memory_owner() != context->memory_owner()) return CUDA_ERROR_INVALID_HANDLE;
    CUSIM_TRY(c.sim.conflict_with_captures(*context));
    event->operation = c.sim.context_marker(*context, c.lock);
    event->capture = nullptr;
    event->recorded = true;
    if ((event->flags & CU_EVENT_DISABLE_TIMING) == 0 && event->complete()) {
      event->stamp = std::make_shared<std::uint64_t>(c.sim.timeline.now_ns());
    }
    return CUDA_SUCCESS;
  });
}

CUresult cuCtxWaitEvent(CUcontext handle, CUevent event_handle) {
  return call(Symbol::cuCtxWaitEvent, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    CUSIM_TRY(c.named_or_current(handle, &context));
    if (context->broken != CUDA_SUCCESS) return context->broken;
    Event* event = c.sim.find_event(event_handle);
    if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    if (is_captured(*event)) {
      event->capture->invalidated = true;
      return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    CUSIM_TRY(c.sim.conflict_with_captures(*context));
    if (event->complete()) return CUDA_SUCCESS;
    context->gate = c.sim.submit(*context, Work{}, {context->gate, event->operation}, c.lock);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
