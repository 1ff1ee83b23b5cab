// Patience: how long a call of the program polls for what is on its way back, and in what pauses.
//
// A second at most, or what the caller says; longer as long as something waits that was freed before the call. Four seconds more where natively it
// had been free at once: work that began after the free, or runs elsewhere. A minute more where the free had waited. Not without end, since the work
// may be waiting for the thread that polls. Thread rule: the device's lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "pool/core/clock.hpp"

namespace cupool::device {

class Patience {
 public:
  /// So long a call of the program polls at most for work that natively would have been waited for.
  static constexpr std::uint64_t kPollBound_ns = 1'000'000'000;
  static constexpr std::uint64_t kLateBound_ns = 4'000'000'000;    ///< from there on; most jobs' queues of work are shorter
  static constexpr std::uint64_t kFreedBound_ns = 60'000'000'000;  ///< from there on; any job's is

  /// `until_ns`: on that clock. `newest`: the number of the last epoch of what was freed before the call; 0: nothing is waited for longer.
  /// `late_bound_ns`: so long for what natively had been free at once; 0 where it is not known that it would do.
  Patience(Clock& clock, std::uint64_t until_ns, std::uint64_t newest, std::uint64_t late_bound_ns)
      : clock_(clock), until_ns_(until_ns), newest_(newest), late_bound_ns_(late_bound_ns) {}

  /// From now on only for the epochs up to newest().
  bool is_late() const { return clock_.now_ns() >= until_ns_; }
  /// For one of them, too? `had_waited`: natively its free had.
  bool is_over(bool had_waited) const { return clock_.now_ns() >= until_ns_ + (had_waited ? kFreedBound_ns : late_bound_ns_); }
  /// Long enough for the next call to have none with the same.
  bool is_spent() const { return clock_.now_ns() >= until_ns_ + kLateBound_ns; }
  std::uint64_t newest() const { return newest_; }
  /// Longer ones bit by bit. Precondition: the device's lock is let go of meanwhile.
  void pause() {
    clock_.pause(pause_ns_);
    pause_ns_ = std::min(2 * pause_ns_, clock_.now_ns() < until_ns_ ? kLongestPause_ns : kLongestLatePause_ns);
  }

 private:
  static constexpr std::uint64_t kFirstPause_ns = 20'000;
  static constexpr std::uint64_t kLongestPause_ns = 2'000'000;
  static constexpr std::uint64_t kLongestLatePause_ns = 50'000'000;

  Clock& clock_;
  std::uint64_t until_ns_;
  std::uint64_t newest_;
  std::uint64_t late_bound_ns_;
  std::uint64_t pause_ns_ = kFirstPause_ns;
};

}  // namespace cupool::device
