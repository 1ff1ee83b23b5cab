// What the program has outside the pool: it is charged to the limit, booked and refused here; and what the pool gives back for it, or when it is
// asked to.
#include <algorithm>
#include <optional>

#include "pool/core/bytes.hpp"
#include "pool/device/device_pool.hpp"
#include "pool/device/freeing_in_order.hpp"

namespace cupool::device {

namespace {
bool counts_against_limit(OutsideKind kind) { return kind == OutsideKind::array || kind == OutsideKind::program_vmm; }

std::atomic<std::uint64_t>& outside_of(observe::LiveOutside& outside, OutsideKind kind) {
  switch (kind) {
    case OutsideKind::array: return outside.arrays;
    case OutsideKind::program_vmm: return outside.program_vmm;
    case OutsideKind::managed: return outside.managed;
    case OutsideKind::host:
    case OutsideKind::kCount: break;
  }
  return outside.host;
}
}  // namespace

Status DevicePool::charge_outside(OutsideKind kind, std::uint64_t bytes, const char* api, const PoolSet::AskDriver& ask) {
  if (kind != OutsideKind::host) used_.store(true, std::memory_order_relaxed);
  if (!counts_against_limit(kind)) return {};
  const auto take = [&] { return device_.limit.charge(bytes); };
  const auto tell = [api] { return Refused{api}; };
  return charge(bytes, bytes, tell, ask, take);
}

/// Charges `bytes` to the limit for a call that the driver is to serve: empty pool memory makes room for it.
Status DevicePool::charge(std::uint64_t bytes, std::uint64_t requested_bytes, const std::function<Refused()>& tell, const PoolSet::AskDriver& ask,
                          const std::function<bool()>& take) {
  if (making_room_.within_limit(device_, bytes, take)) return {};
  const Refused what = tell();
  const MutexLock lock(device_.lock);
  return refusals_.fail_by_limit(device_, requested_bytes, what, ask);
}

void DevicePool::note_refusal(std::uint64_t bytes, const Refused& what) {
  const MutexLock lock(device_.lock);
  refusals_.fail(device_, bytes, what, nullptr, {CUDA_ERROR_OUT_OF_MEMORY, "the driver"});
}

void DevicePool::note_failure() {
  const MutexLock lock(device_.lock);
  device_.counters().failed_allocations.add();
}

void DevicePool::warn_of_refusal(const char* api) {
  const MutexLock lock(device_.lock);
  refusals_.warn(device_, api);
}

void DevicePool::book_outside(OutsideKind kind, std::int64_t bytes) {
  const MutexLock lock(device_.lock);
  std::atomic<std::uint64_t>& gauge = outside_of(device_.live.outside, kind);
  gauge.store(gauge.load(std::memory_order_relaxed) + static_cast<std::uint64_t>(bytes), std::memory_order_relaxed);
  if (counts_against_limit(kind)) device_.counters().outside_bytes.add(bytes);
  if (bytes > 0 && kind != OutsideKind::host) driver_free_.sample_first(device_, false);
  if (bytes > 0) graph_memory_.notice_taken(device_);
}

void DevicePool::refund_outside(OutsideKind kind, std::uint64_t bytes) {
  if (counts_against_limit(kind)) device_.limit.refund(bytes);
}

/// Even after the program has synchronised, the device needs a moment to complete the event that says so.
std::size_t DevicePool::trim(std::uint64_t keep_bytes) {
  return making_room_.give_back_idle(device_, device_.services.clock.now_ns() + in_order::kQuietBound_ns, keep_bytes, false);
}

std::size_t DevicePool::make_room(std::uint64_t until_ns) { return making_room_.give_back_idle(device_, until_ns, 0, true); }

std::size_t DevicePool::make_room_for(std::uint64_t until_ns, std::uint64_t bytes) {
  std::optional<std::uint64_t> driver_free_bytes;
  {
    const MutexLock lock(device_.lock);
    if (!used() || !may_call_driver()) return 0;
    driver_free_bytes = driver_free_.sample(device_);
  }
  if (!driver_free_bytes) return 0;
  // The driver rounds what it takes, and refuses the last bit of what it reports as free.
  return making_room_.give_back_idle(device_, until_ns, 0, true,
                                     align_up(bytes, kRegionGranularity_bytes) - std::min(*driver_free_bytes, bytes) + kRegionGranularity_bytes);
}

void DevicePool::note_graph_memory() {
  const MutexLock lock(device_.lock);
  graph_memory_.renew(device_);
  if (device_.live.outside.graphs.load(std::memory_order_relaxed) != 0) begin_use();
}

std::size_t DevicePool::give_back_graph_memory() {
  const MutexLock lock(device_.lock);
  return graph_memory_.trim(device_);
}

}  // namespace cupool::device
