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
    calls_[thread_shard()].counts[static_cast<std::size_t>(symbol)].fetch_add(1, std::memory_order_relaxed);
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

  /// The calls of some threads, so that two that call the same function seldom write to the same line.
  struct alignas(64) Shard {
    std::array<std::atomic<std::uint64_t>, kSymbolCount> counts{};
  };
  static constexpr std::size_t kShards = 8;

  static std::size_t thread_shard() {
    static std::atomic<std::size_t> threads{0};
    static thread_local std::size_t number = 0;
    if (number == 0) number = threads.fetch_add(1, std::memory_order_relaxed) + 1;
    return number % kShards;
  }

  std::array<Shard, kShards> calls_{};
  alignas(64) std::atomic<bool> has_faults_{false};
  alignas(64) mutable std::mutex mutex_;
  std::vector<Fault> faults_;
  std::deque<std::string> violations_;  ///< a deque: sentences keep their address
  std::size_t violation_count_ = 0;
};

}  // namespace cusim
