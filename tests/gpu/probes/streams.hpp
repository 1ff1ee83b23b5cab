// Streams and pools that the probes of stream-ordered memory share: made for one question, gone at the end of its scope.
#pragma once

#include "tests/gpu/probes/probe.hpp"

namespace probe {

class Stream {
 public:
  Stream() { prepare(CU(cuStreamCreate)(&stream_, CU_STREAM_NON_BLOCKING), "cuStreamCreate"); }
  ~Stream() {
    if (stream_ != nullptr) static_cast<void>(CU(cuStreamDestroy_v2)(stream_));
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator CUstream() const { return stream_; }
  void synchronize() const { prepare(CU(cuStreamSynchronize)(stream_), "cuStreamSynchronize"); }
  /// Somebody else has destroyed it, or its context has ended.
  void forget() { stream_ = nullptr; }

 private:
  CUstream stream_ = nullptr;
};

/// Another context of the device, current in this thread while it lives; `session.context` is current again afterwards.
class OtherContext {
 public:
  explicit OtherContext(const Session& session) : back_(session.context) { prepare(CU(cuCtxCreate_v2)(&context_, 0, session.device), "cuCtxCreate"); }
  ~OtherContext() { destroy(); }
  OtherContext(const OtherContext&) = delete;
  OtherContext& operator=(const OtherContext&) = delete;
  operator CUcontext() const { return context_; }
  void make_current() const { prepare(CU(cuCtxSetCurrent)(context_), "cuCtxSetCurrent"); }
  /// Somebody else has destroyed it.
  void forget() { context_ = nullptr; }
  void destroy() {
    if (context_ != nullptr) static_cast<void>(CU(cuCtxDestroy_v2)(context_));
    context_ = nullptr;
    static_cast<void>(CU(cuCtxSetCurrent)(back_));
  }

 private:
  CUcontext context_ = nullptr;
  CUcontext back_;
};

/// No context is current: cuCtxSetCurrent(NULL) uncovers the next one of the thread's stack.
inline void leave_every_context() {
  for (CUcontext current = nullptr;;) {
    prepare(CU(cuCtxGetCurrent)(&current), "cuCtxGetCurrent");
    if (current == nullptr) return;
    prepare(CU(cuCtxSetCurrent)(nullptr), "cuCtxSetCurrent(NULL)");
  }
}

[[nodiscard]] inline CUdeviceptr take_async(std::size_t bytes, CUstream stream) {
  CUdeviceptr address = 0;
  prepare(CU(cuMemAllocAsync)(&address, bytes, stream), "cuMemAllocAsync");
  return address;
}

[[nodiscard]] inline CUmemoryPool default_pool(CUdevice device) {
  CUmemoryPool pool = nullptr;
  prepare(CU(cuDeviceGetDefaultMemPool)(&pool, device), "cuDeviceGetDefaultMemPool");
  return pool;
}

[[nodiscard]] inline std::uint64_t figure(CUmemoryPool pool, CUmemPool_attribute attribute) {
  cuuint64_t value = 0;
  prepare(CU(cuMemPoolGetAttribute)(pool, attribute, &value), "cuMemPoolGetAttribute");
  return value;
}

inline void keep_freed_bytes(CUmemoryPool pool, std::uint64_t bytes) {
  cuuint64_t threshold = bytes;
  prepare(CU(cuMemPoolSetAttribute)(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold), "cuMemPoolSetAttribute");
}

}  // namespace probe
