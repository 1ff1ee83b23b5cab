// Magazines and peaks: how the device learns what happened in a magazine. What is live through several of them together never exceeds a peak
// unnoticed; and whether what is live is down at its low again.
//
// A single magazine compares what the device knows with the peaks. Each of several has an allowance: so much more may be live through it. All
// allowances, added to what the device knows, are no more than the peaks. A magazine that has used up its own asks under the lock, where blocks are
// counted exactly, and gets half of what is left; what its thread frees it may allocate again. When a block that was not promised brings a peak near,
// all allowances are taken back. Source of the idea: O'Neil, The escrow transactional method (1986).
#include <algorithm>

#include "pool/device/magazines.hpp"

namespace cupool::device {

namespace {
constexpr std::uint64_t kBufferIds = 1024;  ///< buffer ids that a magazine gets at a time
}  // namespace

/// Adds the magazine's counts to the device's, and takes what the device has for it.
void Magazines::flush_counts(DeviceState& device, Magazine& magazine) {
  const observe::LiveShard& shard = magazine.shard;
  if (shard.allocations.load(std::memory_order_relaxed) != 0 || shard.frees.load(std::memory_order_relaxed) != 0) add_counts(device, magazine);
  look_for_peak(device);  // in any case: it also looks for the ends of steps
  drop_misfits(device, magazine);
  receive_parcels(device, magazine);
  if (magazine.next_buffer_id != magazine.end_buffer_id) return;
  magazine.next_buffer_id = next_buffer_id_;
  magazine.end_buffer_id = next_buffer_id_ += kBufferIds;
}

/// Precondition, if it is to change anything: the thread has allocated or freed here; each of its other counts comes with one of those.
void Magazines::add_counts(DeviceState& device, Magazine& magazine) {
  observe::Counters& counters = device.counters();
  const auto take = [](std::atomic<std::uint64_t>& word) {
    const std::uint64_t value = word.load(std::memory_order_relaxed);
    word.store(0, std::memory_order_relaxed);
    return value;
  };
  observe::LiveShard& shard = magazine.shard;
  counters.allocations.add(take(shard.allocations));
  counters.frees.add(take(shard.frees));
  counters.rung_hole.add(take(shard.rung_hole));
  const LiveSum told{static_cast<std::int64_t>(take(shard.live_bytes)), static_cast<std::int64_t>(take(shard.requested_bytes)),
                     static_cast<std::int64_t>(take(shard.live_blocks))};
  counters.live_bytes.shift(told.bytes);
  counters.requested_bytes.shift(told.requested_bytes);
  counters.live_blocks.shift(told.blocks);
  if (magazines_.size() > 1) use_allowance(magazine, told);
  counters.deferred_bytes.add(static_cast<std::int64_t>(take(shard.deferred_bytes)));
  flush_mempool(device, magazine);
  for (StreamRacks& one : magazine.streams)
    if (one.pairs != 0) magazine.home->streams.count_pairs(one.stream.identity, std::exchange(one.pairs, 0));
  change_kept(magazine, -static_cast<std::int64_t>(magazine.taken_bytes));
  magazine.taken_bytes = 0;
}

StepEnds::Live Magazines::live_now(const DeviceState& device) const {
  const observe::Counters& counters = device.live.counters;
  StepEnds::Live live{counters.live_bytes.now(), counters.live_blocks.now()};
  for (const auto& magazine : magazines_) {
    live.bytes += magazine->shard.live_bytes.load(std::memory_order_relaxed);
    live.blocks += magazine->shard.live_blocks.load(std::memory_order_relaxed);
  }
  return live;
}

void Magazines::look_for_peak(DeviceState& device, std::uint64_t fresh_bytes) {
  observe::Counters& counters = device.counters();
  std::uint64_t live_bytes = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t live_blocks = 0;
  for (const auto& magazine : magazines_) {
    live_bytes += magazine->shard.live_bytes.load(std::memory_order_relaxed);
    requested_bytes += magazine->shard.requested_bytes.load(std::memory_order_relaxed);
    live_blocks += magazine->shard.live_blocks.load(std::memory_order_relaxed);
  }
  const auto raise = [](observe::Gauge& gauge, std::uint64_t more) {
    const std::uint64_t now = gauge.now() + more;
    const bool is_new = now > gauge.highest() && now < ~std::uint64_t{0} / 2;  // a "negative" value: another thread is between two updates
    if (is_new) gauge.peak.store(now, std::memory_order_relaxed);
    return is_new;
  };
  if (raise(counters.live_bytes, live_bytes)) peak_is_new_.store(true, std::memory_order_relaxed);
  raise(counters.requested_bytes, requested_bytes);
  raise(counters.live_blocks, live_blocks);
  const StepEnds::Live now{counters.live_bytes.now() + live_bytes, counters.live_blocks.now() + live_blocks};
  if (now.bytes >= ~std::uint64_t{0} / 2) return;
  const StepEnds::Live before{now.bytes - fresh_bytes, now.blocks - (fresh_bytes != 0 ? 1 : 0)};
  device.recent_need.note(now.bytes, counters.allocations.count());
  device.steps.note(before, now, device.peak_live_bytes(), counters.allocations.count(), device.least_early_bytes());
}

/// Would this request look like a new peak only because other threads have not flushed their frees yet? They may be idle for long.
bool Magazines::counts_run_ahead(const DeviceState& device, const AllocationRequest& request) const {
  const auto is_above = [](const observe::Gauge& gauge, std::uint64_t more) { return gauge.now() + more > gauge.highest(); };
  const observe::Counters& counters = device.live.counters;
  return magazines_.size() > 1 && (is_above(counters.live_bytes, request.bytes) || is_above(counters.requested_bytes, request.requested_bytes) ||
                                   is_above(counters.live_blocks, 1));
}

/// What more could become live, on top of what is promised, without a new peak. Below 0: a peak is near, and what is promised could make it.
LiveSum Magazines::headroom(const DeviceState& device) const {
  const auto below_peak = [](const observe::Gauge& gauge) { return static_cast<std::int64_t>(gauge.highest() - gauge.now()); };
  const observe::Counters& counters = device.live.counters;
  return {below_peak(counters.live_bytes) - promised_.bytes, below_peak(counters.requested_bytes) - promised_.requested_bytes,
          below_peak(counters.live_blocks) - promised_.blocks};
}

/// Grants the magazine an allowance of as many blocks like this one as leave the other half of what is left for the next that asks.
void Magazines::grant(DeviceState& device, Magazine& magazine, const AllocationRequest& request) {
  if (magazines_.size() < 2) return;  // a single magazine compares with the peaks itself
  drop_allowance(magazine);           // what is left of it is less than one block
  const LiveSum left = headroom(device);
  const LiveSum one{static_cast<std::int64_t>(request.bytes), static_cast<std::int64_t>(request.requested_bytes), 1};
  const std::int64_t count = std::min({left.bytes / one.bytes, left.requested_bytes / one.requested_bytes, left.blocks});
  const std::int64_t granted = (count - 1) / 2;  // one of them is for this very request
  if (granted > 0) use_allowance(magazine, {-granted * one.bytes, -granted * one.requested_bytes, -granted});
}

void Magazines::spend_allowance(DeviceState& device, Magazine* magazine, const AllocationRequest& request) {
  if (magazine == nullptr || !magazine->is_open || !magazine->is_of_this_thread() || !enter_own(device, *magazine)) return;
  const OwnerInside held(magazine->lock);
  flush_counts(device, *magazine);
  const LiveSum& left = magazine->allowance;
  use_allowance(*magazine,
                {std::min(static_cast<std::int64_t>(request.bytes), left.bytes),
                 std::min(static_cast<std::int64_t>(request.requested_bytes), left.requested_bytes), std::min<std::int64_t>(1, left.blocks)});
}

/// The magazine's counts were flushed: what has become live is deducted from its allowance, and what was freed is added, since the thread is likely
/// to want it again.
void Magazines::use_allowance(Magazine& magazine, const LiveSum& told) {
  const auto use = [](std::int64_t& allowed, std::int64_t& promised, std::int64_t used) {
    const std::int64_t less = std::min(used, allowed);
    allowed -= less;
    promised -= less;
  };
  use(magazine.allowance.bytes, promised_.bytes, told.bytes);
  use(magazine.allowance.requested_bytes, promised_.requested_bytes, told.requested_bytes);
  use(magazine.allowance.blocks, promised_.blocks, told.blocks);
}

void Magazines::keep_promises(DeviceState& device) {
  const LiveSum left = headroom(device);
  if (left.bytes >= 0 && left.requested_bytes >= 0 && left.blocks >= 0) return;
  const auto has_allowance = [](const Magazine& magazine, std::uint64_t) {
    return magazine.allowance.bytes != 0 || magazine.allowance.requested_bytes != 0 || magazine.allowance.blocks != 0;
  };
  visit_open(device, &Magazines::take_back_allowance, nullptr, BusyOwners::wait_for, has_allowance);
}

std::string Magazines::check_promises(const DeviceState& device) const {
  LiveSum sum;
  for (const auto& magazine : magazines_) {
    sum.bytes += magazine->allowance.bytes;
    sum.requested_bytes += magazine->allowance.requested_bytes;
    sum.blocks += magazine->allowance.blocks;
  }
  if (sum.bytes != promised_.bytes || sum.requested_bytes != promised_.requested_bytes || sum.blocks != promised_.blocks)
    return "what is promised is not the sum of the magazines' allowances";
  const LiveSum left = headroom(device);
  const bool is_above =
      (sum.bytes > 0 && left.bytes < 0) || (sum.requested_bytes > 0 && left.requested_bytes < 0) || (sum.blocks > 0 && left.blocks < 0);
  return is_above ? "what lives and what is promised are above a peak" : "";
}

void Magazines::drop_allowance(Magazine& magazine) { use_allowance(magazine, LiveSum{magazine.allowance}); }

void Magazines::take_back_allowance(DeviceState& device, Magazine& magazine) {
  flush_counts(device, magazine);
  drop_allowance(magazine);
}

}  // namespace cupool::device
