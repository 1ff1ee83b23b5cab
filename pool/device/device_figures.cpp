// What a report and cuMemGetInfo say of one device, and whether its books agree.
#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/device/context_lanes.hpp"
#include "pool/device/device_pool.hpp"

namespace cupool::device {

std::uint64_t DevicePool::plain_bytes() {
  const MutexLock lock(device_.lock);
  const std::uint64_t live_bytes = device_.counters().live_bytes.now();
  return saturating_sub(live_bytes, device_.driver_served_bytes);
}

/// Regions that were freed in stream order and that the driver has not got to yet are waited for, up to 50 ms; then they count as its free memory.
/// Whether it counts some of them already cannot be asked.
void DevicePool::count_late(std::size_t* free_bytes) {
  constexpr int kMostWaits = 25;  // of 2 ms each
  if (giving_back_.late_bytes() == 0) return;
  for (int waits = 0; waits < kMostWaits && giving_back_.late_bytes() != 0; ++waits) static_cast<void>(giving_back_.await_late(device_));
  *free_bytes = driver_free_.sample(device_).value_or(*free_bytes);
  const std::uint64_t held_bytes = std::min(device_.limit.held_bytes(), device_.total_bytes);
  *free_bytes = std::max<std::uint64_t>(*free_bytes, std::min(*free_bytes + giving_back_.late_bytes(), device_.total_bytes - held_bytes));
}

void DevicePool::adjust_mem_info(CUcontext context, std::size_t* free_bytes, std::size_t* total_bytes) {
  // Above its release threshold the driver's pool gave memory back when the program last waited.
  if (used()) idle_pools_.update_ours(device_, 0, true);
  idle_pools_.update_others(device_, true);
  device_.publish_driver_free(*free_bytes);  // of the same moment
  const MutexLock lock(device_.lock);
  magazines_.close_all(device_);
  count_late(free_bytes);
  const auto is_in_use = [](const auto& home) { return home->is_in_use(); };
  // Retiring frees in another context lets its regions go back.
  if (std::count_if(homes_.begin(), homes_.end(), is_in_use) > 1 && may_call_driver()) {
    static_cast<void>(deferral_.close_epoch(device_, nullptr, Deferral::Closing::late));
    stream_frees_.retire_all(device_, nullptr, false);
  }
  const std::uint64_t limit_bytes = device_.limit.limit_bytes();
  if (limit_bytes != 0) *total_bytes = std::min<std::size_t>(*total_bytes, limit_bytes);
  std::uint64_t pool_free_bytes = 0;
  std::uint64_t unit_bytes = kBlockAlignment_bytes;
  for (const auto& home : homes_) {
    if (!home->is_in_use()) continue;
    if (home->context == context && home->pooled != nullptr) unit_bytes = home->pooled->unit_bytes();
    // Of other contexts, what would go back to the driver for an allocation of this one; their lanes would be emptied for that.
    pool_free_bytes +=
        home->context == context ? figures_of(*home, device_).free_bytes : figures_of_all_lanes_of(*home, device_, 1).wholly_free_bytes;
  }
  // Natively these frees would have waited, so what is deferred is as good as free.
  pool_free_bytes += device_.counters().deferred_bytes.now();
  // Whole blocks only: what is promised here must be available to one allocation, whose size is rounded up. Of a limit that is no multiple of a page a
  // block that begins in the pool's memory cannot have the rest, one of the driver's own can.
  const std::uint64_t headroom_bytes = align_down(device_.limit.headroom_bytes(), kBlockAlignment_bytes);
  const std::uint64_t from_driver_bytes = std::min<std::uint64_t>(*free_bytes, headroom_bytes);
  const std::uint64_t joined_bytes = headroom_bytes < *free_bytes ? align_down(headroom_bytes, unit_bytes) : from_driver_bytes;
  *free_bytes = std::min<std::size_t>(*total_bytes, std::max(joined_bytes + pool_free_bytes, from_driver_bytes));
}

std::string DevicePool::check() {
  const MutexLock lock(device_.lock);
  if (std::string broken = magazines_.check(device_); !broken.empty()) return broken;
  std::uint64_t reserved_bytes = driver_blocks_.bytes();
  for (const auto& home : homes_) {
    if (!home->is_in_use()) continue;
    if (std::string broken = lanes::check_stamps(device_, *home); !broken.empty()) return broken;
    for (DeviceAllocator* allocator : {home->pooled.get(), static_cast<DeviceAllocator*>(&home->natives)}) {
      if (allocator == nullptr) continue;
      if (std::string broken = allocator->check(device_); !broken.empty()) return broken;
      reserved_bytes += allocator->figures(device_).region_bytes;
    }
  }
  const observe::Counters& counters = device_.counters();
  if (device_.driver_served_bytes != driver_blocks_.bytes()) return "what the driver serves is not the sum of its blocks";
  if (reserved_bytes != counters.reserved_bytes.now()) return "reserved_bytes is not the sum of the regions";
  if (reserved_bytes + device_.leaving_bytes + counters.outside_bytes.now() != device_.limit.held_bytes())
    return "held bytes are not what is reserved and outside";
  std::uint64_t stamped_bytes = 0;
  for (const auto& home : homes_) stamped_bytes += home->streams.deferred_bytes();
  return deferred_.check(counters.deferred_bytes.now() - stamped_bytes);
}

}  // namespace cupool::device
