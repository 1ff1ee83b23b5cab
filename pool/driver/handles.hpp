// RAII around the driver's stateful calls: a pushed context, a thread's capture mode, an event.
//
// Source: CUDA Driver API 13.0, Context Management, Stream Management, Event Management. Never: locks.
// Thread rule: each object belongs to the thread that made it, except Event, which any thread may use and destroy.
#pragma once

#include <cuda.h>

#include <utility>

#include "pool/core/result.hpp"
#include "pool/driver/driver_api.hpp"

namespace cupool {

/// Makes `context` current for a scope. `status()` says whether that worked; when it did not, nothing is popped at the end.
class ScopedContext {
 public:
  /// `current`: the context that the caller knows to be current already, or null. When it is `context`, no call is made.
  ScopedContext(const Driver& driver, CUcontext context, CUcontext current = nullptr)
      : driver_(driver),
        status_(context == current ? CUDA_SUCCESS : driver.cuCtxPushCurrent_v2(context)),
        pushed_(context != current && status_ == CUDA_SUCCESS) {}
  ~ScopedContext() {
    CUcontext popped = nullptr;
    // Tried twice: a program that is left in another context than its own is broken.
    if (pushed_ && driver_.cuCtxPopCurrent_v2(&popped) != CUDA_SUCCESS) driver_.cuCtxPopCurrent_v2(&popped);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  Status status() const { return Status::from(status_, "cuCtxPushCurrent_v2"); }

 private:
  const Driver& driver_;
  CUresult status_;
  bool pushed_;
};

/// Puts the calling thread into relaxed capture mode for a scope, so that our own calls never invalidate a capture:
/// cuMemAlloc and cuEventQuery are "potentially unsafe" calls while any thread captures in global mode
/// (CUDA Driver API 13.0, cuThreadExchangeStreamCaptureMode).
class RelaxedCaptureMode {
 public:
  /// Does nothing when not `needed`, or when the driver has no such call (then it has no captures either).
  explicit RelaxedCaptureMode(const Driver& driver, bool needed = true)
      : driver_(driver),
        exchanged_(needed && driver.has_cuThreadExchangeStreamCaptureMode() && driver.cuThreadExchangeStreamCaptureMode(&mode_) == CUDA_SUCCESS) {}
  ~RelaxedCaptureMode() {
    // Tried twice, as in ScopedContext.
    if (exchanged_ && driver_.cuThreadExchangeStreamCaptureMode(&mode_) != CUDA_SUCCESS) driver_.cuThreadExchangeStreamCaptureMode(&mode_);
  }
  bool is_on() const { return exchanged_; }
  /// The mode that the thread had before. Where that is not known: the strictest.
  CUstreamCaptureMode before() const { return exchanged_ ? mode_ : CU_STREAM_CAPTURE_MODE_GLOBAL; }
  RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
  RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;  ///< holds the thread's own mode between the two exchanges
  bool exchanged_;
};

/// An event without timing. Move-only. Destroyed with the object, unless it was abandoned.
class Event {
 public:
  Event() = default;
  /// Creates it in the current context.
  static Result<Event> create(const Driver& driver) {
    CUevent handle = nullptr;
    const CUresult code = driver.cuEventCreate(&handle, CU_EVENT_DISABLE_TIMING);
    if (code != CUDA_SUCCESS) return Error{code, "cuEventCreate"};
    return Event(driver, handle);
  }
  ~Event() { reset(); }
  Event(Event&& other) noexcept : driver_(other.driver_), handle_(std::exchange(other.handle_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    if (this != &other) {
      reset();
      driver_ = other.driver_;
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }

  explicit operator bool() const { return handle_ != nullptr; }
  CUevent get() const { return handle_; }
  /// Gives up ownership of the handle, without a driver call: somebody else keeps it, or its context has ended and taken it along.
  CUevent abandon() { return std::exchange(handle_, nullptr); }

 private:
  Event(const Driver& driver, CUevent handle) : driver_(&driver), handle_(handle) {}
  void reset() {
    if (handle_ != nullptr) driver_->cuEventDestroy_v2(std::exchange(handle_, nullptr));
  }
  const Driver* driver_ = nullptr;
  CUevent handle_ = nullptr;
};

}  // namespace cupool
