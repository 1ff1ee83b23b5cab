// CUPOOL_PREALLOCATE: taken at the device's first pooled allocation; and what the driver says is free.
#include <algorithm>
#include <new>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

std::optional<std::uint64_t> DevicePool::sample_driver_free() {
  static_cast<void>(idle_pools_.ask_others(device_));  // of the same moment: what the driver has given back of that is in what it has free
  const MutexUnlock unlocked(device_.lock);
  const RelaxedCaptureMode relaxed(device_.driver);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (device_.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS) return std::nullopt;
  device_.publish_driver_free(free_bytes);
  return free_bytes;
}

/// Where no context of this device is current either: asked in one that we know. None is begun for it, and no primary one retained: the program's last release would not be the last, and
/// the context end unseen with ours.
std::optional<std::uint64_t> DevicePool::ask_driver_free() {
  if (is_current()) return sample_driver_free();
  ContextRegistry& contexts = device_.services.contexts;
  for (std::size_t i = 0; i < homes_.size(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    const CUcontext context = home.context;
    if (context == nullptr || contexts.pin(&home, context) != Pin::held) continue;
    const Unpinner unpinner(contexts, &home);
    const ScopedContext inside(device_.driver, context);
    if (inside.status().ok()) return sample_driver_free();
  }
  return std::nullopt;
}

/// The calling thread's current context is of this device, and lives: the last release of a primary context leaves it current.
bool DevicePool::is_current() {
  const MutexUnlock unlocked(device_.lock);
  CUcontext context = nullptr;
  if (device_.driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return false;
  if (const ContextPool* home = device_.services.contexts.find(context)) return &home->device == &device_;
  CUdevice current = 0;
  unsigned version = 0;
  const bool lives = device_.driver.has_cuCtxGetApiVersion() && device_.driver.cuCtxGetApiVersion(context, &version) == CUDA_SUCCESS;
  return lives && device_.driver.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device_.ordinal;
}

/// `is_of_device`: the calling thread's current context is known to be of this device; else it is asked for its own.
void DevicePool::sample_first(bool is_of_device) {
  const bool is_known = device_.live.driver_free_unix_ns.load(std::memory_order_relaxed) != 0;
  if (is_known || has_asked_ || capturing() || !may_call_driver()) return;
  if (!is_of_device && !is_current()) return;
  has_asked_ = true;
  static_cast<void>(sample_driver_free());
}

void DevicePool::preallocate(ContextPool& home) {
  preallocated_ = true;
  preallocated_for_ = &home;
  const std::optional<config::Amount>& amount = device_.services.options.preallocate;
  if (!amount) return;
  struct Going {
    bool& is_going;
    ~Going() { is_going = false; }  // also where host memory is out: whoever waits for it would wait for ever
  } const going{preallocating_ = true};
  const std::uint64_t asked_bytes = align_down(amount->resolve(device_.total_bytes), kRegionGranularity_bytes);
  const std::uint64_t free_bytes = sample_driver_free().value_or(device_.total_bytes);
  std::uint64_t bytes = align_down(std::min({asked_bytes, device_.limit.headroom_bytes(), free_bytes}), kRegionGranularity_bytes);
  const auto take = [&]() CUPOOL_REQUIRES(device_.lock) {
    if (policy_ != config::Policy::async) return home.pooled->reserve(device_, home, bytes).code();
    CUresult code = CUDA_SUCCESS;
    {
      const MutexUnlock unlocked(device_.lock);
      code = static_cast<AsyncBlocks&>(home.natives.source()).prime(device_, home, bytes);
    }
    home.natives.book_idle(device_);
    return code;
  };
  CUresult code = CUDA_SUCCESS;
  try {
    while (bytes != 0 && (code = take()) == CUDA_ERROR_OUT_OF_MEMORY)
      bytes = align_down(bytes - bytes / 10, kRegionGranularity_bytes);  // "free" was an estimate: other processes, the driver's own needs
  } catch (const std::bad_alloc&) {  // by the next allocation, then
    preallocated_ = false;
    preallocated_for_ = nullptr;
    return;
  }
  if (code == CUDA_ERROR_NOT_READY) bytes = std::min(bytes, align_down(device_.idle_bytes, kRegionGranularity_bytes));  // `async`: the driver had not come to it in time
  else if (code != CUDA_SUCCESS) bytes = 0;
  device_.tell(config::LogLevel::info, [bytes] { return observe::human_bytes(bytes) + " preallocated"; });
  if (bytes == asked_bytes) return;
  const auto mib = [](std::uint64_t value) { return std::to_string(value / kMiB) + " MiB"; };
  const bool is_limited = device_.limit.limit_bytes() != 0 && device_.limit.limit_bytes() < asked_bytes;
  const std::string why = code != CUDA_SUCCESS && code != CUDA_ERROR_OUT_OF_MEMORY ? "the driver answered " + std::to_string(code)
                          : is_limited                                             ? "CUPOOL_LIMIT is " + mib(device_.limit.limit_bytes())
                                                                                   : mib(free_bytes) + " were free";
  device_.services.warn("CUPOOL_PREALLOCATE: GPU " + std::to_string(device_.ordinal) + " gave " + mib(bytes) + " of " + mib(asked_bytes) + " (" + why + ")");
}

}  // namespace cupool::device
