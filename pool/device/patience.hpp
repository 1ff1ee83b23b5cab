// Patience: how long a call of the program polls for memory that is on its way back, and with what pauses.
//
// A second at most, or what the caller says; longer as long as something waits that was freed before the call: four seconds more where natively it
// would have been free at once (work that began after the free, or runs elsewhere), a minute more where natively the free would have waited. Not
// without end, since the work may be waiting for the thread that polls.
// Thread rule: the device's lock.
#pragma once

#include <algorithm>
#include <cstdint>

#include "pool/core/clock.hpp"

namespace cupool::device {

class Patience {
 public:
  /// How long a call of the program polls, at most, for work that natively would have been waited for.
  static constexpr std::uint64_t kPollBound_ns = 1'000'000'000;
  static constexpr std::uint64_t kLateBound_ns = 4'000'000'000;    ///< added to that; the queues of work of most jobs are shorter
  static constexpr std::uint64_t kFreedBound_ns = 60'000'000'000;  ///< added to that; longer than the queue of any job

  /// `until_ns`: a time of that clock. `newest`: the number of the last epoch that was freed before the call; 0: nothing is waited for longer.
  /// `late_bound_ns`: how much longer to wait for what natively would have been free at once; 0 where it is not known to suffice.
  Patience(Clock& clock, std::uint64_t until_ns, std::uint64_t newest, std::uint64_t late_bound_ns)
      : clock_(clock), until_ns_(until_ns), newest_(newest), late_bound_ns_(late_bound_ns), question_ns_(clock.now_ns() + kFirstQuestion_ns) {}

  /// The ordinary time is over: only epochs up to newest() are waited for.
  bool is_late() const { return clock_.now_ns() >= until_ns_; }
  /// Is the time for such an epoch over, too? `had_waited`: natively its free would have waited.
  bool is_over(bool had_waited) const { return clock_.now_ns() >= until_ns_ + (had_waited ? kFreedBound_ns : late_bound_ns_); }
  /// So much time was spent that the next call should not wait for the same work.
  bool is_spent() const { return clock_.now_ns() >= until_ns_ + kLateBound_ns; }
  std::uint64_t newest() const { return newest_; }
  /// It has waited in vain for so long that the driver is to be asked whether there is anything to wait for at all. Seldom true.
  bool is_question_due() {
    const std::uint64_t now_ns = clock_.now_ns();
    if (now_ns < question_ns_) return false;
    question_ns_ = now_ns + kNextQuestion_ns;
    return true;
  }
  /// Pauses, a little longer each time. Precondition: the device's lock is let go of meanwhile.
  void pause() {
    clock_.pause(pause_ns_);
    pause_ns_ = std::min(2 * pause_ns_, clock_.now_ns() < until_ns_ ? kLongestPause_ns : kLongestLatePause_ns);
  }

 private:
  static constexpr std::uint64_t kFirstPause_ns = 20'000;
  static constexpr std::uint64_t kLongestPause_ns = 2'000'000;
  static constexpr std::uint64_t kLongestLatePause_ns = 50'000'000;
  static constexpr std::uint64_t kFirstQuestion_ns = 5'000'000;
  static constexpr std::uint64_t kNextQuestion_ns = 50'000'000;

  Clock& clock_;
  std::uint64_t until_ns_;
  std::uint64_t newest_;
  std::uint64_t late_bound_ns_;
  std::uint64_t question_ns_;
  std::uint64_t pause_ns_ = kFirstPause_ns;
};

}  // namespace cupool::device
