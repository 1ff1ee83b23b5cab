// CaptureGate: keeps our own events and synchronisations out of the program's stream captures.
//
// cuCtxRecordEvent in a capturing context returns an error and invalidates the program's capture (CUDA Driver API 13.0), and "nobody captures" can
// change between a look and a call. So cuStreamBeginCapture runs under the gate exclusively, and every recording of ours under it shared. A capture
// spreads to streams of other contexts by event waits: the context of a stream that is made to wait while something captures counts as part of the
// capture from then on. Of a stream by itself the driver says whether it captures, but for the time of such a wait. Thread-safe. The outermost lock of
// the pool (core/mutex.hpp).
#pragma once

#include <cuda.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <shared_mutex>
#include <vector>

#include "pool/core/clock.hpp"

namespace cupool::device {

class CaptureGate {
 public:
  /// While one of these lives no capture begins.
  class Pass {
   public:
    explicit Pass(CaptureGate& gate) : lock_(gate.mutex_), gate_(gate), allowed_(!gate.capturing()) {}
    /// No capture is active, so that events may be recorded anywhere.
    bool allowed() const { return allowed_; }
    /// Events may be recorded in `context`: no capture is active in which a stream of it takes part.
    bool allows(CUcontext context) const { return allowed_ || gate_.is_outside(context); }
    /// The same for `stream`, which does not capture now: no thread is making it wait.
    bool allows_on(CUstream stream) const { return allowed_ || !gate_.is_being_joined(stream); }

   private:
    std::shared_lock<std::shared_mutex> lock_;
    const CaptureGate& gate_;
    bool allowed_;
  };

  /// A Pass for a call that waits for the GPU. It does not hold the lock: a capture that is about to begin waits for it for a second at most, because
  /// the work that the call waits for may itself wait for the thread that wants to capture.
  class Synchronising {
   public:
    explicit Synchronising(CaptureGate& gate) : gate_(gate) {
      const Pass pass(gate);
      allowed_ = pass.allowed();
      if (allowed_) gate_.synchronising_.fetch_add(1, std::memory_order_relaxed);
    }
    ~Synchronising() {
      if (allowed_) gate_.synchronising_.fetch_sub(1, std::memory_order_relaxed);
    }
    Synchronising(const Synchronising&) = delete;
    Synchronising& operator=(const Synchronising&) = delete;
    bool allowed() const { return allowed_; }

   private:
    CaptureGate& gate_;
    bool allowed_;
  };

  /// Does any stream of the process capture? Lock-free.
  bool capturing() const { return active_.load(std::memory_order_acquire) != 0; }

  /// Would the driver refuse the calling thread, whose own mode is `mode`, a call that is potentially unsafe during a capture, such as cuMemFree?
  /// (CUDA Driver API 13.0, cuThreadExchangeStreamCaptureMode.)
  bool forbids(CUstreamCaptureMode mode) {
    if (!capturing() || mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    const std::shared_lock<std::shared_mutex> lock(mutex_);
    return std::any_of(streams_.begin(), streams_.end(), [mode, self = pthread_self()](const Capture& capture) {
      if (capture.mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
      return pthread_equal(capture.begun_by, self) != 0 || (capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL && mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
    });
  }

  /// Which stream captures, as BeginCapture was told.
  struct Origin {
    CUstream stream;
    CUcontext context;
    CUcontext part;        ///< the context that takes part, where it is one that events are recorded in; null: it may be any
    std::uint64_t thread;  ///< the number of the only thread that can end it, or 0
    CUstreamCaptureMode mode;
  };

  /// Runs `begin_capture` exclusively; on success `origin.stream` captures. A handle may be in here several times: the per-thread default stream is
  /// one handle and many streams. Returns its answer, or CUDA_ERROR_OUT_OF_MEMORY, with nothing run, where host memory is out.
  template <class Begin> CUresult begin(const Origin& origin, Begin&& begin_capture, Clock& clock) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    const std::uint64_t until_ns = clock.now_ns() + kSynchronisingBound_ns;
    while (synchronising_.load(std::memory_order_relaxed) != 0 && clock.now_ns() < until_ns) {
      lock.unlock();
      clock.pause(kDriverCallPause_ns);
      lock.lock();
    }
    try {
      streams_.reserve(streams_.size() + 1);
    } catch (const std::bad_alloc&) {
      return CUDA_ERROR_OUT_OF_MEMORY;  // a capture that the gate does not know of would be invalidated by our events
    }
    const CUresult result = begin_capture();
    if (result == CUDA_SUCCESS) {
      streams_.push_back({origin, pthread_self(), begun_.fetch_add(1, std::memory_order_release) + 1});
      active_.store(streams_.size(), std::memory_order_release);
    }
    return result;
  }

  /// `stream`, one of context `part` (null: not known which), is about to be made to wait for an event, and may so become part of a capture. Returns
  /// what submitted() is to be told when the wait has been submitted.
  std::uint64_t join(CUstream stream, CUcontext part) {
    if (!capturing()) return kNoWait;
    const std::lock_guard<std::shared_mutex> lock(mutex_);
    const auto end = joined_.begin() + joined_count_;
    const auto found = std::find_if(joined_.begin(), end, [&](const Joined& one) { return one.stream == stream && one.part == part; });
    is_everywhere_ = is_everywhere_ || part == nullptr || (found == end && end == joined_.end());
    if (found != end) ++found->waits;
    else if (end != joined_.end()) joined_[static_cast<std::size_t>(joined_count_++)] = {stream, part, 1};
    else is_full_ = true;
    return rounds_;
  }
  /// The wait of `stream` that was announced has been submitted: from now on the driver says whether the stream captures.
  void submitted(CUstream stream, CUcontext part, std::uint64_t wait) {
    if (wait == kNoWait || !capturing()) return;
    const std::lock_guard<std::shared_mutex> lock(mutex_);
    if (wait != rounds_) return;  // all captures of that time are over
    for (Joined& one : joined_)
      if (one.stream == stream && one.part == part && one.waits != 0) --one.waits;
  }

  /// Runs `end_capture`, not exclusively; afterwards `stream` does not capture any more, unless `still_capturing()`. Where `end_capture` destroyed
  /// the stream, another one may have got its handle meanwhile and begun a capture: that one is left alone. Returns the answer of `end_capture`.
  template <class End, class Still> CUresult end(CUstream stream, End&& end_capture, Still&& still_capturing) {
    const std::uint64_t before = mark();
    const CUresult result = end_capture();
    if (!capturing() || still_capturing()) return result;
    const std::lock_guard<std::shared_mutex> lock(mutex_);
    const auto found = std::find_if(streams_.begin(), streams_.end(),
                                    [stream, before](const Capture& capture) { return capture.stream == stream && capture.number <= before; });
    if (found != streams_.end()) streams_.erase(found);
    count_active();
    return result;
  }

  /// How many captures have begun so far: a mark for forget().
  std::uint64_t mark() const { return begun_.load(std::memory_order_acquire); }
  /// The context has ended, and its captures with it. `before`: the mark() of before it ended, since another context may have got its handle.
  void forget(CUcontext context, std::uint64_t before) {
    if (context != nullptr) forget_if([context, before](const Capture& capture) { return capture.context == context && capture.number <= before; });
  }
  /// The thread has ended, and its own default streams with it.
  void forget_thread(std::uint64_t thread) {
    if (thread != 0) forget_if([thread](const Capture& capture) { return capture.thread == thread; });
  }

 private:
  struct Capture : Origin {
    pthread_t begun_by;  ///< a later thread that gets the same pthread_t is taken for it, and waits for less
    std::uint64_t number;
  };

  static constexpr std::uint64_t kNoWait = 0;
  static constexpr std::uint64_t kSynchronisingBound_ns = 1'000'000'000;  ///< for how long a capture that is to begin waits for Synchronising
  template <class Over> void forget_if(Over&& is_over) {
    if (!capturing()) return;
    const std::lock_guard<std::shared_mutex> lock(mutex_);
    std::erase_if(streams_, is_over);
    count_active();
  }

  /// Precondition: the lock is held, exclusively.
  void count_active() {
    if (streams_.empty()) {
      joined_ = {};
      joined_count_ = 0;
      is_everywhere_ = is_full_ = false;
      ++rounds_;
    }
    active_.store(streams_.size(), std::memory_order_release);
  }

  /// No stream of `context` takes part in a capture. Precondition: the lock is held.
  bool is_outside(CUcontext context) const {
    const auto end = joined_.begin() + joined_count_;
    if (is_everywhere_ || std::any_of(joined_.begin(), end, [context](const Joined& one) { return one.part == context; })) return false;
    return std::none_of(streams_.begin(), streams_.end(),
                        [context](const Capture& capture) { return capture.part == nullptr || capture.part == context; });
  }
  /// A thread is making `stream` wait while something captures. Precondition: the lock is held.
  bool is_being_joined(CUstream stream) const {
    return is_full_ || std::any_of(joined_.begin(), joined_.begin() + joined_count_,
                                   [stream](const Joined& one) { return one.stream == stream && one.waits != 0; });
  }

  std::shared_mutex mutex_;
  std::atomic<std::uint32_t> synchronising_{0};  ///< how many Synchronising there are; raised under the lock, shared
  std::vector<Capture> streams_;                 ///< that capture
  struct Joined {
    CUstream stream;
    CUcontext part;
    std::uint32_t waits;  ///< threads that are making it wait
  };
  std::array<Joined, 32> joined_{};  ///< streams that were made to wait while something captured; the first joined_count_ of them
  std::ptrdiff_t joined_count_ = 0;
  bool is_everywhere_ = false;           ///< one of them was of an unknown context, or there were too many: any context may be part of a capture
  bool is_full_ = false;                 ///< there were too many
  std::uint64_t rounds_ = 1;             ///< how often the last capture has ended, from 1
  std::atomic<std::uint64_t> begun_{0};  ///< captures, ever
  std::atomic<std::size_t> active_{0};   ///< streams_.size()
};

}  // namespace cupool::device
