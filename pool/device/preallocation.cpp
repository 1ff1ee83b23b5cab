// CUPOOL_PREALLOCATE: see preallocation.hpp.
#include "pool/device/preallocation.hpp"

#include <algorithm>
#include <limits>
#include <new>

#include "pool/core/bytes.hpp"
#include "pool/device/patience.hpp"

namespace cupool::device {

void Preallocation::await(DeviceState& device) {
  Patience patience(device.services.clock, std::numeric_limits<std::uint64_t>::max(), 0, 0);
  while (is_under_way_) {
    if (home_ != nullptr && home_->pooled != nullptr && home_->pooled->is_stalled(device)) return;
    const MutexUnlock unlocked(device.lock);
    patience.pause();
  }
}

void Preallocation::take(DeviceState& device, ContextPool& home) {
  is_done_ = true;
  home_ = &home;
  const std::optional<config::Amount>& amount = device.services.options.preallocate;
  if (!amount) return;
  struct Going {
    bool& is_going;
    ~Going() { is_going = false; }  // also on an exception: waiting threads would wait for ever
  } const going{is_under_way_ = true};
  const std::uint64_t asked_bytes = align_down(amount->resolve(device.total_bytes), kRegionGranularity_bytes);
  const std::uint64_t free_bytes = driver_free_.sample(device).value_or(device.total_bytes);
  std::uint64_t bytes = align_down(std::min({asked_bytes, device.limit.headroom_bytes(), free_bytes}), kRegionGranularity_bytes);
  CUresult code = CUDA_SUCCESS;
  try {
    while (bytes != 0 && (code = reserve(device, home, bytes)) == CUDA_ERROR_OUT_OF_MEMORY)
      // What was reported free was an estimate: other processes and the driver itself need some.
      bytes = align_down(bytes - bytes / 10, kRegionGranularity_bytes);
  } catch (const std::bad_alloc&) {  // host memory is out: the next allocation tries again
    is_done_ = false;
    home_ = nullptr;
    return;
  }
  // `async`: the driver had not completed the free in time.
  if (code == CUDA_ERROR_NOT_READY) bytes = std::min(bytes, align_down(device.idle_bytes, kRegionGranularity_bytes));
  else if (code != CUDA_SUCCESS) bytes = 0;
  device.log(config::LogLevel::info, [bytes] { return observe::human_bytes(bytes) + " preallocated"; });
  if (bytes != asked_bytes) warn_of_less(device, {bytes, asked_bytes, free_bytes}, code);
}

CUresult Preallocation::reserve(DeviceState& device, ContextPool& home, std::uint64_t bytes) const {
  if (policy_ != config::Policy::async) return home.pooled->reserve(device, home, bytes).code();
  CUresult code = CUDA_SUCCESS;
  {
    const MutexUnlock unlocked(device.lock);
    code = static_cast<AsyncBlocks&>(home.natives.source()).prime(device, home, bytes);
  }
  home.natives.book_idle(device);
  return code;
}

void Preallocation::warn_of_less(DeviceState& device, const Taken& taken, CUresult code) {
  const auto mib = [](std::uint64_t value) { return std::to_string(value / kMiB) + " MiB"; };
  const bool is_limited = device.limit.limit_bytes() != 0 && device.limit.limit_bytes() < taken.asked_bytes;
  const std::string why = code != CUDA_SUCCESS && code != CUDA_ERROR_OUT_OF_MEMORY ? "the driver answered " + std::to_string(code)
                          : is_limited                                             ? "CUPOOL_LIMIT is " + mib(device.limit.limit_bytes())
                                                                                   : mib(taken.free_bytes) + " were free";
  device.services.warn("CUPOOL_PREALLOCATE: GPU " + std::to_string(device.ordinal) + " gave " + mib(taken.bytes) + " of " + mib(taken.asked_bytes) +
                       " (" + why + ")");
}

void Preallocation::forget(const ContextPool& home) {
  if (home_ != &home) return;
  is_done_ = false;
  home_ = nullptr;
}

}  // namespace cupool::device
