// Events.
#include "tests/sim/runtime/runtime_state.hpp"

using namespace cusim_runtime;

namespace {
constexpr auto kLegacy = DefaultStream::kLegacy;
constexpr auto kPerThread = DefaultStream::kPerThread;
}  // namespace

extern "C" {

cudaError_t cudaEventCreate(cudaEvent_t* out) { return call_in_context(DRIVER_ROW(cuEventCreate, kLegacy), out, 0U); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* out, unsigned flags) { return call_in_context(DRIVER_ROW(cuEventCreate, kLegacy), out, flags); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return call_in_context(DRIVER_ROW(cuEventDestroy, kLegacy), event); }
cudaError_t cudaEventQuery(cudaEvent_t event) { return call_in_context(DRIVER_ROW(cuEventQuery, kLegacy), event); }
cudaError_t cudaEventSynchronize(cudaEvent_t event) { return call_in_context(DRIVER_ROW(cuEventSynchronize, kLegacy), event); }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call_in_context(DRIVER_ROW(cuEventElapsedTime, kLegacy), milliseconds, start, end);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) { return call_in_context(DRIVER_ROW(cuEventRecord, kLegacy), event, stream); }
cudaError_t cudaEventRecord_ptsz(cudaEvent_t event, cudaStream_t stream) {
  return call_in_context(DRIVER_ROW(cuEventRecord, kPerThread), event, stream);
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return call_in_context(DRIVER_ROW(cuEventRecordWithFlags, kLegacy), event, stream, flags);
}
cudaError_t cudaEventRecordWithFlags_ptsz(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  return call_in_context(DRIVER_ROW(cuEventRecordWithFlags, kPerThread), event, stream, flags);
}

}  // extern "C"
