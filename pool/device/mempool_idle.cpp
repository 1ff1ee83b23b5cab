// What memory pools keep idle from which the driver serves the program itself: those that the program made, and the device's own where the driver serves that
// (`platform`, and on segments the streams of contexts that cuCtxDestroy may end). It is the program's to have kept, by a release threshold; to everybody else it is gone. So it
// counts as held, and goes back to the device before somebody is refused for it. Under `async` the device's own pool is the pool: native_blocks.cpp.
#include <algorithm>
#include <limits>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

/// Asks and books; nothing, and no question, before the driver has served something here. `named`: a pool about which the caller wants to know.
PoolIdle DevicePool::ask_mempools(CUmemoryPool named) {
  if (!asks_mempools()) return {};
  const std::uint64_t ticket = device_.mempools_idle.ticket();
  PoolIdle idle;
  {
    const MutexUnlock unlocked(device_.lock);
    const RelaxedCaptureMode relaxed(device_.driver);
    idle = device_.services.driver_pools.ask(device_.driver, device_.ordinal, policy_ != config::Policy::async, named);
  }
  if (idle.counts_asked) device_.mempools_idle.note_used(1);
  device_.mempools_idle.tell(ticket, idle.kept_bytes);
  book_mempools();
  return idle;
}

/// What threads were covered by is in their blocks now, or free again: `covered_bytes`.
void DevicePool::book_mempools(std::uint64_t covered_bytes) {
  std::uint64_t now_bytes = device_.mempools_idle.idle_bytes();
  // What blocks are rounded to is in their bytes; a driver that counts what was asked for calls it idle.
  if (device_.mempools_idle.counts_asked()) now_bytes -= std::min(now_bytes, driver_blocks_.rounding_elsewhere_bytes());
  std::atomic<std::uint64_t>& gauge = device_.live.outside.mempools;
  const std::uint64_t before_bytes = gauge.load(std::memory_order_relaxed);
  gauge.store(now_bytes, std::memory_order_relaxed);
  device_.counters().outside_bytes.add(static_cast<std::int64_t>(now_bytes - before_bytes));
  device_.limit.hold(now_bytes + covered_bytes, before_bytes);
  device_.mempools_covered_bytes -= covered_bytes;
}

/// What must come back from there so that limit and driver have `bytes` with what the pool can give; 0: nothing is missing, or more than they have idle.
std::uint64_t DevicePool::wanted_of_mempools(std::uint64_t bytes) {
  const std::uint64_t idle_bytes = ask_mempools().bytes;
  if (idle_bytes == 0) return 0;
  const std::uint64_t ours_bytes = figures_.sum(device_).wholly_free_bytes;
  const auto missing_of = [&](std::uint64_t room_bytes) {
    const std::uint64_t all_bytes = room_bytes > std::numeric_limits<std::uint64_t>::max() - ours_bytes ? room_bytes : room_bytes + ours_bytes;
    return bytes - std::min(all_bytes, bytes);
  };
  const std::uint64_t driver_free_bytes = sample_driver_free().value_or(device_.total_bytes);
  const std::uint64_t wanted_bytes = std::max(missing_of(device_.limit.headroom_bytes()), missing_of(driver_free_bytes));
  return wanted_bytes <= idle_bytes ? wanted_bytes : 0;
}

/// Returns bytes. Waits for nothing.
std::uint64_t DevicePool::trim_mempools(std::uint64_t wanted_bytes) {
  if (!asks_mempools() || wanted_bytes == 0) return 0;
  Mover mover(moves_);
  std::uint64_t trimmed_bytes = 0;
  {
    const MutexUnlock unlocked(device_.lock);
    const RelaxedCaptureMode relaxed(device_.driver);
    trimmed_bytes = device_.services.driver_pools.trim(device_.driver, device_.ordinal, policy_ != config::Policy::async, wanted_bytes);
  }
  if (trimmed_bytes != 0) static_cast<void>(ask_mempools());
  mover.note_given_back(device_, trimmed_bytes);
  return trimmed_bytes;
}

}  // namespace cupool::device
