// Streams, capture, host functions.
#include "tests/sim/runtime/runtime_state.hpp"

using namespace cusim_runtime;

namespace {
constexpr auto kLegacy = DefaultStream::kLegacy;

// A stream call in both its forms: cudaFoo, and cudaFoo_ptsz, in which stream 0 is the thread's own.
#define STREAM_PAIR(name, parameters, row, ...)                                                                 \
  cudaError_t name parameters { return call_in_context(DRIVER_ROW(row, DefaultStream::kLegacy), __VA_ARGS__); } \
  cudaError_t name##_ptsz parameters { return call_in_context(DRIVER_ROW(row, DefaultStream::kPerThread), __VA_ARGS__); }
}  // namespace

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* out) { return call_in_context(DRIVER_ROW(cuStreamCreate, kLegacy), out, 0U); }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* out, unsigned flags) { return call_in_context(DRIVER_ROW(cuStreamCreate, kLegacy), out, flags); }
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* out, unsigned flags, int priority) {
  return call_in_context(DRIVER_ROW(cuStreamCreateWithPriority, kLegacy), out, flags, priority);
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) { return call_in_context(DRIVER_ROW(cuStreamDestroy, kLegacy), stream); }

STREAM_PAIR(cudaStreamSynchronize, (cudaStream_t stream), cuStreamSynchronize, stream)
STREAM_PAIR(cudaStreamQuery, (cudaStream_t stream), cuStreamQuery, stream)
STREAM_PAIR(cudaStreamGetPriority, (cudaStream_t stream, int* priority), cuStreamGetPriority, stream, priority)
STREAM_PAIR(cudaStreamGetFlags, (cudaStream_t stream, unsigned* flags), cuStreamGetFlags, stream, flags)
STREAM_PAIR(cudaStreamGetId, (cudaStream_t stream, unsigned long long* id), cuStreamGetId, stream, id)
STREAM_PAIR(cudaStreamWaitEvent, (cudaStream_t stream, cudaEvent_t event, unsigned flags), cuStreamWaitEvent, stream, event, flags)
STREAM_PAIR(cudaLaunchHostFunc, (cudaStream_t stream, cudaHostFn_t function, void* data), cuLaunchHostFunc, stream, function, data)
STREAM_PAIR(cudaStreamAddCallback, (cudaStream_t stream, cudaStreamCallback_t callback, void* data, unsigned flags), cuStreamAddCallback, stream,
            reinterpret_cast<CUstreamCallback>(callback), data, flags)

STREAM_PAIR(cudaStreamBeginCapture, (cudaStream_t stream, cudaStreamCaptureMode mode), cuStreamBeginCapture, stream,
            static_cast<CUstreamCaptureMode>(mode))
STREAM_PAIR(cudaStreamEndCapture, (cudaStream_t stream, cudaGraph_t* graph), cuStreamEndCapture, stream, graph)
STREAM_PAIR(cudaStreamIsCapturing, (cudaStream_t stream, cudaStreamCaptureStatus* status), cuStreamIsCapturing, stream,
            reinterpret_cast<CUstreamCaptureStatus*>(status))
STREAM_PAIR(cudaStreamGetCaptureInfo,
            (cudaStream_t stream, cudaStreamCaptureStatus* status, unsigned long long* id, cudaGraph_t* graph, const cudaGraphNode_t** dependencies,
             const cudaGraphEdgeData** edges, size_t* count),
            cuStreamGetCaptureInfo, stream, reinterpret_cast<CUstreamCaptureStatus*>(status), reinterpret_cast<cuuint64_t*>(id), graph, dependencies,
            reinterpret_cast<const CUgraphEdgeData**>(edges), count)

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call_driver(DRIVER_ROW(cuThreadExchangeStreamCaptureMode, kLegacy), reinterpret_cast<CUstreamCaptureMode*>(mode));
}

}  // extern "C"
