// Fence: "all work submitted so far, in every context", as one event per context.
//
// cuCtxRecordEvent covers every stream of one context (CUDA Driver API 13.0; since 12.5), but no other context or device, and any context may hold
// work that touches any block (copies between contexts and devices need no peer access). Hence one event for each context. A context that has ended,
// or is broken, has no work left: its point is done.
// Thread rule: one thread at a time per fence; called with no lock held.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "pool/core/result.hpp"
#include "pool/device/capture_gate.hpp"
#include "pool/device/context_registry.hpp"
#include "pool/driver/driver_api.hpp"

namespace cupool::device {

struct ContextPool;
struct DeviceState;

enum class FenceAnswer : std::uint8_t {
  done,         ///< recorded, or all the work it covers is complete
  pending,      ///< not yet
  impossible,   ///< nothing can be recorded now: something captures, a context is ending, or host memory is out
  unsupported,  ///< this driver has no such events
};

/// Is `code` an error of earlier work, with which every call of the context answers from then on (CUDA Driver API 13.0, CUresult)? The program may
/// hear of these alone through a question of ours. Anything else that the driver says (not permitted, a capture that we were not told of, no host
/// memory) does not concern what the program asked.
[[nodiscard]] bool is_of_earlier_work(CUresult code);
[[nodiscard]] bool is_context_gone(CUresult code);
/// Does `code` say that the context is gone, and does a second question confirm it? One such answer is no proof that nothing of it runs.
[[nodiscard]] bool is_really_gone(const Driver& driver, CUcontext context, CUresult code);
/// A call in the context that is current answered `code` because the device is lost. Another must say so too: a driver may refuse one and do the rest.
[[nodiscard]] bool is_lost(const Driver& driver, CUresult code);
/// Does every call in the context that is current answer by an error of earlier work, or because the device is lost?
[[nodiscard]] bool is_broken(const Driver& driver);

/// Does the driver say that `stream`, of the current context, takes no part in a capture?
[[nodiscard]] bool is_known_not_to_capture(const Driver& driver, CUstream stream);

/// `error` is set when the driver said something that the program's own call would have returned natively: a sticky error of `asking`, or that the
/// driver is shutting down.
struct FenceResult {
  FenceAnswer answer = FenceAnswer::pending;
  Error error{};

  /// Done, and without an error.
  bool is_done() const { return answer == FenceAnswer::done && error.code == CUDA_SUCCESS; }
  bool is_pending() const { return answer == FenceAnswer::pending && error.code == CUDA_SUCCESS; }
};

class Fence {
 public:
  /// Records in every context (`only`: of that device) except those whose work the caller waits for itself (`awaited`). Holds the capture gate
  /// (shared) meanwhile; while something captures, records only if no context takes part in the capture. `impossible` where host memory is out.
  /// `ending`: contexts that are just ending are left out, as nothing is known of their work.
  FenceResult record(DeviceState& device, CUcontext asking, const DeviceState* only = nullptr, std::span<const CUcontext> awaited = {},
                     ContextRegistry::Ending ending = ContextRegistry::Ending::refused);
  /// record() in every context, and poll() of `older` (which may be this very fence) with the gate and the contexts held once for both. The second
  /// answer is empty where nothing was recorded.
  std::pair<FenceResult, std::optional<FenceResult>> record_and_poll(DeviceState& device, CUcontext asking, Fence& older);
  /// Records behind what `stream` of `context` (the caller's current one) holds now. `is_private`: a non-blocking stream of ours, which no capture is
  /// ever in; any other stream is asked first while something captures. Answers as record().
  FenceResult record_on(DeviceState& device, ContextPool& home, CUcontext context, CUstream stream, bool is_private = false);
  /// Records behind everything that `context` holds now; it need not be current. As record(), but only while nothing captures.
  FenceResult record_in(DeviceState& device, ContextPool& home, CUcontext context);
  /// Makes `stream`, of the current context, wait for this fence on the device. Precondition: record_on() made it.
  FenceResult wait_on_device(DeviceState& device, CUcontext context, CUstream stream);
  /// Queries the first point that is not done, and further ones as long as they are done. Never waits.
  FenceResult poll(DeviceState& device, CUcontext asking);
  /// As poll(), but only for the work that is_over_where_asked() speaks of. Its errors are dropped.
  void poll_where_asked(DeviceState& device);
  /// Polls, with pauses, until the fence is done or refused, or `bound_ns` have passed.
  FenceResult poll_for(DeviceState& device, std::uint64_t bound_ns);
  /// Blocks until the work of `context` (null: of every context here) is complete, unless something captures. Precondition: the fence was recorded in
  /// the program's own free of a block of that context, which natively would have waited.
  FenceResult wait(DeviceState& device, CUcontext context, CUcontext asking);
  /// What `newer` has seen to be over in a context is over here too, without a question. Precondition: `newer` was recorded later, in every context
  /// of its moment.
  void follow(const Fence& newer);
  /// Drops the point in the context of `home`: its work is not asked about.
  void leave_out(const ContextPool& home);
  /// Returns the events to their contexts and forgets all points.
  void clear(ContextRegistry& contexts);
  bool empty() const { return points_.empty(); }
  /// Is the work in the context of `home` over? The driver is asked if need be. False where the fence does not cover that context.
  bool is_over_in(DeviceState& device, const ContextPool& home);
  bool covers(const ContextPool& home) const;
  /// All the work it covers is known to be over.
  bool is_over() const;
  /// The work it covers in the context that recorded it is known to be over.
  bool is_over_where_asked() const { return points_.empty() || !has_asking_ || points_.front().done; }
  /// The driver has again and again answered neither yes nor no: the device may be lost, and no wait would end.
  bool is_refused_where_asked() const { return !is_over_where_asked() && points_.front().refusals >= FencePoint::kRefused; }

 private:
  static FenceResult judge(DeviceState& device, FencePoint& point, CUresult code, CUcontext asking, const char* where);
  CUresult record_point(DeviceState& device, FencePoint& point, const CUstream* stream = nullptr);
  FenceResult record_points(DeviceState& device, const CaptureGate::Pass& pass, CUcontext asking, std::span<const CUcontext> awaited);
  static FenceResult poll_point(DeviceState& device, const CaptureGate::Pass& pass, FencePoint& point, CUcontext asking);
  static FenceResult ask_point(DeviceState& device, const CaptureGate::Pass& pass, FencePoint& point, CUcontext asking);
  bool has_pinned(const FencePoint& point) const;

  std::vector<FencePoint> points_;
  bool has_asking_ = false;  ///< the first point is in the recording context, so that it is asked about first
};

/// Waits for all work of every context by cuCtxSynchronize, for drivers without events that cover a context; not while something captures. `only`:
/// the contexts of that device and the current one. `done`: the work is over. No lock is held.
FenceResult synchronise_contexts(DeviceState& device, CUcontext asking, const DeviceState* only);

/// Waits for what was submitted to `context` so far, as a driver's call that unmaps memory would. OK: it is over, or the context is gone. No lock is
/// held.
/// Errors: a sticky one of `context` (its work has ended); that a capture forbids the calling thread such calls (and the driver has ended the
/// capture, as natively); CUDA_ERROR_OUT_OF_MEMORY where something captures and there is no memory for the driver's own way of waiting.
Status wait_for_context(ContextPool& home, CUcontext context);

}  // namespace cupool::device
