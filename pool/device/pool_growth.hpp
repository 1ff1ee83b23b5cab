// PoolGrowth: what keeps memory pools of the driver within the limit, although they grow by steps that are larger than blocks.
//
// A step that passes the limit goes back together with the block that it came for, but only if nobody else was served from it meanwhile. So where the
// limit is near, a call that may make a pool grow has the *turn*: it is alone in the driver. Where the block's free waits behind work of its stream,
// the step stays until the device has come to that, and whoever is served from it gives it back as well: a *late* span.
// Thread-safe; a leaf lock. Turns are waited for without the device's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/core/mutex.hpp"
#include "pool/device/limit_account.hpp"

namespace cupool::device {

class PoolGrowth {
 public:
  /// By so much the pools of an H100 and an H200 grow (driver 580), and by whole steps for larger blocks.
  static constexpr std::uint64_t kStep_bytes = 32 * kMiB;

  /// One call's stay in the driver; it ends with the object.
  class Turn {
   public:
    Turn() = default;
    Turn(PoolGrowth& of, std::uint64_t most_bytes, std::uint64_t round) : of_(&of), most_bytes_(most_bytes), round_(round) {}
    Turn(Turn&& other) noexcept : of_(std::exchange(other.of_, nullptr)), most_bytes_(other.most_bytes_), round_(other.round_) {}
    Turn& operator=(Turn&& other) noexcept {
      end();
      of_ = std::exchange(other.of_, nullptr);
      most_bytes_ = other.most_bytes_;
      round_ = other.round_;
      return *this;
    }
    ~Turn() { end(); }
    void end() {
      if (PoolGrowth* const of = std::exchange(of_, nullptr)) of->end(most_bytes_, round_);
    }

   private:
    PoolGrowth* of_ = nullptr;  ///< null: there is no limit, or it has ended
    std::uint64_t most_bytes_ = 0;
    std::uint64_t round_ = 0;
  };

  PoolGrowth(const LimitAccount& limit, Clock& clock) : limit_(limit), clock_(clock) {}

  /// Waits until a call for a block of `bytes` cannot pass the limit together with those that are in the driver, or is alone. A thread that the driver
  /// keeps for a second is waited for no longer.
  Turn begin(std::uint64_t bytes);

  /// A block was freed that came with a step of `grown_bytes` beyond the limit, and the step has not gone.
  void note_late(std::uint64_t address, std::uint64_t bytes, std::uint64_t grown_bytes);
  bool is_late(std::uint64_t address, std::uint64_t bytes) const;
  bool has_late() const;
  void forget_late();

 private:
  static constexpr std::uint32_t kSpins = 64;  ///< attempts before the first pause: a call takes a microsecond
  static constexpr std::uint32_t kMostAttempts = kSpins + 50'000;

  struct Span {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };

  std::optional<Turn> try_begin(std::uint64_t most_bytes, bool is_last_attempt);
  void end(std::uint64_t most_bytes, std::uint64_t round);

  const LimitAccount& limit_;
  Clock& clock_;
  mutable Mutex mutex_;
  std::uint64_t growing_bytes_ CUPOOL_GUARDED_BY(mutex_) = 0;  ///< the most by which calls that are in the driver may make pools grow
  std::uint64_t round_ CUPOOL_GUARDED_BY(mutex_) = 0;          ///< calls of earlier rounds are no longer waited for
  bool is_alone_ CUPOOL_GUARDED_BY(mutex_) = false;            ///< a call is in the driver that nobody may join
  std::array<Span, 8> late_ CUPOOL_GUARDED_BY(mutex_);
  std::size_t late_count_ CUPOOL_GUARDED_BY(mutex_) = 0;
};

}  // namespace cupool::device
