// Shortage: whether memory is short on a device, as far as threads keep nothing and frees carry events of their own then.
//
// It is for as long as a thread is high up the ladder or gives back what is idle, and for a number of frees after limit or driver refused something.
// Counts only.
// Thread rule: the device's lock.
#pragma once

#include <cstdint>

namespace cupool::device {

class Shortage {
 public:
  static constexpr std::uint32_t kPressedFrees = 64;
  static constexpr std::uint32_t kStampedFrees = 256;

  /// Between these two nothing is kept: memory is short for a thread, or it gives back what is idle.
  void begin() { ++threads_; }
  void end() { --threads_; }
  /// Limit or driver refused something: so many frees record their own event, so that it may be waited for, and so many in stream order.
  void note_refusal() {
    pressed_frees_ = kPressedFrees;
    stamped_frees_ = kStampedFrees;
  }
  /// Threads keep nothing for themselves.
  bool forbids_keeping() const { return threads_ != 0 || pressed_frees_ != 0; }
  /// A free: is it one of those that record their own event?
  bool count_free() {
    if (pressed_frees_ == 0) return false;
    --pressed_frees_;
    return true;
  }
  /// The next stream-ordered free gets an event of its own; one more has.
  bool stamps_frees() const { return stamped_frees_ != 0; }
  void count_stamped_free() { stamped_frees_ -= stamped_frees_ != 0 ? 1 : 0; }

 private:
  std::uint32_t threads_ = 0;
  std::uint32_t pressed_frees_ = 0;
  std::uint32_t stamped_frees_ = 0;
};

}  // namespace cupool::device
