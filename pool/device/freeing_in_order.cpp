// Returning memory to the driver in the order of a private stream. See freeing_in_order.hpp.
#include "pool/device/freeing_in_order.hpp"

#include "pool/device/context_pool.hpp"
#include "pool/device/fence.hpp"
#include "pool/device/patience.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device::in_order {

namespace {
constexpr std::uint64_t kFreesBound_ns = 2'000'000;  ///< a free takes 0.5 us on an H100
constexpr std::uint64_t kPause_ns = 10'000;
constexpr std::uint32_t kRefusals = 4;  ///< so many refusals without a success between them, and the driver is not asked again

/// Counts a refusal. Whatever the reason, a driver that goes on refusing must not keep regions from being returned by cuMemFree.
void note_refusal(PoolServices& services, CUresult code) {
  const bool is_never_taken = code == CUDA_ERROR_INVALID_VALUE || code == CUDA_ERROR_NOT_SUPPORTED;
  if (is_never_taken || services.refused_in_order.fetch_add(1, std::memory_order_relaxed) + 1 >= kRefusals)
    services.cannot_free_in_order.store(true, std::memory_order_relaxed);
}

/// No event could be recorded behind the frees: the stream, which holds nothing else, is asked itself.
bool await_stream(DeviceState& device, CUstream stream) {
  if (!device.driver.has_cuStreamQuery()) return true;
  Clock& clock = device.services.clock;
  const std::uint64_t until_ns = clock.now_ns() + kFreesBound_ns;
  const RelaxedCaptureMode relaxed(device.driver);
  CUresult code = device.driver.cuStreamQuery(stream);
  while (code == CUDA_ERROR_NOT_READY && clock.now_ns() < until_ns) {
    clock.pause(kPause_ns);
    code = device.driver.cuStreamQuery(stream);
  }
  return code != CUDA_ERROR_NOT_READY;
}

/// Even on an idle device an event takes a moment to complete.
FenceAnswer poll_for_all(DeviceState& device, const DeviceState* only, std::uint64_t bound_ns) {
  Fence fence;
  FenceResult result = fence.record(device, nullptr, only);
  if (result.answer == FenceAnswer::done) result = fence.poll_for(device, bound_ns);
  fence.clear(device.services.contexts);
  return result.answer;
}
}  // namespace

/// Returns a region in the order of the private, idle stream, that is behind nothing; no work can touch it. cuMemFree would wait for all work of the
/// device, which may itself wait for this thread. cuMemFreeAsync of cuMemAlloc memory does not (seen on H100 and H200, driver 580).
CUresult free(DeviceState& device, CUstream stream, CUdeviceptr address) {
  if (stream == nullptr) return device.driver.cuMemFree_v2(address);
  PoolServices& services = device.services;
  const CUresult code = device.driver.cuMemFreeAsync(address, stream);
  if (code == CUDA_SUCCESS) services.refused_in_order.store(0, std::memory_order_relaxed);
  if (code == CUDA_SUCCESS || is_of_earlier_work(code) || is_context_gone(code) || code == CUDA_ERROR_DEINITIALIZED) return code;
  note_refusal(services, code);
  return code;
}

/// The private stream of the context, made at need; null: regions go back by cuMemFree. Where memory was out the next call tries again.
CUstream stream_of(DeviceState& device, ContextPool& home) {
  if (!device.frees_in_order()) return nullptr;
  CUstream stream = home.release_stream.load(std::memory_order_acquire);
  if (stream != nullptr) return stream;
  // The current context may be a green context of this one, and streams made there would end with it.
  const ScopedContext current(device.driver, home.registered.context);
  if (!current.status().ok()) return nullptr;
  if (const CUresult code = device.driver.cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING); code != CUDA_SUCCESS) {
    if (code != CUDA_ERROR_OUT_OF_MEMORY) note_refusal(device.services, code);
    return nullptr;
  }
  CUstream other = nullptr;
  if (home.release_stream.compare_exchange_strong(other, stream, std::memory_order_acq_rel)) return stream;
  device.driver.cuStreamDestroy_v2(stream);
  return other;
}

/// Waits for the stream's own few frees, after which the memory is the device's again. Bounded: the program may have made the whole context wait for
/// an event (cuCtxWaitEvent), and so this stream too, for work that itself waits for the calling thread.
bool await(DeviceState& device, ContextPool& home, CUstream stream) {
  Fence fence;
  FenceResult result = fence.record_on(device, home, home.registered.context, stream, true);
  if (result.answer == FenceAnswer::done) result = fence.poll_for(device, kFreesBound_ns);
  fence.clear(device.services.contexts);
  const bool has_event = result.answer == FenceAnswer::done || result.answer == FenceAnswer::pending;
  return has_event ? result.answer == FenceAnswer::done : await_stream(device, stream);
}

bool can_look(const DeviceState& device) { return device.driver.has_cuCtxRecordEvent() && device.services.has_context_events(); }

bool is_quiet(DeviceState& device, const DeviceState* only) { return poll_for_all(device, only, kQuietBound_ns) == FenceAnswer::done; }

bool is_untouched(DeviceState& device) {
  PoolServices& services = device.services;
  // While something captures nothing can be recorded, and a program that loads a module then must get its memory.
  if (services.options.free != config::FreeMode::immediate || services.gate.capturing()) return true;
  const auto was_in_vain = [&services] {
    const std::uint64_t ended_ns = services.waited_in_vain_ns.load(std::memory_order_relaxed);
    return ended_ns != 0 && services.clock.now_ns() - ended_ns < Patience::kPollBound_ns;
  };
  const std::uint64_t bound_ns = was_in_vain() ? kQuietBound_ns : Patience::kPollBound_ns;
  const FenceAnswer answer = can_look(device) ? poll_for_all(device, nullptr, bound_ns) : FenceAnswer::unsupported;
  if (answer == FenceAnswer::unsupported) return synchronise_contexts(device, nullptr, nullptr).answer == FenceAnswer::done;
  if (answer == FenceAnswer::pending && !was_in_vain()) services.waited_in_vain_ns.store(services.clock.now_ns(), std::memory_order_relaxed);
  return answer == FenceAnswer::done;
}

}  // namespace cupool::device::in_order
