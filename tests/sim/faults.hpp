// Fault injection, call counts and the list of violations. Thread-safe by itself.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/settings.hpp"
#include "tests/sim/symbols.hpp"

namespace cusim {

class Ledger {
 public:
  struct Failure {
    CUresult code;
    bool is_sticky;
  };

  /// Counts a call; how it must fail, if a fault says so.
  std::optional<Failure> count_call(Symbol symbol) {
    const std::size_t shard = thread_shard();
    std::atomic<std::uint64_t>& calls = calls_[shard].counts[static_cast<std::size_t>(symbol)];
    if (shard == kShared) calls.fetch_add(1, std::memory_order_relaxed);
    else calls.store(calls.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    if (!has_faults_.load(std::memory_order_acquire)) return std::nullopt;
    return take_fault(symbol);
  }
  std::uint64_t calls(Symbol symbol) const {
    std::uint64_t sum = 0;
    for (const Shard& shard : calls_) sum += shard.counts[static_cast<std::size_t>(symbol)].load(std::memory_order_relaxed);
    return sum;
  }
  std::uint64_t total_calls() const;

  void add_fault(const FaultSetting& fault);
  /// The first kKeptViolations are kept as sentences, the rest only counted: a program that goes on calling must not eat the memory.
  void add_violation(std::string sentence);
  std::size_t violation_count() const;
  /// Null beyond the count; beyond what is kept a sentence that says so.
  const char* violation(std::size_t index) const;

  void reset();

  static constexpr std::size_t kKeptViolations = 1000;

 private:
  std::optional<Failure> take_fault(Symbol symbol);

  struct Fault {
    Symbol symbol;
    std::uint64_t skip;
    CUresult code;
    std::uint64_t times;
    bool is_sticky;
  };

  /// The calls of one thread, so that two that call the same function do not write to one line: the real driver counts nothing, and this
  /// must not show in what is measured. Threads after the first 63 share one.
  struct alignas(64) Shard {
    std::array<std::atomic<std::uint64_t>, kSymbolCount> counts{};
  };
  static constexpr std::size_t kShards = 64;
  static constexpr std::size_t kShared = 0;

  static std::size_t thread_shard() {
    static std::atomic<std::size_t> threads{kShared};
    static thread_local std::size_t own = kShards;
    if (own == kShards) {
      const std::size_t number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
      own = number < kShards ? number : kShared;
    }
    return own;
  }

  std::array<Shard, kShards> calls_{};
  alignas(64) std::atomic<bool> has_faults_{false};
  alignas(64) mutable std::mutex mutex_;
  std::vector<Fault> faults_;
  std::deque<std::string> violations_;  ///< a deque: sentences keep their address
  std::size_t violation_count_ = 0;
};

}  // namespace cusim
