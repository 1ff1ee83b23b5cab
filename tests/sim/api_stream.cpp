// Streams: creation, order, waiting, host functions.
#include <algorithm>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

CUresult create(Call& c, CUstream* out, unsigned flags, int priority) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  if (out == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0) return CUDA_ERROR_INVALID_VALUE;
  *out = c.sim.create_stream(*context, flags, priority);
  return CUDA_SUCCESS;
}

/// Work in flight goes on after its stream is destroyed; a capture in it dies.
CUresult destroy(Call& c, CUstream handle) {
  if (handle == nullptr || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  Stream* stream = nullptr;
  CUSIM_TRY(c.sim.resolve_stream(handle, &stream));
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    if (stream->capture->origin == stream) {
      c.sim.forget_capture(stream->capture);
    } else {
      std::erase(stream->capture->streams, stream);
    }
  }
  if (stream->tail != nullptr && !stream->tail->done) {
    // The context's markers must still cover it.
    stream->context->orphans.push_back(stream->tail);
  }
  stream->context->streams.erase(stream);
  c.sim.streams.erase(as_number(handle));
  c.sim.given_back_streams.push_back(as_number(handle));
  return CUDA_SUCCESS;
}

/// What a wait for the stream covers. Waiting for the legacy stream waits for the blocking streams too; [?] whether waiting for a blocking stream
/// covers legacy work that nothing in it came after (probe `waits`): here it does not.
std::vector<OperationPtr> awaited(Call& c, Stream& stream) {
  if (stream.legacy) return c.sim.stream_predecessors(stream);
  return {stream.tail, stream.context->gate};
}

CUresult synchronize(Call& c, CUstream handle) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->legacy) CUSIM_TRY(c.sim.forbid_implicit(*stream->context));
  CUSIM_TRY(c.sim.forbid_while_capturing());
  Context* context = stream->context;
  for (const OperationPtr& operation : awaited(c, *stream)) c.sim.timeline.wait(operation, c.lock);
  c.sim.trim_to_thresholds(context->device);
  return context->broken;
}

CUresult query(Call& c, CUstream handle) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  if (stream->legacy) CUSIM_TRY(c.sim.forbid_implicit(*stream->context));
  CUSIM_TRY(c.sim.forbid_while_capturing());
  for (const OperationPtr& operation : awaited(c, *stream)) {
    if (operation != nullptr && !operation->done) return CUDA_ERROR_NOT_READY;
  }
  return CUDA_SUCCESS;
}

CUresult wait_event(Call& c, CUstream handle, CUevent event_handle, unsigned flags) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  Event* event = c.sim.find_event(event_handle);
  if (event == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if ((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
  return c.sim.wait_in_stream(*stream, *event, c.lock);
}

CUresult launch_host(Call& c, CUstream handle, CUhostFn function, void* data) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
  Work work;
  work.duration_ns = 1000;  // never inside the call that enqueues it
  work.host_function = [function, data] { function(data); };
  work.node_type = CU_GRAPH_NODE_TYPE_HOST;
  return c.sim.enqueue(*stream, std::move(work), c.lock);
}

CUresult add_callback(Call& c, CUstream handle, CUstreamCallback callback, void* data, unsigned flags) {
  Stream* stream = nullptr;
  CUSIM_TRY(c.stream(handle, &stream));
  if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  Work work;
  work.duration_ns = 1000;
  work.host_function = [handle, callback, data, context = stream->context] { callback(handle, context->broken, data); };
  return c.sim.enqueue(*stream, std::move(work), c.lock);
}

template <class Read> CUresult inspect(Symbol symbol, CUstream handle, const void* out, Read&& read) {
  return call(symbol, [&](Call& c) -> CUresult {
    Stream* stream = nullptr;
    CUSIM_TRY(c.sim.resolve_stream(handle, &stream));
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    read(*stream);
    return CUDA_SUCCESS;
  });
}

}  // namespace

extern "C" {

CUresult cuStreamCreate(CUstream* out, unsigned flags) {
  return call(Symbol::cuStreamCreate, [&](Call& c) { return create(c, out, flags, 0); });
}
CUresult cuStreamCreateWithPriority(CUstream* out, unsigned flags, int priority) {
  return call(Symbol::cuStreamCreateWithPriority, [&](Call& c) { return create(c, out, flags, priority); });
}
CUresult cuStreamDestroy(CUstream stream) {
  return call(Symbol::cuStreamDestroy, [&](Call& c) { return destroy(c, stream); });
}
CUresult cuStreamDestroy_v2(CUstream stream) {
  return call(Symbol::cuStreamDestroy_v2, [&](Call& c) { return destroy(c, stream); });
}
CUresult cuStreamSynchronize(CUstream stream) {
  return call(Symbol::cuStreamSynchronize, [&](Call& c) { return synchronize(c, stream); });
}
CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  return call(Symbol::cuStreamSynchronize_ptsz, [&](Call& c) { return synchronize(c, per_thread(stream)); });
}
CUresult cuStreamQuery(CUstream stream) {
  return call(Symbol::cuStreamQuery, [&](Call& c) { return query(c, stream); });
}
CUresult cuStreamQuery_ptsz(CUstream stream) {
  return call(Symbol::cuStreamQuery_ptsz, [&](Call& c) { return query(c, per_thread(stream)); });
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
  return call(Symbol::cuStreamWaitEvent, [&](Call& c) { return wait_event(c, stream, event, flags); });
}
CUresult cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
  return call(Symbol::cuStreamWaitEvent_ptsz, [&](Call& c) { return wait_event(c, per_thread(stream), event, flags); });
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn function, void* data) {
  return call(Symbol::cuLaunchHostFunc, [&](Call& c) { return launch_host(c, stream, function, data); });
}
CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn function, void* data) {
  return call(Symbol::cuLaunchHostFunc_ptsz, [&](Call& c) { return launch_host(c, per_thread(stream), function, data); });
}
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback callback, void* data, unsigned flags) {
  return call(Symbol::cuStreamAddCallback, [&](Call& c) { return add_callback(c, stream, callback, data, flags); });
}
CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback callback, void* data, unsigned flags) {
  return call(Symbol::cuStreamAddCallback_ptsz, [&](Call& c) { return add_callback(c, per_thread(stream), callback, data, flags); });
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext* out) {
  return inspect(Symbol::cuStreamGetCtx, stream, out, [&](Stream& s) { *out = as_handle(s.context); });
}
CUresult cuStreamGetCtx_ptsz(CUstream stream, CUcontext* out) {
  return inspect(Symbol::cuStreamGetCtx_ptsz, per_thread(stream), out, [&](Stream& s) { *out = as_handle(s.context); });
}
CUresult cuStreamGetFlags(CUstream stream, unsigned* out) {
  return inspect(Symbol::cuStreamGetFlags, stream, out, [&](Stream& s) { *out = s.flags; });
}
CUresult cuStreamGetFlags_ptsz(CUstream stream, unsigned* out) {
  return inspect(Symbol::cuStreamGetFlags_ptsz, per_thread(stream), out, [&](Stream& s) { *out = s.flags; });
}
CUresult cuStreamGetPriority(CUstream stream, int* out) {
  return inspect(Symbol::cuStreamGetPriority, stream, out, [&](Stream& s) { *out = s.priority; });
}
CUresult cuStreamGetPriority_ptsz(CUstream stream, int* out) {
  return inspect(Symbol::cuStreamGetPriority_ptsz, per_thread(stream), out, [&](Stream& s) { *out = s.priority; });
}
CUresult cuStreamGetId(CUstream stream, unsigned long long* out) {
  return inspect(Symbol::cuStreamGetId, stream, out, [&](Stream& s) { *out = s.id; });
}
CUresult cuStreamGetId_ptsz(CUstream stream, unsigned long long* out) {
  return inspect(Symbol::cuStreamGetId_ptsz, per_thread(stream), out, [&](Stream& s) { *out = s.id; });
}
CUresult cuStreamGetDevice(CUstream stream, CUdevice* out) {
  return inspect(Symbol::cuStreamGetDevice, stream, out, [&](Stream& s) { *out = s.context->device; });
}
CUresult cuStreamGetDevice_ptsz(CUstream stream, CUdevice* out) {
  return inspect(Symbol::cuStreamGetDevice_ptsz, per_thread(stream), out, [&](Stream& s) { *out = s.context->device; });
}

}  // extern "C"
