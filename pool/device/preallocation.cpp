// CUPOOL_PREALLOCATE: taken at the device's first pooled allocation.
#include <algorithm>
#include <new>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"

namespace cupool::device {

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
  const std::uint64_t free_bytes = driver_free_.sample(device_).value_or(device_.total_bytes);
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
