// Shortage: whether memory is short on a device, so that threads keep nothing for themselves and frees record events of their own.
//
// It is short while a thread is high up the ladder or gives back idle memory, and for a number of frees after the limit or the driver has refused
// something. Counts only.
// Thread rule: the device's lock.
#pragma once

#include <cstdint>

namespace cupool::device {

class Shortage {
 public:
  static constexpr std::uint32_t kPressedFrees = 64;
  static constexpr std::uint32_t kStampedFrees = 256;
  static constexpr std::uint32_t kPressingStreamFrees = 1024;

  /// Between begin() and end() memory is short for one thread, or it gives back idle memory.
  void begin() { ++threads_; }
  void end() { --threads_; }
  /// The limit or the driver has refused something: a number of frees record their own event, so that it may be waited for, and a number of
  /// stream-ordered ones likewise.
  void note_refusal() {
    pressed_frees_ = kPressedFrees;
    stamped_frees_ = kStampedFrees;
    pressing_stream_frees_ = kPressingStreamFrees;
  }
  /// Must threads keep nothing for themselves?
  bool forbids_keeping() const { return threads_ != 0 || pressed_frees_ != 0; }
  /// Counts a free: is it one of those that record their own event?
  bool count_free() {
    if (pressed_frees_ == 0) return false;
    --pressed_frees_;
    return true;
  }
  /// Does the next stream-ordered free get an event of its own?
  bool stamps_frees() const { return stamped_frees_ != 0; }
  /// Counts a free in stream order. After so many of them it is over, also for a program that makes few plain frees, or none.
  void count_stream_free() {
    stamped_frees_ -= stamped_frees_ != 0 ? 1 : 0;
    if (pressing_stream_frees_ != 0 && --pressing_stream_frees_ == 0) pressed_frees_ = 0;
  }

 private:
  std::uint32_t threads_ = 0;
  std::uint32_t pressed_frees_ = 0;
  std::uint32_t stamped_frees_ = 0;
  std::uint32_t pressing_stream_frees_ = 0;
};

}  // namespace cupool::device
