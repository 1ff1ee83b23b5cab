// Streams that begin and end captures, during which we record no event, and streams that end. CUDA Driver API 13.0 §6.9 (streams).
#include <functional>

#include "shim/front_door.hpp"

namespace cupool::shim::front_door {
namespace {

std::uint64_t mix(std::uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51'afd7'ed55'8ccdU;
  return value ^ (value >> 33);
}

/// `real` ends a capture, unless the driver refuses; then the capture goes on.
template <class RealEnd, class... Args> CUresult end_capture_by(const RealEnd& real, CUstream stream, Args... args) {
  Process& own = process();
  const CUstream named = stream == nullptr && real.is_per_thread() ? CU_STREAM_PER_THREAD : stream;
  const auto still_capturing = [&] {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    // A thread that may not end the capture leaves it as it is, and might not be told its status either.
    if (real.result() == CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD) return true;
    return real.result() != CUDA_SUCCESS && own.api.cuStreamIsCapturing != nullptr && own.api.cuStreamIsCapturing(named, &status) == CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
  };
  const auto end = [&] { return real(stream, args...); };
  // By reference, so that std::function allocates nothing: a failure to copy `end` would leave the capture's end to the driver, unseen by the gate.
  return own.pools.end_capture(stream_key(stream, real.is_per_thread()), std::cref(end), std::cref(still_capturing));
}

}  // namespace

CUcontext owner_of_stream(const Process& own, CUstream stream) {
  CUcontext context = nullptr;
  const bool is_told = own.api.cuStreamGetCtx != nullptr && own.api.cuStreamGetCtx(stream, &context) == CUDA_SUCCESS;
  return is_told ? own.contexts.owner(context) : nullptr;
}

CUstream stream_key(CUstream stream, bool is_per_thread) {
  const bool is_threads_own = stream == CU_STREAM_PER_THREAD || (stream == nullptr && is_per_thread);
  const bool is_legacy = stream == CU_STREAM_LEGACY || (stream == nullptr && !is_per_thread);
  if (!is_threads_own && !is_legacy) return stream;
  const std::uint64_t thread = is_threads_own ? StreamBook::thread_number() : 0;
  // Odd, so that it is never the address that a stream handle is.
  const std::uint64_t key = mix(thread ^ mix(reinterpret_cast<std::uintptr_t>(current_context(process())))) | 1;
  return reinterpret_cast<CUstream>(key);
}

CUresult end_capture(const Real<CUresult(CUstream, CUgraph*)>& real, CUstream stream, CUgraph* out) { return end_capture_by(real, stream, out); }

CUresult end_capture(const Real<CUresult(CUstream)>& real, CUstream stream) { return end_capture_by(real, stream); }

CUresult wait_for_event(const Real<CUresult(CUstream, CUevent, unsigned)>& real, CUstream stream, CUevent event, unsigned flags) {
  PoolSet& pools = process().pools;
  const PoolSet::EventWait wait = pools.stream_will_wait(plain_handle(stream, real.is_per_thread()));
  const CUresult code = real(stream, event, flags);
  pools.stream_has_waited(wait);
  return code;
}

CUresult destroy_stream(const Real<CUresult(CUstream)>& real, CUstream stream) {
  Process& own = process();
  const bool is_handle = stream != nullptr && !is_default_stream(stream);
  if (is_handle) {
    // Also where its context is not known: the pool must not use the handle after this.
    own.pools.stream_ending(owner_of_stream(own, stream), StreamBook::identity_of(stream));
    own.streams.something_ended();
  }
  const auto destroy = [&] { return real(stream); };
  const auto still_capturing = [&] { return real.result() != CUDA_SUCCESS; };
  return own.pools.end_capture(stream, std::cref(destroy), std::cref(still_capturing));
}

}  // namespace cupool::shim::front_door
