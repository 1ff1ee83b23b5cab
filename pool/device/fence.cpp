// Recording, querying and waiting, and what each error means. See fence.hpp.
#include "pool/device/fence.hpp"

#include <algorithm>

#include "pool/device/context_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
/// While something captures: is `stream`, of the current context, no part of it? An event on such a stream, or in a context that takes no part, does
/// not end the capture (seen on H100 and H200, driver 580). Precondition: the gate is held.
bool is_idle_stream(const DeviceState& device, const CaptureGate::Pass& pass, CUstream stream) {
  return pass.allows_on(stream) && is_known_not_to_capture(device.driver, stream);
}

/// Judges a refusal to record. A driver may lack these events and say so with another code than NOT_SUPPORTED; without the distinction nothing freed
/// would ever become free. Lack of memory, however, may pass.
FenceAnswer note_refused_event(PoolServices& services, CUresult code) {
  constexpr std::uint32_t kMostRefused = 64;
  constexpr std::uint32_t kMostRefusedForMemory = 256;
  if (code == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED || is_context_gone(code)) return FenceAnswer::impossible;
  const std::uint32_t refused = services.refused_events.fetch_add(1, std::memory_order_relaxed) + 1;
  const std::uint32_t most = code == CUDA_ERROR_OUT_OF_MEMORY ? kMostRefusedForMemory : kMostRefused;
  return refused < most ? FenceAnswer::impossible : FenceAnswer::unsupported;
}
}  // namespace

bool is_known_not_to_capture(const Driver& driver, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
  return driver.has_cuStreamIsCapturing() && driver.cuStreamIsCapturing(stream, &status) == CUDA_SUCCESS && status == CU_STREAM_CAPTURE_STATUS_NONE;
}

/// `stream`: record behind that stream of the current context; null: behind all work of the point's context.
CUresult Fence::record_point(DeviceState& device, FencePoint& point, const CUstream* stream) {
  const CUcontext context = point.home->registered.context;  // pinned: it does not change
  if (point.event == nullptr) {
    const ScopedContext current(device.driver, context);
    if (!current.status().ok()) return current.status().code();
    Result<Event> event = Event::create(device.driver);
    if (!event.ok()) return event.code();
    point.event = event.value().abandon();
  }
  return stream != nullptr ? device.driver.cuEventRecord(point.event, *stream) : device.driver.cuCtxRecordEvent(context, point.event);
}

FenceResult Fence::record_on(DeviceState& device, ContextPool& home, CUcontext context, CUstream stream, bool is_private) {
  PoolServices& services = device.services;
  if (!device.driver.has_cuEventRecord() || !device.driver.has_cuEventCreate() || !device.driver.has_cuEventQuery())
    return {FenceAnswer::unsupported, {}};
  const CaptureGate::Pass pass(services.gate);
  if (!pass.allowed() && !is_private && !is_idle_stream(device, pass, stream)) return {FenceAnswer::impossible, {}};
  if (!services.contexts.pin_one(&home, context, points_)) return {FenceAnswer::impossible, {}};
  const RelaxedCaptureMode relaxed(device.driver, !pass.allowed());
  const CUresult code = record_point(device, points_.front(), &stream);
  services.contexts.unpin_all(points_);
  if (code == CUDA_SUCCESS) return {FenceAnswer::done, {}};
  // Whatever the error was: without an event the block waits for one that covers the context, and a sticky error is met there.
  if (code == CUDA_ERROR_DEINITIALIZED) services.stopped.store(true, std::memory_order_relaxed);
  clear(services.contexts);
  return {FenceAnswer::impossible, {}};
}

FenceResult Fence::record_in(DeviceState& device, ContextPool& home, CUcontext context) {
  PoolServices& services = device.services;
  if (!services.has_context_events()) return {FenceAnswer::unsupported, {}};
  const CaptureGate::Pass pass(services.gate);
  if (!pass.allowed() || !services.contexts.pin_one(&home, context, points_)) return {FenceAnswer::impossible, {}};
  const CUresult code = record_point(device, points_.front());
  FenceResult result{FenceAnswer::done, {}};
  if (code != CUDA_SUCCESS) result = {FenceAnswer::impossible, judge(device, points_.front(), code, context, "cuCtxRecordEvent").error};
  services.contexts.unpin_all(points_);
  if (code != CUDA_SUCCESS) clear(services.contexts);
  return result;
}

FenceResult Fence::wait_on_device(DeviceState& device, CUcontext context, CUstream stream) {
  PoolServices& services = device.services;
  if (!device.driver.has_cuStreamWaitEvent()) return {FenceAnswer::unsupported, {}};
  const CaptureGate::Pass pass(services.gate);
  if (points_.size() != 1 || (!pass.allowed() && !is_idle_stream(device, pass, stream))) return {FenceAnswer::impossible, {}};
  FencePoint& point = points_.front();
  if (point.done) return {FenceAnswer::done, {}};
  if (services.contexts.pin(point.home, point.life) != Pin::held) return {FenceAnswer::impossible, {}};
  FenceResult judged{FenceAnswer::done, {}};
  const CUresult code = device.driver.cuStreamWaitEvent(stream, point.event, 0);
  if (code != CUDA_SUCCESS) {
    judged = judge(device, point, code, context, "cuStreamWaitEvent");
    if (judged.error.code == CUDA_SUCCESS) judged.answer = FenceAnswer::impossible;
  }
  services.contexts.unpin(point.home);
  return judged;
}

FenceResult Fence::record(DeviceState& device, CUcontext asking, const DeviceState* only, std::span<const CUcontext> awaited,
                          ContextRegistry::Ending ending) {
  PoolServices& services = device.services;
  if (!services.has_context_events() && awaited.empty()) return {FenceAnswer::unsupported, {}};
  const CaptureGate::Pass pass(services.gate);
  if ((!pass.allowed() && awaited.empty()) || !services.contexts.pin_all(points_, only, nullptr, ending)) return {FenceAnswer::impossible, {}};
  const FenceResult result = record_points(device, pass, asking, awaited);
  services.contexts.unpin_all(points_);
  if (result.answer != FenceAnswer::done) clear(services.contexts);
  return result;
}

std::pair<FenceResult, std::optional<FenceResult>> Fence::record_and_poll(DeviceState& device, CUcontext asking, Fence& older) {
  PoolServices& services = device.services;
  if (!services.has_context_events()) return {{FenceAnswer::unsupported, {}}, {}};
  const CaptureGate::Pass pass(services.gate);
  if (!pass.allowed() || !services.contexts.pin_all(points_)) return {{FenceAnswer::impossible, {}}, {}};
  const FenceResult recorded = record_points(device, pass, asking, {});
  if (recorded.answer != FenceAnswer::done) {
    services.contexts.unpin_all(points_);
    clear(services.contexts);
    return {recorded, {}};
  }
  FenceResult polled{FenceAnswer::done, {}};
  for (auto point = older.points_.begin(); point != older.points_.end() && polled.answer == FenceAnswer::done; ++point)
    if (!point->done) polled = has_pinned(*point) ? ask_point(device, pass, *point, asking) : poll_point(device, pass, *point, asking);
  services.contexts.unpin_all(points_, older.points_);
  return {recorded, polled};
}

/// Precondition: the contexts of all points are pinned.
FenceResult Fence::record_points(DeviceState& device, const CaptureGate::Pass& pass, CUcontext asking, std::span<const CUcontext> awaited) {
  const auto own =
      std::find_if(points_.begin(), points_.end(), [asking](const FencePoint& point) { return point.home->registered.context == asking; });
  has_asking_ = own != points_.end();
  if (has_asking_) std::iter_swap(points_.begin(), own);
  FenceResult result{FenceAnswer::done, {}};
  for (FencePoint& point : points_) {
    const CUcontext context = point.home->registered.context;  // pinned: it does not change
    point.done = std::find(awaited.begin(), awaited.end(), context) != awaited.end();
    if (point.done) continue;
    if (!device.services.has_context_events() || !pass.allows(context)) {  // the driver may lack the call itself
      result.answer = FenceAnswer::impossible;
      break;
    }
    const CUresult code = record_point(device, point);
    if (code == CUDA_SUCCESS) continue;
    if (code == CUDA_ERROR_NOT_SUPPORTED) {
      result.answer = FenceAnswer::unsupported;
      break;
    }
    const FenceResult judged = judge(device, point, code, asking, "cuCtxRecordEvent");
    if (judged.is_pending()) {
      // No event, no proof: the blocks stay deferred. (A capture that we were not told of ends up here too.)
      if (code == CUDA_ERROR_INVALID_HANDLE) point.event = nullptr;  // whatever it is, it is not used again
      result.answer = note_refused_event(device.services, code);
      break;
    }
    if (judged.error.code == CUDA_SUCCESS) continue;
    result.error = judged.error;
    point.done = true;
  }
  if (result.answer == FenceAnswer::done) device.services.refused_events.store(0, std::memory_order_relaxed);
  return result;
}

bool is_context_gone(CUresult code) { return code == CUDA_ERROR_INVALID_CONTEXT || code == CUDA_ERROR_CONTEXT_IS_DESTROYED; }

bool is_of_earlier_work(CUresult code) {
  switch (code) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE: return true;
    default: return false;
  }
}

namespace {
/// Codes after which nothing of a context runs: it is gone, or an error has ended it for good.
bool ends_context(CUresult code) { return is_of_earlier_work(code) || is_context_gone(code) || code == CUDA_ERROR_INVALID_HANDLE; }

/// A second question: one answer that speaks of a lost handle is no proof that nothing of the context runs.
bool is_alive(const Driver& driver, CUcontext context) {
  unsigned version = 0;
  if (driver.has_cuCtxGetApiVersion() && driver.cuCtxGetApiVersion(context, &version) == CUDA_SUCCESS) return true;
  return ScopedContext(driver, context).status().ok();
}
}  // namespace

bool is_really_gone(const Driver& driver, CUcontext context, CUresult code) { return is_context_gone(code) && !is_alive(driver, context); }

bool is_lost(const Driver& driver, CUresult code) {
  const bool may_be_lost = code == CUDA_ERROR_UNKNOWN || code == CUDA_ERROR_DEVICE_UNAVAILABLE;
  return may_be_lost && driver.has_cuEventCreate() && Event::create(driver).code() == code;
}

bool is_broken(const Driver& driver) {
  const RelaxedCaptureMode relaxed(driver);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  const CUresult code = driver.cuMemGetInfo_v2(&free_bytes, &total_bytes);
  return is_of_earlier_work(code) || is_lost(driver, code);
}

/// The driver refused to answer about one context. If it is broken or gone, nothing of it runs any more; otherwise nothing is known yet.
FenceResult Fence::judge(DeviceState& device, FencePoint& point, CUresult code, CUcontext asking, const char* where) {
  if (code == CUDA_ERROR_DEINITIALIZED) {
    device.services.stopped.store(true, std::memory_order_relaxed);
    return {FenceAnswer::pending, {code, where}};
  }
  if (point.home->registered.context == asking) return {FenceAnswer::pending, is_of_earlier_work(code) ? Error{code, where} : Error{}};
  if (!ends_context(code) || (!is_of_earlier_work(code) && is_alive(device.driver, point.home->registered.context)))
    return {FenceAnswer::pending, {}};
  point.done = true;
  return {FenceAnswer::done, {}};
}

FenceResult Fence::poll(DeviceState& device, CUcontext asking) {
  PoolServices& services = device.services;
  const CaptureGate::Pass pass(services.gate);
  for (FencePoint& point : points_) {
    if (point.done) continue;
    const FenceResult polled = poll_point(device, pass, point, asking);
    if (polled.answer != FenceAnswer::done) return polled;
  }
  return {FenceAnswer::done, {}};
}

void Fence::poll_where_asked(DeviceState& device) {
  if (is_over_where_asked()) return;
  const CaptureGate::Pass pass(device.services.gate);
  poll_point(device, pass, points_.front(), nullptr);
}

bool Fence::is_over_in(DeviceState& device, const ContextPool& home) {
  const auto point = std::find_if(points_.begin(), points_.end(), [&home](const FencePoint& one) { return one.home == &home; });
  if (point == points_.end() || point->done) return point != points_.end();
  const CaptureGate::Pass pass(device.services.gate);
  return poll_point(device, pass, *point, nullptr).answer == FenceAnswer::done;
}

bool Fence::covers(const ContextPool& home) const {
  return std::any_of(points_.begin(), points_.end(), [&home](const FencePoint& point) { return point.home == &home; });
}

/// Polls a point whose context is not pinned yet.
FenceResult Fence::poll_point(DeviceState& device, const CaptureGate::Pass& pass, FencePoint& point, CUcontext asking) {
  ContextRegistry& contexts = device.services.contexts;
  const Pin pin = contexts.pin(point.home, point.life);
  if (pin == Pin::ending) return {FenceAnswer::pending, {}};
  if (pin == Pin::gone) {
    point.done = true;
    point.event = nullptr;
    return {FenceAnswer::done, {}};
  }
  const FenceResult answer = ask_point(device, pass, point, asking);
  contexts.unpin(point);
  return answer;
}

/// Precondition: the point's context is pinned. Where the answer is `done`, so is the point.
FenceResult Fence::ask_point(DeviceState& device, const CaptureGate::Pass& pass, FencePoint& point, CUcontext asking) {
  const RelaxedCaptureMode relaxed(device.driver, !pass.allowed());
  const CUresult code = device.driver.cuEventQuery(point.event);
  point.refusals = code == CUDA_SUCCESS || code == CUDA_ERROR_NOT_READY
                       ? 0
                       : std::min<std::uint8_t>(static_cast<std::uint8_t>(point.refusals + 1), FencePoint::kRefused);
  if (code == CUDA_ERROR_NOT_READY) return {FenceAnswer::pending, {}};
  if (code != CUDA_SUCCESS) return judge(device, point, code, asking, "cuEventQuery");
  point.done = true;
  return {FenceAnswer::done, {}};
}

bool Fence::has_pinned(const FencePoint& point) const {
  return std::any_of(points_.begin(), points_.end(), [&point](const FencePoint& own) { return own.home == point.home && own.life == point.life; });
}

FenceResult Fence::poll_for(DeviceState& device, std::uint64_t bound_ns) {
  const std::uint64_t pause_ns = std::max<std::uint64_t>(10'000, bound_ns / 1000);
  Clock& clock = device.services.clock;
  const std::uint64_t until_ns = clock.now_ns() + bound_ns;
  FenceResult result = poll(device, nullptr);
  while (result.is_pending() && clock.now_ns() < until_ns) {
    clock.pause(pause_ns);
    result = poll(device, nullptr);
  }
  return result;
}

FenceResult Fence::wait(DeviceState& device, CUcontext context, CUcontext asking) {
  PoolServices& services = device.services;
  for (FencePoint& point : points_) {
    if (point.done) continue;
    if (services.contexts.pin(point.home, point.life) != Pin::held) continue;  // poll() finds out what became of the context
    FenceResult judged{FenceAnswer::done, {}};
    if ((context == nullptr || point.home->registered.context == context) && !services.gate.capturing()) {
      const RelaxedCaptureMode relaxed(device.driver);
      const CUresult code = device.driver.cuEventSynchronize(point.event);
      if (code == CUDA_SUCCESS) point.done = true;
      else judged = judge(device, point, code, asking, "cuEventSynchronize");
    }
    services.contexts.unpin(point.home);
    if (judged.error.code != CUDA_SUCCESS) return judged;
    if (point.done) services.contexts.give_back(point);
  }
  return poll(device, asking);
}

namespace {
/// Synchronises twice where the first answer says nothing about the work: before the next free nothing else would tell that what was freed is over.
CUresult synchronise_context(const Driver& driver, CUcontext context) {
  const auto synchronise = [&] {
    const ScopedContext current(driver, context);
    return current.status().ok() ? driver.cuCtxSynchronize() : current.status().code();
  };
  const CUresult code = synchronise();
  return code == CUDA_SUCCESS || code == CUDA_ERROR_DEINITIALIZED || is_of_earlier_work(code) ? code : synchronise();
}
}  // namespace

FenceResult synchronise_contexts(DeviceState& device, CUcontext asking, const DeviceState* only) {
  PoolServices& services = device.services;
  std::vector<FencePoint> points;
  CUcontext calling = nullptr;
  if (only != nullptr && device.driver.cuCtxGetCurrent(&calling) != CUDA_SUCCESS) calling = nullptr;
  const CaptureGate::Synchronising synchronising(services.gate);
  const auto pin_all = [&] { return services.contexts.pin_all(points, only, calling, ContextRegistry::Ending::left_out); };
  // Tried twice: one request for host memory may fail.
  if (!synchronising.allowed() || (!pin_all() && !pin_all())) return {FenceAnswer::impossible, {}};
  services.contexts.unpin_all(points);  // each is pinned in its turn, so that a thread that ends another context does not wait for this one's work
  FenceResult result{services.contexts.has_ending(only, calling) ? FenceAnswer::impossible : FenceAnswer::done, {}};
  for (FencePoint& point : points) {
    if (services.gate.capturing()) {  // a capture that begins waits for this thread, but not without end
      result.answer = FenceAnswer::impossible;
      break;
    }
    const Pin pin = services.contexts.pin(point.home, point.life);
    if (pin == Pin::ending) result.answer = FenceAnswer::impossible;
    if (pin != Pin::held) continue;
    const Unpinner unpinner(services.contexts, point.home);
    const CUcontext context = point.home->registered.context;  // pinned: it does not change
    const RelaxedCaptureMode relaxed(device.driver);
    const CUresult code = synchronise_context(device.driver, context);
    if (code == CUDA_ERROR_DEINITIALIZED) services.stopped.store(true, std::memory_order_relaxed);
    // Another context's sticky error means that its work has ended; this context's is the answer to the program's call.
    if (code == CUDA_SUCCESS) continue;
    const bool is_answer = code == CUDA_ERROR_DEINITIALIZED || (context == asking && is_of_earlier_work(code));
    if (is_answer) result.error = {code, "cuCtxSynchronize"};
    // Its work may still run.
    else if (!is_of_earlier_work(code) && result.answer == FenceAnswer::done && !is_really_gone(device.driver, context, code))
      result.answer = FenceAnswer::impossible;
  }
  for (FencePoint& point : points) services.contexts.give_back(point);
  return result;
}

void Fence::follow(const Fence& newer) {
  for (FencePoint& point : points_)
    point.done = point.done || std::any_of(newer.points_.begin(), newer.points_.end(), [&point](const FencePoint& other) {
                   return other.done && other.home == point.home && other.life == point.life;
                 });
}

bool Fence::is_over() const {
  return std::all_of(points_.begin(), points_.end(), [](const FencePoint& point) { return point.done; });
}

void Fence::leave_out(const ContextPool& home) {
  for (FencePoint& point : points_) point.done = point.done || point.home == &home;
}

void Fence::clear(ContextRegistry& contexts) {
  for (FencePoint& point : points_) contexts.give_back(point);
  points_.clear();
  has_asking_ = false;
}

}  // namespace cupool::device
