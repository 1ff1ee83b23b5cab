// LimitAccount: what counts against CUPOOL_LIMIT on one device, in bytes. Charged before the driver is asked, refunded when it refuses.
//
// Held = reserved by the pool + stream-ordered memory that the driver serves + arrays + the program's own cuMemCreate.
// Thread rule: thread-safe, lock-free; two threads can never both take the last bytes.
#pragma once

#include <atomic>
#include <cstdint>
#include <limits>

#include "pool/core/bytes.hpp"

namespace cupool::device {

/// Error::where of a refusal by the limit, of which the driver knows nothing.
inline constexpr char kLimitRefusal[] = "CUPOOL_LIMIT";

class LimitAccount {
 public:
  /// `limit_bytes`: 0 means no limit (what is held is still counted).
  explicit LimitAccount(std::uint64_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// False: the limit refuses. A charge of 0 bytes always succeeds, even where a pool of the driver has grown beyond the limit.
  [[nodiscard]] bool charge(std::uint64_t bytes) {
    if (bytes == 0) return true;
    std::uint64_t held = held_bytes_.load(std::memory_order_relaxed);
    do {
      if (bytes > ceiling() || held > ceiling() - bytes) return false;
    } while (!held_bytes_.compare_exchange_weak(held, held + bytes, std::memory_order_relaxed));
    return true;
  }
  void refund(std::uint64_t bytes) { held_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }

  /// Something that held `before_bytes` holds `now_bytes` now; never refused.
  void hold(std::uint64_t now_bytes, std::uint64_t before_bytes) { held_bytes_.fetch_add(now_bytes - before_bytes, std::memory_order_relaxed); }

  /// By how much the limit is exceeded.
  std::uint64_t passed_bytes() const { return saturating_sub(held_bytes(), ceiling()); }

  std::uint64_t limit_bytes() const { return limit_bytes_; }
  std::uint64_t held_bytes() const { return held_bytes_.load(std::memory_order_relaxed); }
  /// What may still be charged; the largest number where there is no limit.
  std::uint64_t headroom_bytes() const { return saturating_sub(ceiling(), held_bytes()); }

 private:
  std::uint64_t ceiling() const { return limit_bytes_ != 0 ? limit_bytes_ : std::numeric_limits<std::uint64_t>::max(); }

  std::uint64_t limit_bytes_;
  std::atomic<std::uint64_t> held_bytes_{0};
};

}  // namespace cupool::device
