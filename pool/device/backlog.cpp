// Backlog: see backlog.hpp.
#include "pool/device/backlog.hpp"

#include <algorithm>
#include <utility>

#include "pool/core/bytes.hpp"
#include "pool/device/deferred_frees.hpp"

namespace cupool::device {

std::uint64_t Backlog::epoch_bytes(const DeviceState& device) const {
  const std::uint64_t spare_bytes = device.spare_now_bytes();
  const std::uint64_t reserved_bytes = device.live.counters.reserved_bytes.now();
  std::uint64_t least_bytes = DeferredFrees::kBatch_bytes;
  if (idle_epochs_ >= kIdleEpochs) {
    const std::uint64_t loop_bytes = is_roomy_loop_ ? std::min(kLoopBlocks * idle_size_bytes_, spare_bytes / kLoopShare) : 0;
    least_bytes = std::max(least_bytes, std::min(std::max(spare_bytes / kIdleShare, loop_bytes), ahead_bytes(device)));
  }
  return std::min(spare_bytes / kEpochShare, std::max(least_bytes, reserved_bytes / kReservedShare));
}

bool Backlog::may_scatter(const DeviceState& device) const {
  const observe::Counters& counters = device.live.counters;
  if (moved_at_ != 0 && counters.allocations.count() < moved_at_ + kUnmovedAllocations) return false;
  return device.spare_bytes() >= (device.room_bytes() + counters.reserved_bytes.now()) / kScatterShare;
}

std::uint64_t Backlog::waiting_share_bytes(const DeviceState& device) const {
  const std::uint64_t spare_bytes = device.spare_bytes();
  const std::uint64_t third_bytes = device.spare_now_bytes() / kDeferredShare;
  const bool can_move =
      std::all_of(homes_.begin(), homes_.end(), [](const auto& home) { return home->pooled == nullptr || home->pooled->can_move(); });
  if (unpooled_ || !can_move) return third_bytes;
  const std::uint64_t most_bytes = saturating_sub(spare_bytes, kept_bytes(device));
  const std::uint64_t not_live_bytes = may_scatter(device) ? device.room_bytes() + device.not_live_bytes() : 0;
  const std::uint64_t quarter_bytes = not_live_bytes / kNotLiveShare;
  if (!knows_its_steps(device)) return std::max({third_bytes, quarter_bytes, std::min(most_bytes, saturating_sub(spare_bytes, third_bytes))});
  const std::uint64_t rest_bytes = not_live_bytes - quarter_bytes;
  return std::max({third_bytes, most_bytes, saturating_sub(rest_bytes, kept_bytes(device))});
}

bool Backlog::may_grow_freely(DeviceState& device) const {
  if (device.has_plenty(kPlentyShare)) return true;
  if (device.not_live_bytes() <= device.room_bytes() / kTrifleShare) return true;
  if (makes_steps(device)) return device.room_bytes() >= kept_bytes(device);
  return device.repeats_itself() && device.room_bytes() >= std::max(kept_bytes(device), device.spare_bytes() / kDeferredShare);
}

std::uint64_t Backlog::kept_bytes(const DeviceState& device) const {
  return device.peak_live_bytes() / (knows_its_steps(device) ? kKeptShareOfKnown : kKeptShare);
}

bool Backlog::knows_its_steps(const DeviceState& device) const { return device.steps.repeats() >= kKnownRepeats; }

bool Backlog::makes_steps(const DeviceState& device) const {
  return knows_its_steps(device) || (device.steps.has_come_down(device.peak_live_bytes()) && device.room_bytes() >= kept_bytes(device));
}

std::uint64_t Backlog::ahead_bytes(const DeviceState& device) const { return std::max(kLeastAhead_bytes, kAheadOfLive * device.peak_live_bytes()); }

std::uint64_t Backlog::step_room_bytes(const DeviceState& device, bool has_been_made) const {
  const observe::Counters& counters = device.live.counters;
  const std::uint64_t peak_bytes = device.peak_live_bytes();
  const std::uint64_t waited_bytes = std::min(counters.deferred_bytes.highest(), peak_bytes / kStepRoomShare);
  const std::uint64_t reserved_bytes = counters.reserved_bytes.now();
  const std::uint64_t spare_bytes = saturating_sub(device.room_bytes(), peak_bytes / kKeptShareOfKnown);
  const std::uint64_t plenty_bytes = saturating_sub(device.room_bytes(), peak_bytes / kStepPlentyShare);
  const std::uint64_t plenty_part_bytes = plenty_bytes / kSecondStepPart;
  std::uint64_t wanted_bytes = peak_bytes + waited_bytes + std::min({peak_bytes / kStepMarginShare, waited_bytes, plenty_bytes});
  if (!has_been_made) {
    const std::uint64_t least_bytes = std::min(kLeastStepMargin_bytes, peak_bytes / kMostStepMarginShare);
    const std::uint64_t margin_bytes = std::max(std::min(waited_bytes, reserved_bytes / kStepMarginShare), least_bytes);
    const std::uint64_t taken_bytes = peak_bytes + counters.deferred_bytes.highest();
    const std::uint64_t most_bytes = taken_bytes + taken_bytes / kMostStepMarginShare + least_bytes;
    wanted_bytes = std::max(wanted_bytes, std::min(reserved_bytes + std::min(margin_bytes, plenty_part_bytes), most_bytes));
  }
  if (device.steps.has_fallen_once_at_most() && (!has_been_made || waited_bytes >= peak_bytes / kStepMuchShare))
    wanted_bytes = std::max(wanted_bytes, reserved_bytes + std::min(waited_bytes, plenty_part_bytes));
  return std::min({saturating_sub(wanted_bytes, reserved_bytes), device.room_bytes() / 2, spare_bytes});
}

bool Backlog::is_bad_moment(DeviceState& device, std::uint64_t batch_bytes) {
  if (!device.has_plenty(DeviceState::kAskShare) || batch_bytes < device.least_early_bytes()) return false;
  const std::uint64_t before_ns = std::exchange(last_miss_ns_, device.services.clock.now_ns());
  return last_miss_ns_ - before_ns >= kAskDistance_ns;
}

void Backlog::note_idle(const DeviceState& device, std::uint64_t size_bytes) {
  const bool is_one_more = size_bytes != 0 && size_bytes == std::exchange(idle_size_bytes_, size_bytes);
  idle_epochs_ = is_one_more ? std::min(idle_epochs_ + 1, kIdleEpochs) : 0;
  // Of all that it could have more is spare than was ever live.
  is_roomy_loop_ = idle_epochs_ >= kIdleEpochs && device.spare_bytes() >= device.peak_live_bytes();
}

void Backlog::note_move(const DeviceState& device) { moved_at_ = device.live.counters.allocations.count(); }

}  // namespace cupool::device
