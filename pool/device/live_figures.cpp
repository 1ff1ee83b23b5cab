// The figures of one device's heaps: see live_figures.hpp.
#include "pool/device/live_figures.hpp"

#include <algorithm>

namespace cupool::device {

namespace {
/// Smaller holes in streams' lanes are not joined for figures that are published often: pages lie in larger holes, and small ones would cost more
/// time than they tell.
constexpr std::uint64_t kLargeHole_bytes = kMiB;
constexpr std::uint64_t kLooksForPublication = 32;  ///< this many looked-at holes take as long as some 64 operations, the interval of publication
}  // namespace

HeapFigures figures_of(const ContextPool& home, DeviceState& device) {
  HeapFigures sum = home.natives.figures(device);
  if (home.pooled != nullptr) sum.add(home.pooled->figures(device));
  return sum;
}

HeapFigures figures_of_all_lanes_of(const ContextPool& home, DeviceState& device, std::uint64_t least_bytes) {
  HeapFigures sum = home.natives.figures(device);
  if (home.pooled != nullptr) sum.add(home.pooled->figures_of_all_lanes(device, least_bytes));
  return sum;
}

void HeapFigures::add(const HeapFigures& other) {
  region_bytes += other.region_bytes;
  free_bytes += other.free_bytes;
  largest_free_bytes = std::max(largest_free_bytes, other.largest_free_bytes);
  wholly_free_bytes += other.wholly_free_bytes;
  inactive_split_bytes += other.inactive_split_bytes;
  largest_free_remapped_bytes = std::max(largest_free_remapped_bytes, other.largest_free_remapped_bytes);
  looks += other.looks;
}

HeapFigures LiveFigures::sum(DeviceState& device) const {
  HeapFigures sum;
  for (const auto& home : homes_)
    if (home->is_in_use()) sum.add(figures_of(*home, device));
  return sum;
}

HeapFigures LiveFigures::sum_of_all_lanes(DeviceState& device, std::uint64_t least_bytes) const {
  HeapFigures sum;
  for (const auto& home : homes_)
    if (home->is_in_use()) sum.add(figures_of_all_lanes_of(*home, device, least_bytes));
  return sum;
}

void LiveFigures::publish(DeviceState& device) {
  if (publications_to_skip_ != 0) {
    --publications_to_skip_;
    return;
  }
  const HeapFigures now = sum_of_all_lanes(device, kLargeHole_bytes);
  publications_to_skip_ = now.looks / kLooksForPublication;
  publish(device, now);
}

void LiveFigures::publish(DeviceState& device, const HeapFigures& now) const {
  device.renew_driver_free();
  observe::LiveFragmentation& live = device.live.fragmentation;
  live.free_bytes.store(now.free_bytes + magazines_.kept_bytes(), std::memory_order_relaxed);
  live.largest_free_bytes.store(now.largest_free_bytes, std::memory_order_relaxed);
  live.inactive_split_bytes.store(now.inactive_split_bytes + magazines_.kept_bytes(), std::memory_order_relaxed);
  live.largest_free_remapped_bytes.store(now.largest_free_remapped_bytes, std::memory_order_relaxed);
}

void LiveFigures::sample_peak(DeviceState& device) {
  magazines_.close_all(device);
  note_peak(device);
}

void LiveFigures::note_peak(DeviceState& device) {
  magazines_.note_peak();
  const HeapFigures now = sum_of_all_lanes(device, kLargeHole_bytes);
  observe::LiveFragmentation& live = device.live.fragmentation;
  const observe::Counters& counters = device.counters();
  const auto copy = [](std::atomic<std::uint64_t>& to, std::uint64_t value) { to.store(value, std::memory_order_relaxed); };
  copy(live.at_peak_free_bytes, now.free_bytes);
  copy(live.at_peak_largest_free_bytes, now.largest_free_bytes);
  copy(live.at_peak_largest_free_remapped_bytes, now.largest_free_remapped_bytes);
  copy(live.at_peak_inactive_split_bytes, now.inactive_split_bytes);
  copy(live.at_peak_live_bytes, counters.live_bytes.now());
  copy(live.at_peak_requested_bytes, counters.requested_bytes.now());
  copy(live.at_peak_reserved_bytes, counters.reserved_bytes.now());
}

}  // namespace cupool::device
