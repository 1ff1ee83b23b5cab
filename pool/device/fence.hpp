// Fence: "all work submitted so far, in every context", as one event per context.
//
// cuCtxRecordEvent covers every stream of one context (CUDA Driver API 13.0, 12.5+), not other contexts nor devices, and any
// context may hold work that touches any block (copies between contexts and devices need no peer access): so one event each.
// A context that has died, or is broken, has no work left: its point is done. Called with no lock held.
// Thread rule: one thread at a time per fence.
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
  done,         ///< recorded; or: all its work is complete
  pending,      ///< not yet
  impossible,   ///< nothing can be recorded now: something captures, or a context is being ended
  unsupported,  ///< never on this driver
};

/// Errors of earlier work: every call of the context answers with them from then on (CUDA Driver API 13.0, CUresult). Only these may the
/// program hear of through a question of ours: what else the driver says of it (not permitted, a capture that we were not told of,
/// no host memory) is no answer to what the program asked.
[[nodiscard]] bool is_of_earlier_work(CUresult code);
[[nodiscard]] bool is_context_gone(CUresult code);
/// `code` speaks of a context that is gone, and a second question says so too: one such answer is no proof that nothing of it runs.
[[nodiscard]] bool is_really_gone(const Driver& driver, CUcontext context, CUresult code);

/// `error` is set when the driver said something that the caller's own call natively would have said: a sticky error of
/// `asking`, or that the driver is going down.
struct FenceResult {
  FenceAnswer answer = FenceAnswer::pending;
  Error error{};

  /// The answer alone, with no error beside it.
  bool is_done() const { return answer == FenceAnswer::done && error.code == CUDA_SUCCESS; }
  bool is_pending() const { return answer == FenceAnswer::pending && error.code == CUDA_SUCCESS; }
};

class Fence {
 public:
  /// Records in every context (`only`: of that device), but for those whose work the caller waits for itself (`awaited`). The gate is held, shared,
  /// meanwhile; while something captures, only where no context takes part in that. Without host memory: impossible.
  /// `ending`: left out are contexts that end just now, of whose work nothing is known then.
  FenceResult record(DeviceState& device, CUcontext asking, const DeviceState* only = nullptr, std::span<const CUcontext> awaited = {},
                     ContextRegistry::Ending ending = ContextRegistry::Ending::refused);
  /// record() in every context, and what a poll() of `older` says then (maybe this very fence): the gate and the contexts are held once for both.
  /// Nothing is asked where nothing was recorded.
  std::pair<FenceResult, std::optional<FenceResult>> record_and_poll(DeviceState& device, CUcontext asking, Fence& older);
  /// Records behind what `stream` of `context` (the caller's current one) holds now. As record().
  /// `is_private`: a stream of ours that does not block, so that no capture is ever in it. Any other is asked while something captures.
  FenceResult record_on(DeviceState& device, ContextPool& home, CUcontext context, CUstream stream, bool is_private = false);
  /// Records behind everything that `context` holds now; it need not be current. As record(), but only while nothing captures.
  FenceResult record_in(DeviceState& device, ContextPool& home, CUcontext context);
  /// Makes `stream`, of the context that is current, wait for it on the device. Precondition: record_on() made it.
  FenceResult wait_on_device(DeviceState& device, CUcontext context, CUstream stream);
  /// Queries the first point that is not done, and on while they complete. Never completes work, never blocks.
  FenceResult poll(DeviceState& device, CUcontext asking);
  /// As poll(), of the work alone that is_over_where_asked() speaks of. Errors are nobody's.
  void poll_where_asked(DeviceState& device);
  /// poll() until it is done, refused, or `bound_ns` are over; a pause between.
  FenceResult poll_for(DeviceState& device, std::uint64_t bound_ns);
  /// Blocks until the work of `context` (null: of each one here) is complete, unless something captures. Precondition: the program's own free of a
  /// block of that context made this fence, so that natively the program would have waited there.
  FenceResult wait(DeviceState& device, CUcontext context, CUcontext asking);
  /// What `newer` has seen to be over in a context is over here too, without a question. Precondition: `newer` was recorded in every context of its
  /// moment, by a thread that knew of everything this one waits for.
  void follow(const Fence& newer);
  /// Nobody asks for what runs in the context of `home`.
  void leave_out(const ContextPool& home);
  /// Gives the events back and forgets the points.
  void clear(ContextRegistry& contexts);
  bool empty() const { return points_.empty(); }
  /// What it waits for is over in the context of `home`, at least, which is asked. False where it does not cover that one.
  bool is_over_in(DeviceState& device, const ContextPool& home);
  bool covers(const ContextPool& home) const;
  /// Everything that it waits for has been seen to be over.
  bool is_over() const;
  /// So has what it waits for in the context that asked for it by record().
  bool is_over_where_asked() const { return points_.empty() || !has_asking_ || points_.front().done; }
  /// The driver has answered neither yes nor no, again and again: the device is lost, it may be, and no wait will end.
  bool is_refused_where_asked() const { return !is_over_where_asked() && points_.front().refusals >= FencePoint::kRefused; }

 private:
  static FenceResult judge(DeviceState& device, FencePoint& point, CUresult code, CUcontext asking, const char* where);
  CUresult record_point(DeviceState& device, FencePoint& point, const CUstream* stream = nullptr);
  FenceResult record_points(DeviceState& device, const CaptureGate::Pass& pass, CUcontext asking, std::span<const CUcontext> awaited);
  static FenceResult poll_point(DeviceState& device, const CaptureGate::Pass& pass, FencePoint& point, CUcontext asking);
  static FenceResult ask_point(DeviceState& device, const CaptureGate::Pass& pass, FencePoint& point, CUcontext asking);
  bool has_pinned(const FencePoint& point) const;

  std::vector<FencePoint> points_;
  bool has_asking_ = false;  ///< the first point is in the context that asked, so that it is looked at whatever runs elsewhere
};

/// Waits for all work of every context by cuCtxSynchronize, for drivers without events that cover a context; not while something captures. `only`: of
/// that device's contexts and the current one, as the simulated native free does. `done`: it is over. The lock is not held.
FenceResult synchronise_contexts(DeviceState& device, CUcontext asking, const DeviceState* only);

/// Waits for what was submitted to `context` so far, as a driver's call that unmaps memory there would. No error: it is over, or the context is gone.
/// Error: a sticky one of `context` (its work has ended); a capture forbids the calling thread such calls (and the driver has ended it, as
/// natively); CUDA_ERROR_OUT_OF_MEMORY: something captures, and for the driver's way of waiting there is no memory. No lock is held.
Status wait_for_context(ContextPool& home, CUcontext context);

}  // namespace cupool::device
