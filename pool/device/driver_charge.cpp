// The limit's account for calls that the driver serves: see driver_charge.hpp.
#include "pool/device/driver_charge.hpp"

#include <algorithm>
#include <utility>

#include "pool/core/bytes.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

namespace {
constexpr std::uint32_t kTakenBackPauses = 100;  ///< how often a free on a stream with nothing else to do is polled for
constexpr std::uint32_t kPausesInTurn = 4;       ///< and how often while nobody else may take memory
}  // namespace

bool DriverCharge::take() {
  begin_turn();
  if (charge()) return true;
  end_turn();  // whoever makes room may wait for long
  return false;
}

void DriverCharge::begin_turn() {
  if (!std::exchange(has_turn_, true)) turn_ = device_.growth.begin(bytes_);
}

void DriverCharge::end_turn() {
  turn_.end();
  has_turn_ = false;
}

bool DriverCharge::charge() {
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
  begin_turn();
  passed_bytes_ = device_.limit.passed_bytes();
  held_bytes_ = device_.limit.held_bytes() - (bytes_ - covered_bytes_);
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

bool DriverCharge::is_beyond_limit(CUdeviceptr address) {
  // Until the block is booked, its rounding counts as idle as well.
  const std::uint64_t rounding_bytes = bytes_ - request_.bytes;
  const bool is_late = device_.growth.is_late(address, bytes_);
  if (beyond_bytes() <= rounding_bytes && !is_late) return false;
  const MutexLock lock(device_.lock);
  const auto others_move = [&]() CUPOOL_REQUIRES(device_.lock) {
    return (device_.leaving_bytes | device_.idle_covered_bytes | device_.mempools_covered_bytes) != 0;
  };
  for (std::uint32_t pauses = 0; pauses < NativeBlocks::kMostPauses && others_move() && beyond_bytes() > rounding_bytes; ++pauses) {
    const MutexUnlock unlocked(device_.lock);
    device_.services.clock.pause(kDriverCallPause_ns);
  }
  grown_bytes_ = saturating_sub(device_.limit.held_bytes(), held_bytes_);
  if (const std::uint64_t passed_bytes = beyond_bytes(); passed_bytes > rounding_bytes) trim(passed_bytes - rounding_bytes);
  return beyond_bytes() > rounding_bytes || is_late;
}

bool DriverCharge::take_back(CUdeviceptr address) {
  if (!device_.driver.has_cuMemFreeAsync() || !device_.services.may_call_driver()) return false;
  {
    const RelaxedCaptureMode relaxed(device_.driver);
    if (device_.driver.cuMemFreeAsync(address, request_.handle) != CUDA_SUCCESS) return false;
  }
  idle_pools_.update_ours(device_, 0, true);
  idle_pools_.update_others(device_, true);
  if (std::exchange(is_held_, false)) device_.limit.refund(bytes_);
  const MutexLock lock(device_.lock);
  for (std::uint32_t pauses = 0; pauses < kTakenBackPauses && beyond_bytes() != 0; ++pauses) {
    trim(beyond_bytes());
    if (beyond_bytes() == 0) break;
    if (pauses == kPausesInTurn) {
      device_.growth.note_late(address, bytes_, grown_bytes_);
      end_turn();
    }
    const MutexUnlock unlocked(device_.lock);
    device_.services.clock.pause(kDriverCallPause_ns);
  }
  if (device_.limit.passed_bytes() == 0) device_.growth.forget_late();
  end_turn();
  return true;
}

void DriverCharge::keep() {
  is_held_ = false;
  end_turn();
}

void DriverCharge::refund() {
  if (std::exchange(is_held_, false)) device_.limit.refund(bytes_);
  end_turn();
}

/// `all_bytes`: a sum that is guarded by the device's lock.
void DriverCharge::cover(std::uint64_t by_bytes, std::uint64_t& all_bytes) {
  covered_bytes_ = by_bytes;
  all_bytes += by_bytes;
  is_held_ = true;
}

}  // namespace cupool::device
