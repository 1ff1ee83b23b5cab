// StepEnds: finds out where the steps of a job end, from the number of live bytes.
//
// A step brings what is live up near its peak and down again to where it was. When it is down, everything that the step freed is free or waits for
// the GPU, as at the end of every other step: an epoch of deferred frees that is closed there ends at the same place in every step, and so do those
// after it. Where epochs end by a count alone, that place moves from step to step; blocks find other holes each time, and the pool grows long after
// it has seen the whole job.
// Bookkeeping only.
// Thread rule: the device's lock, except below_bytes().
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "pool/core/bytes.hpp"

namespace cupool::device {

class StepEnds {
 public:
  static constexpr std::uint64_t kNearPeak = 4;  ///< a height is within this part of the rise below the peak, and a low within it above the last low
  static constexpr std::uint64_t kLeastAllocations = 8;  ///< allocations in a step: its end may cost an event
  static constexpr std::uint64_t kLeastBlocks = 4;       ///< live at its height beyond those at its low: a block that comes and goes makes none
  static constexpr std::uint64_t kUpShare = 8;           ///< what is live is up when no more than this part is missing to the peak,
  static constexpr std::uint64_t kDownShare = 4;         ///< and down when at least this part is missing
  static constexpr std::uint64_t kTrifleShare = 16;      ///< less than this part of a peak is a trifle beside it
  static constexpr std::uint64_t kEndShare = 64;         ///< a step ends when no more than this part of its rise lives beyond the last low
  static constexpr std::uint64_t kLateShare = 4;         ///< of the allocations of a step: by so many steps may differ (is_late)
  static constexpr std::uint64_t kPatience = 2;          ///< after this many times the allocations of the last step any low ends one

  struct Live {
    std::uint64_t bytes = 0;
    std::uint64_t blocks = 0;
  };

  /// Notes an allocation that the device sees: what was live before it, and with it. `least_bytes`: a rise by less is no step.
  void note(Live before, Live now, std::uint64_t peak_bytes, std::uint64_t allocations, std::uint64_t least_bytes) {
    if (before.bytes <= low_.bytes) {
      low_ = before;
      low_at_ = saturating_sub(allocations, 1);
    }
    if (is_up_ && is_down(before.bytes, repeated_peak_bytes_)) {
      before_last_fall_bytes_ = std::exchange(last_fall_bytes_, repeated_peak_bytes_);
      if (before.blocks + kLeastBlocks <= up_blocks_) step_fall_bytes_ = repeated_peak_bytes_;
      is_up_ = false;
    }
    if (now.bytes >= peak_bytes - peak_bytes / kUpShare) {
      up_blocks_ = is_up_ ? std::max(up_blocks_, now.blocks) : now.blocks;
      is_up_ = true;
    }
    if (std::exchange(repeated_peak_bytes_, peak_bytes) != peak_bytes) {
      repeats_ = 0;
      peak_at_ = allocations;
    }
    const bool is_low = ends_at_low(now, peak_bytes, allocations, least_bytes);
    if (is_low) {
      step_allocations_ = allocations - begun_at_;
      begun_at_ = allocations;
      ++repeats_;
      known_low_bytes_ = low_.bytes;
      known_low_at_ = low_at_;
      below_bytes_.store(known_low_bytes_ + saturating_sub(peak_bytes, known_low_bytes_) / kEndShare + 1, std::memory_order_relaxed);
    }
    if (is_low || now.bytes >= peak_bytes) low_ = now;  // above all before: it has not come down since
  }

  /// How many steps have come near the peak since it last rose.
  std::uint64_t repeats() const { return repeats_; }

  /// The job does what it did before, though it is not known yet that it repeats itself: what is live has come near its peak again; or it has come
  /// down twice from peaks that were no trifle beside the last one, and has risen since. `live_bytes`: what is live now.
  bool begins_again(std::uint64_t live_bytes, std::uint64_t peak_bytes) const {
    if (repeats_ != 0) return true;
    const std::uint64_t first_peak_bytes = is_up_ && is_down(live_bytes, peak_bytes) ? last_fall_bytes_ : before_last_fall_bytes_;
    return first_peak_bytes >= peak_bytes / kTrifleShare && is_down(std::min(low_.bytes, live_bytes), peak_bytes);
  }

  /// Is the job in its second step at most? Since the process began what is live has come down from near a peak at most once.
  bool has_fallen_once_at_most() const { return before_last_fall_bytes_ == 0; }

  /// When the step whose end is told began, in allocations of the device.
  std::uint64_t step_began_at() const { return known_low_at_; }

  /// Is that step a late one: the third at least, and an earlier one has set the peak? Before it there were twice as many allocations as in it. The
  /// ends of the first ones may not have been seen: the level to which what lives comes down is another one once a step has left what stays (an
  /// optimizer's state). Where much is allocated before the first step, the second may be taken for a late one.
  bool is_late(std::uint64_t allocations) const {
    const std::uint64_t step_allocations = saturating_sub(allocations, known_low_at_);
    return known_low_at_ >= 2 * step_allocations - step_allocations / kLateShare && peak_at_ <= known_low_at_;
  }

  /// What is live has come down, by several blocks, from a peak that was no trifle beside the last one.
  bool has_come_down(std::uint64_t peak_bytes) const { return step_fall_bytes_ != 0 && step_fall_bytes_ >= peak_bytes / kTrifleShare; }

  /// A step ends when less than this is live: what some leave to the next (a loss, a batch) is no obstacle. 0: none is under way. Readable by every
  /// thread.
  std::uint64_t below_bytes() const { return below_bytes_.load(std::memory_order_relaxed); }

  /// Call after a free: has it ended a step?
  bool has_ended(std::uint64_t live_bytes) {
    if (live_bytes >= below_bytes()) return false;
    below_bytes_.store(0, std::memory_order_relaxed);
    return true;
  }

 private:
  static constexpr std::uint64_t kNone = ~std::uint64_t{0};

  static bool is_down(std::uint64_t bytes, std::uint64_t peak_bytes) { return bytes <= peak_bytes - peak_bytes / kDownShare; }

  /// What is live is near its peak: was it down before, at the end of a step?
  bool ends_at_low(const Live& now, std::uint64_t peak_bytes, std::uint64_t allocations, std::uint64_t least_bytes) const {
    const std::uint64_t rise_bytes = saturating_sub(peak_bytes, low_.bytes);
    const bool is_height = now.bytes + rise_bytes / kNearPeak >= peak_bytes;
    if (!is_height || rise_bytes < least_bytes || now.blocks < low_.blocks + kLeastBlocks || allocations < begun_at_ + kLeastAllocations)
      return false;
    const std::uint64_t known_rise_bytes = saturating_sub(peak_bytes, known_low_bytes_);
    const bool is_as_low = low_.bytes <= known_low_bytes_ + known_rise_bytes / kNearPeak;
    return is_as_low || allocations - begun_at_ >= kPatience * step_allocations_;
  }

  Live low_{kNone, 0};                     ///< the lowest since the last height
  std::uint64_t low_at_ = 0;               ///< when that was, in allocations
  std::uint64_t known_low_bytes_ = kNone;  ///< the lowest before the last height; kNone: any low is as low
  std::uint64_t known_low_at_ = 0;         ///< and when that was
  std::uint64_t begun_at_ = 0;             ///< when the last height was, in allocations
  std::uint64_t step_allocations_ = 0;     ///< allocations between the last two heights
  std::uint64_t repeated_peak_bytes_ = 0;
  std::uint64_t peak_at_ = 0;  ///< when the peak last rose, in allocations
  std::uint64_t repeats_ = 0;
  std::uint64_t last_fall_bytes_ = 0;                      ///< the peak when it last came down,
  std::uint64_t before_last_fall_bytes_ = 0;               ///< and the time before; 0: never
  bool is_up_ = false;                                     ///< what is live has been up, and not down since
  std::uint64_t up_blocks_ = 0;                            ///< the most live blocks the last time it was up
  std::uint64_t step_fall_bytes_ = 0;                      ///< the peak when it last came down by several blocks; 0: never
  alignas(64) std::atomic<std::uint64_t> below_bytes_{0};  ///< threads read it at each free
};

}  // namespace cupool::device
