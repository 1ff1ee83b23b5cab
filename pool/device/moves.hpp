// Moves: counts the threads that are in the driver with memory of a device; that memory is on no list meanwhile.
//
// A thread that finds no memory waits for such a thread and looks again: natively the memory would have been there all the time. A Mover is one such
// stay.
// Thread rule: the device's lock; a Mover is made and ended under it, with the lock let go of in between.
#pragma once

#include <cstdint>

#include "pool/device/device_state.hpp"
#include "pool/observe/human_bytes.hpp"

namespace cupool::device {

class Moves {
 public:
  bool are_any() const { return movers_ != 0; }
  /// How often a thread has come back with more memory for everybody.
  std::uint64_t ended() const { return ended_; }

  void begin() { ++movers_; }
  void end(bool has_more) {
    --movers_;
    ended_ += has_more ? 1 : 0;
  }

 private:
  std::uint32_t movers_ = 0;
  std::uint64_t ended_ = 0;
};

class Mover {
 public:
  explicit Mover(Moves& moves) : moves_(moves) { moves_.begin(); }
  ~Mover() { moves_.end(has_more); }
  Mover(const Mover&) = delete;
  Mover& operator=(const Mover&) = delete;

  /// `bytes` of the device's memory went back to the driver.
  void note_given_back(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock) {
    has_more = bytes != 0;
    if (bytes == 0) return;
    device.services.given_back.fetch_add(1, std::memory_order_relaxed);
    device.log(config::LogLevel::debug, [bytes] { return observe::human_bytes(bytes) + " went back to the driver"; });
  }

  bool has_more = false;  ///< set before it ends: there is more memory to be had than before

 private:
  Moves& moves_;
};

}  // namespace cupool::device
