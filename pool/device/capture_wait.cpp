// Deferral: a plain free while something captures. No event may be recorded then. But where the driver would have served the free, it would have
// waited for running work; so this waits too, by the same call: the driver's own free, of a block that is allocated for that.
//
// cuMemFree is potentially unsafe during a capture, but does not end one while the thread's mode is relaxed (CUDA Driver API 13.0,
// cuThreadExchangeStreamCaptureMode). Where the driver would have refused the program's free, nothing is waited for. In contexts whose work a native
// free does not wait for, events are recorded if the context takes no part in the capture. If one does, the block waits for the capture's end, unless
// memory is out: then it is free on native terms (native_terms.cpp).
// wait_for_context() uses the same call: for closing another process's memory, where the driver's own close would have waited.
#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/device/deferral.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {

constexpr std::size_t kChunk_bytes = 2 * kMiB;  ///< the driver takes device memory in pieces of this size
constexpr std::size_t kSmallest_bytes = 512;    ///< may fit into a piece that the driver has already
/// Of managed memory, which takes nothing of the device before it is touched; its free waits too (H100 and H200, driver 580).
constexpr std::size_t kManaged_bytes = 64 * kKiB;

/// Bytes of the limit that are held for a scope, if there is room for them.
struct Charged {
  LimitAccount& limit;
  const std::uint64_t bytes;
  const bool is_held;
  Charged(LimitAccount& of, std::uint64_t wanted_bytes) : limit(of), bytes(wanted_bytes), is_held(of.charge(wanted_bytes)) {}
  ~Charged() {
    if (is_held) limit.refund(bytes);
  }
  Charged(const Charged&) = delete;
  Charged& operator=(const Charged&) = delete;
};

/// Allocates a block in `context` and frees it by cuMemFree: when that has returned, what was submitted there before is over. The driver's answer;
/// CUDA_ERROR_OUT_OF_MEMORY: there was no memory for the block.
CUresult free_a_block(DeviceState& device, CUcontext context) {
  const ScopedContext current(device.driver, context);
  if (!current.status().ok()) return current.status().code();
  CUdeviceptr block = 0;
  CUresult code = CUDA_ERROR_OUT_OF_MEMORY;
  const Charged chunk(device.limit, kChunk_bytes);
  if (chunk.is_held) code = device.driver.cuMemAlloc_v2(&block, kChunk_bytes);
  if (code == CUDA_ERROR_OUT_OF_MEMORY) code = device.driver.cuMemAlloc_v2(&block, kSmallest_bytes);
  if (code == CUDA_ERROR_OUT_OF_MEMORY && device.driver.has_cuMemAllocManaged())
    code = device.driver.cuMemAllocManaged(&block, kManaged_bytes, CU_MEM_ATTACH_GLOBAL);
  if (code != CUDA_SUCCESS) return code;
  code = device.driver.cuMemFree_v2(block);
  if (code == CUDA_SUCCESS || is_of_earlier_work(code) || is_context_gone(code)) return code;
  return device.driver.cuMemFree_v2(block);  // tried twice, or it would stay for good
}

/// What the answer `code` of free_a_block() says of the context's work. `is_asking`: an error of that work is for the caller to hear.
FenceResult judge(DeviceState& device, CUcontext context, CUresult code, bool is_asking) {
  if (code == CUDA_SUCCESS || is_really_gone(device.driver, context, code)) return {FenceAnswer::done, {}};
  if (code == CUDA_ERROR_DEINITIALIZED) {
    device.services.stopped.store(true, std::memory_order_relaxed);
    return {FenceAnswer::impossible, {code, "cuMemFree_v2"}};
  }
  if (!is_of_earlier_work(code)) return {FenceAnswer::impossible, {}};
  return {FenceAnswer::done, is_asking ? Error{code, "cuMemFree_v2"} : Error{}};
}

}  // namespace

/// Waits as the native free of a block of `asking` by this thread would. `done`: the work that a native free waits for, that of `awaited`, is over. Where
/// `others_known`, all other work that was submitted before, in every context, is over as soon as the fence `others` is.
Deferral::NativeWait Deferral::wait_by_freeing(DeviceState& device, CUcontext asking, Fence& others) {
  PoolServices& services = device.services;
  const RelaxedCaptureMode relaxed(device.driver);
  NativeWait wait{{FenceAnswer::impossible, {}}, {asking, nullptr}, false};
  FenceResult& result = wait.result;
  const std::array<CUcontext, 2>& awaited = wait.awaited;
  if (!relaxed.is_on() || services.gate.forbids(relaxed.before()) || device.driver.cuCtxGetCurrent(&wait.awaited[1]) != CUDA_SUCCESS) return wait;
  wait.others_known = others.record(device, asking, nullptr, awaited).answer == FenceAnswer::done;
  std::vector<FencePoint> points;
  if (services.contexts.pin_all(points)) result.answer = FenceAnswer::done;
  const auto is_awaited = [&](const FencePoint& point) {
    return std::find(awaited.begin(), awaited.end(), point.home->registered.context) != awaited.end();
  };
  const auto others_begin = std::partition(points.begin(), points.end(), is_awaited);  // they are pinned, so that their contexts do not change
  for (auto point = others_begin; point != points.end(); ++point) {  // so that nobody who ends one of these waits for the awaited work
    services.contexts.unpin(point->home);
    services.contexts.give_back(*point);
  }
  points.erase(others_begin, points.end());
  for (std::size_t i = 0; i < points.size() && result.answer == FenceAnswer::done; ++i) {
    const CUcontext context = points[i].home->registered.context;
    DeviceState& its_device = points[i].home->device;
    const FenceResult one = judge(its_device, context, free_a_block(its_device, context), context == asking);
    result.answer = one.answer;
    if (one.error.code != CUDA_SUCCESS) result.error = one.error;
  }
  services.contexts.unpin_all(points);
  for (FencePoint& point : points) services.contexts.give_back(point);
  if (result.answer != FenceAnswer::done) others.clear(services.contexts);
  return wait;
}

namespace {
constexpr std::uint64_t kWaitPause_ns = 10'000;

/// Waits by an event: a capture that another thread begins meanwhile is not ended by it. Not `done`: it is not known whether the work is over.
FenceResult wait_by_event(ContextPool& home, CUcontext context) {
  DeviceState& device = home.device;
  Fence fence;
  FenceResult result = fence.record_in(device, home, context);
  if (result.is_done()) result = fence.wait(device, context, context);
  while (result.is_pending() && device.services.gate.capturing()) {
    device.services.clock.pause(kWaitPause_ns);
    result = fence.wait(device, context, context);
  }
  fence.clear(device.services.contexts);
  return result;
}
}  // namespace

Status wait_for_context(ContextPool& home, CUcontext context) {
  DeviceState& device = home.device;
  PoolServices& services = device.services;
  const FenceResult by_event = wait_by_event(home, context);
  if (by_event.error.code != CUDA_SUCCESS || by_event.answer == FenceAnswer::done) return Status::from(by_event.error.code, by_event.error.where);
  Pin pin = services.contexts.pin(&home, context);
  for (; pin == Pin::ending; pin = services.contexts.pin(&home, context)) services.clock.pause(kWaitPause_ns);  // the context may survive
  if (pin == Pin::gone) return {};
  const CaptureGate::Synchronising synchronising(services.gate);
  const Unpinner unpinner(services.contexts, &home);
  // Something captures. In the thread's own capture mode: what forbids the program's call forbids this one too.
  if (!synchronising.allowed()) return Status::from(free_a_block(device, context), "cuMemFree_v2");
  const ScopedContext current(device.driver, context);
  return current.status().ok() ? Status::from(device.driver.cuCtxSynchronize(), "cuCtxSynchronize") : current.status();
}

Error Deferral::wait_in_capture(DeviceState& device, CUcontext asking) {
  if (deferred_.batch_is_empty() || !device.services.gate.capturing() || !device.services.may_call_driver() || device.disabled) return {};
  Epoch* epoch = deferred_.close();
  if (epoch == nullptr) return {};  // host memory is out: the blocks wait for the capture's end
  const std::uint64_t last_unstamped = deferred_.unstamped().last_number();
  NativeWait wait;
  {
    const MutexUnlock unlocked(device.lock);
    wait = wait_by_freeing(device, asking, epoch->fence);
  }
  epoch->busy = false;
  epoch->recorded_ns = device.services.clock.now_ns();
  if (wait.result.answer != FenceAnswer::done) {
    deferred_.reopen(epoch);
  } else if (!wait.others_known) {
    deferred_.keep_over_natively(epoch, wait.awaited);
  } else {
    epoch->recorded = true;
    Batch unstamped = deferred_.finish_unstamped(last_unstamped);
    epoch->batch.prepend(unstamped);
  }
  return wait.result.error;
}

FreeOutcome Deferral::free_unused_in_capture(DeviceState& device, heap::Extent* extent, std::uint16_t thread) {
  Batch others = std::exchange(deferred_.batch(), {});
  defer(device, extent, thread);
  Epoch* const epoch = deferred_.close();
  deferred_.batch().prepend(others);
  if (epoch == nullptr) return FreeOutcome::freed;  // host memory is out: it waits with the others
  bool is_served = false;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    is_served = relaxed.is_on() && !device.services.gate.forbids(relaxed.before());
  }
  epoch->busy = false;
  epoch->recorded = is_served;              // its fence has no events: it is over
  if (!is_served) deferred_.reopen(epoch);  // it waits for the capture's end
  return FreeOutcome::freed;
}

}  // namespace cupool::device
