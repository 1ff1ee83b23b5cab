// Patience: how long a call of the program polls for what is on its way back, and in what pauses.
//
// A second at most, or what the caller says; a minute more as long as something waits that other threads freed before the call, where natively they had
// waited: it had been free then. Not without end, since that work may be waiting for the thread that polls. Thread rule: the device's lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "pool/core/clock.hpp"

namespace cupool::device {

class Patience {
 public:
  static constexpr std::uint64_t kOthersBound_ns = 60'000'000'000;  ///< from there on; a job's queue of work is shorter

  /// `until_ns`: on that clock. `closed`: how many epochs were closed before the call; 0: none of them is waited for longer.
  Patience(Clock& clock, std::uint64_t until_ns, std::uint64_t closed) : clock_(clock), until_ns_(until_ns), closed_(closed) {}

  /// From now on only for what is overdue among the first closed() epochs.
  bool is_late() const { return clock_.now_ns() >= until_ns_; }
  bool is_over() const { return clock_.now_ns() >= until_ns_ + (closed_ != 0 ? kOthersBound_ns : 0); }
  std::uint64_t closed() const { return closed_; }
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
  std::uint64_t closed_;
  std::uint64_t pause_ns_ = kFirstPause_ns;
};

}  // namespace cupool::device
