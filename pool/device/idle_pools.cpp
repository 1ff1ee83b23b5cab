// Idle memory in the driver's memory pools: see idle_pools.hpp.
#include "pool/device/idle_pools.hpp"

#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

void IdlePools::update_ours(DeviceState& device, std::int64_t freed_bytes, bool must_ask, std::uint64_t covered_bytes) {
  if (policy_ != config::Policy::async || (covered_bytes == 0 && !device.services.may_call_driver())) return;
  const MutexLock lock(device.lock);
  must_ask = must_ask || device.limit.limit_bytes() != 0 || unasked_of_ours_-- == 0;
  if (must_ask) unasked_of_ours_ = kUnaskedCalls;
  for (std::size_t i = 0; i < homes_.size() && device.services.may_call_driver(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    const PinnedContext pinned(device.services.contexts, &home, home.context);
    if (!pinned) continue;
    if (must_ask) {
      const MutexUnlock unlocked(device.lock);
      home.natives.source().ask_idle(device);
    } else {
      device.driver_pool.reckon(freed_bytes);
    }
    home.natives.book_idle(device, covered_bytes);
    return;  // the pool belongs to the device, whichever context's books show it
  }
  device.limit.hold(covered_bytes, 0);
  device.idle_covered_bytes -= covered_bytes;
}

void IdlePools::update_others(DeviceState& device, bool must_ask, std::uint64_t covered_bytes) {
  if (covered_bytes == 0 && !are_others_asked(device)) return;
  const MutexLock lock(device.lock);
  must_ask = must_ask || device.limit.limit_bytes() != 0 || unasked_of_others_-- == 0;
  if (must_ask) {
    unasked_of_others_ = kUnaskedCalls;
    static_cast<void>(ask_others(device));
  }
  book_others(device, covered_bytes);
}

PoolIdle IdlePools::ask_others(DeviceState& device, CUmemoryPool named) {
  if (!are_others_asked(device)) return {};
  const std::uint64_t ticket = device.mempools_idle.ticket();
  PoolIdle idle;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    idle = device.services.driver_pools.ask(device.driver, device.ordinal, policy_ != config::Policy::async, named);
  }
  if (idle.counts_requested) device.mempools_idle.note_used(1);
  device.mempools_idle.update(ticket, idle.kept_bytes);
  book_others(device);
  return idle;
}

void IdlePools::book_others(DeviceState& device, std::uint64_t covered_bytes) {
  std::uint64_t now_bytes = device.mempools_idle.idle_bytes();
  // The books count the rounding of blocks as theirs; a driver that counts requested sizes reports it as idle.
  if (device.mempools_idle.counts_requested()) now_bytes -= std::min(now_bytes, blocks_.rounding_elsewhere_bytes());
  std::atomic<std::uint64_t>& gauge = device.live.outside.mempools;
  const std::uint64_t before_bytes = gauge.load(std::memory_order_relaxed);
  gauge.store(now_bytes, std::memory_order_relaxed);
  device.counters().outside_bytes.add(static_cast<std::int64_t>(now_bytes - before_bytes));
  device.limit.hold(now_bytes + covered_bytes, before_bytes);
  device.mempools_covered_bytes -= covered_bytes;
}

void IdlePools::book_rounding(DeviceState& device) {
  if (device.mempools_idle.counts_requested()) book_others(device);
  if (policy_ != config::Policy::async || device.pool_rounding_bytes == blocks_.rounding_bytes()) return;
  device.pool_rounding_bytes = blocks_.rounding_bytes();
  const auto home = std::find_if(homes_.begin(), homes_.end(), [](const auto& one) { return one->context != nullptr; });
  if (home != homes_.end()) (*home)->natives.book_idle(device);
}

std::optional<std::uint64_t> IdlePools::charge_ours(DeviceState& device, std::uint64_t bytes) {
  for (std::size_t i = 0; i < homes_.size(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    const PinnedContext pinned(device.services.contexts, &home, home.context);
    if (!pinned) continue;
    return home.natives.charge(device, bytes);
  }
  return std::nullopt;
}

std::optional<std::uint64_t> IdlePools::charge_named(DeviceState& device, CUmemoryPool pool, std::uint64_t bytes) {
  if (device.growth.has_late()) {
    trim_others(device, device.limit.passed_bytes());
    if (device.limit.passed_bytes() == 0) device.growth.forget_late();
  }
  const std::uint64_t idle_bytes = std::min(ask_others(device, pool).named_kept_bytes, device.live.outside.mempools.load(std::memory_order_relaxed));
  const std::uint64_t covered_bytes = std::min(saturating_sub(idle_bytes, device.mempools_covered_bytes), bytes);
  if (!device.limit.charge(bytes - covered_bytes)) return std::nullopt;
  return covered_bytes;
}

std::uint64_t IdlePools::trim_ours(DeviceState& device, std::uint64_t keep_bytes, std::uint64_t wanted_bytes) {
  std::uint64_t released_bytes = 0;
  for (std::size_t i = 0; i < homes_.size() && keep_bytes == 0 && released_bytes < wanted_bytes; ++i) {
    ContextPool& home = *homes_[i];
    const PinnedContext pinned(device.services.contexts, &home, home.context);
    if (!pinned) continue;
    Mover mover(moves_);
    const std::uint64_t trimmed_bytes = home.natives.trim(device, wanted_bytes - released_bytes);
    mover.note_given_back(device, trimmed_bytes);
    released_bytes += trimmed_bytes;
  }
  return released_bytes;
}

std::uint64_t IdlePools::trim_others(DeviceState& device, std::uint64_t wanted_bytes) {
  if (!are_others_asked(device) || wanted_bytes == 0) return 0;
  Mover mover(moves_);
  std::uint64_t trimmed_bytes = 0;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    trimmed_bytes = device.services.driver_pools.trim(device.driver, device.ordinal, policy_ != config::Policy::async, wanted_bytes);
  }
  if (trimmed_bytes != 0) static_cast<void>(ask_others(device));
  mover.note_given_back(device, trimmed_bytes);
  return trimmed_bytes;
}

}  // namespace cupool::device
