// The limit's account for calls that the driver serves: see driver_charge.hpp.
#include "pool/device/driver_charge.hpp"

#include <algorithm>
#include <utility>

#include "pool/core/bytes.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
constexpr std::uint32_t kTakenBackPauses = 100;  ///< how often a free on a stream with nothing else to do is polled for
}  // namespace

bool DriverCharge::take() {
  is_held_ = device_.limit.charge(bytes_);
  if (is_held_ || !device_.services.may_call_driver()) return is_held_;
  if (!idle_pools_.is_ours(request_.is_of_default_pool)) {
    if (!IdlePools::are_others_asked(device_)) return false;
    const CUmemoryPool pool = request_.mempool ? request_.mempool() : nullptr;
    const MutexLock lock(device_.lock);
    const std::optional<std::uint64_t> covered_bytes = idle_pools_.charge_named(device_, pool, bytes_);
    if (covered_bytes) cover(*covered_bytes, device_.mempools_covered_bytes);
    return covered_bytes.has_value();
  }
  for (const bool is_asked : {false, true}) {  // second pass: with the frees that the driver has completed since it was last asked
    if (is_asked) idle_pools_.update_ours(device_, 0, true);
    const MutexLock lock(device_.lock);
    const std::optional<std::uint64_t> covered_bytes = idle_pools_.charge_ours(device_, bytes_);
    if (!covered_bytes) continue;
    cover(*covered_bytes, device_.idle_covered_bytes);
    return true;
  }
  return false;
}

CUresult DriverCharge::run(const std::function<CUresult()>& call) {
  const CUresult result = call();
  const bool is_ours = idle_pools_.is_ours(request_.is_of_default_pool);
  const std::uint64_t used_bytes = device_.driver_pool.counts_requested() ? request_.bytes : bytes_;
  idle_pools_.update_ours(device_, result == CUDA_SUCCESS && is_ours ? -static_cast<std::int64_t>(used_bytes) : 0, result != CUDA_SUCCESS,
                          is_ours ? covered_bytes_ : 0);
  if (!is_ours) idle_pools_.update_others(device_, result != CUDA_SUCCESS, covered_bytes_);
  covered_bytes_ = 0;
  return result;
}

void DriverCharge::trim(std::uint64_t wanted_bytes) {
  if (idle_pools_.is_ours(request_.is_of_default_pool)) idle_pools_.trim_ours(device_, 0, wanted_bytes);
  else idle_pools_.trim_others(device_, wanted_bytes);
}

bool DriverCharge::is_beyond_limit() {
  if (!was_covered_) return false;
  // Until the block is booked, its rounding counts as idle as well.
  const std::uint64_t most_bytes = passed_bytes_ + (bytes_ - request_.bytes);
  if (device_.limit.passed_bytes() <= most_bytes) return false;
  const MutexLock lock(device_.lock);
  const auto others_move = [&]() CUPOOL_REQUIRES(device_.lock) {
    return (device_.leaving_bytes | device_.idle_covered_bytes | device_.mempools_covered_bytes) != 0;
  };
  for (std::uint32_t pauses = 0; pauses < NativeBlocks::kMostPauses && others_move() && device_.limit.passed_bytes() > most_bytes; ++pauses) {
    const MutexUnlock unlocked(device_.lock);
    device_.services.clock.pause(kDriverCallPause_ns);
  }
  if (const std::uint64_t passed_bytes = device_.limit.passed_bytes(); passed_bytes > most_bytes) trim(passed_bytes - most_bytes);
  return device_.limit.passed_bytes() > most_bytes;
}

bool DriverCharge::take_back(CUdeviceptr address) {
  if (!device_.driver.has_cuMemFreeAsync() || !device_.services.may_call_driver()) return false;
  {
    const RelaxedCaptureMode relaxed(device_.driver);
    if (device_.driver.cuMemFreeAsync(address, request_.handle) != CUDA_SUCCESS) return false;
  }
  idle_pools_.update_ours(device_, 0, true);
  idle_pools_.update_others(device_, true);
  refund();
  was_covered_ = false;
  const MutexLock lock(device_.lock);
  const auto beyond_bytes = [&] { return saturating_sub(device_.limit.passed_bytes(), passed_bytes_); };
  for (std::uint32_t pauses = 0; pauses < kTakenBackPauses && beyond_bytes() != 0; ++pauses) {
    trim(beyond_bytes());
    const MutexUnlock unlocked(device_.lock);
    device_.services.clock.pause(kDriverCallPause_ns);
  }
  device_.taken_back_bytes = std::max(device_.taken_back_bytes, beyond_bytes());
  return true;
}

void DriverCharge::refund() {
  if (std::exchange(is_held_, false)) device_.limit.refund(bytes_);
}

/// `all_bytes`: a sum that is guarded by the device's lock.
void DriverCharge::cover(std::uint64_t by_bytes, std::uint64_t& all_bytes) {
  covered_bytes_ = by_bytes;
  all_bytes += by_bytes;
  was_covered_ = by_bytes != 0;
  passed_bytes_ = device_.limit.passed_bytes();
  is_held_ = true;
}

}  // namespace cupool::device
