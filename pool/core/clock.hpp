// Time: raw ticks on the hot path, nanoseconds everywhere else, and a clock that tests can replace.
//
// ticks() is the CPU's counter (one instruction, no system call); TickConverter turns it into unix nanoseconds with
// two readings of both clocks, so it is calibrated only when a report is written. Clock is what bounded waits use.
// Never: driver calls, locks. Thread-safe.
#pragma once

#include <ctime>

#include <atomic>
#include <cstdint>

#include "pool/core/uncancelled.hpp"

namespace cupool {

inline std::uint64_t clock_now_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<std::uint64_t>(now.tv_nsec);
}
inline std::uint64_t unix_now_ns() { return clock_now_ns(CLOCK_REALTIME); }
inline std::uint64_t monotonic_now_ns() { return clock_now_ns(CLOCK_MONOTONIC); }

/// A counter that grows steadily on every core; its unit is known to TickConverter only.
inline std::uint64_t ticks() {
#if defined(__x86_64__)
  return __builtin_ia32_rdtsc();  // <x86intrin.h> takes half a second to compile, in every file
#elif defined(__aarch64__)
  std::uint64_t value = 0;
  asm volatile("mrs %0, cntvct_el0" : "=r"(value));
  return value;
#else
  return monotonic_now_ns();
#endif
}

/// Ticks -> unix nanoseconds, by a straight line through two moments.
class TickConverter {
 public:
  struct Moment {
    std::uint64_t ticks = 0;
    std::uint64_t unix_ns = 0;
  };
  static Moment now() { return {cupool::ticks(), unix_now_ns()}; }

  TickConverter() = default;
  /// `begin` comes before `end`. When both have the same tick, every tick is taken for that moment.
  TickConverter(Moment begin, Moment end) : begin_(begin) {
    if (end.ticks > begin.ticks && end.unix_ns > begin.unix_ns)
      ns_per_tick_ = static_cast<double>(end.unix_ns - begin.unix_ns) / static_cast<double>(end.ticks - begin.ticks);
  }

  /// 0 ticks mean "unknown" and stay 0.
  std::uint64_t unix_ns(std::uint64_t at_ticks) const {
    if (at_ticks == 0) return 0;
    const double offset_ns = (static_cast<double>(at_ticks) - static_cast<double>(begin_.ticks)) * ns_per_tick_;
    return begin_.unix_ns + static_cast<std::uint64_t>(static_cast<std::int64_t>(offset_ns));
  }

 private:
  Moment begin_{};
  double ns_per_tick_ = 0;
};

/// The time that bounded waits go by. Tests inject one whose pause moves the simulated GPU on instead of sleeping.
class Clock {
 public:
  virtual std::uint64_t now_ns() const = 0;
  /// Sleeps for about `duration_ns`, so that others run. Never called with a lock held.
  virtual void pause(std::uint64_t duration_ns) = 0;

 protected:
  ~Clock() = default;  // trivial: the library's own clock is used until the process is gone
};

/// Between two looks whether another thread has left the driver, or has ended something there: most calls take microseconds.
inline constexpr std::uint64_t kDriverCallPause_ns = 20'000;

/// The machine's clock.
class SystemClock final : public Clock {
 public:
  std::uint64_t now_ns() const override { return monotonic_now_ns() + unseen_ns_.load(std::memory_order_relaxed); }
  void pause(std::uint64_t duration_ns) override {
    const timespec duration{static_cast<time_t>(duration_ns / 1'000'000'000u), static_cast<long>(duration_ns % 1'000'000'000u)};
    const Uncancelled uncancelled;
    const std::uint64_t before_ns = monotonic_now_ns();
    const bool is_whole = ::nanosleep(&duration, nullptr) == 0;
    if (is_whole && monotonic_now_ns() - before_ns < duration_ns / 2) unseen_ns_.fetch_add(duration_ns, std::memory_order_relaxed);
  }

 private:
  /// The pauses during which CLOCK_MONOTONIC did not advance (libfaketime with a fixed time makes it stand still). They are added to it, so that
  /// bounded waits end all the same.
  std::atomic<std::uint64_t> unseen_ns_{0};
};

}  // namespace cupool
