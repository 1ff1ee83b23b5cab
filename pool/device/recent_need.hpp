// RecentNeed: the most that was live lately, beside the most that ever was.
//
// A program that once needed nearly everything (a batch that was too large, a profile of the worst case) and goes on with little of it is not short
// of memory. Lately is a window of as many allocations as came before it, kLeast to kMost of them, and the window before: what a job does again and
// again is always in it.
// Bookkeeping only.
// Thread rule: the device's lock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace cupool::device {

class RecentNeed {
 public:
  static constexpr std::uint64_t kLeast = 4096;   ///< allocations in a window, at least
  static constexpr std::uint64_t kMost = 65'536;  ///< and at most

  /// Notes what is live, in bytes, after so many allocations.
  void note(std::uint64_t live_bytes, std::uint64_t allocations) {
    if (allocations >= window_end_) {
      window_before_bytes_ = std::exchange(window_bytes_, 0);
      window_end_ = allocations + std::clamp(allocations, kLeast, kMost);
    }
    window_bytes_ = std::max(window_bytes_, live_bytes);
  }

  /// The most, in bytes, that was noted in this window and the one before.
  std::uint64_t bytes() const { return std::max(window_bytes_, window_before_bytes_); }

 private:
  std::uint64_t window_bytes_ = 0;
  std::uint64_t window_before_bytes_ = 0;
  std::uint64_t window_end_ = 0;  ///< in allocations
};

}  // namespace cupool::device
