// Fault injection, call counts, violations.
#include "tests/sim/faults.hpp"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace cusim {

std::uint64_t Ledger::total_calls() const {
  std::uint64_t total = 0;
  for (const Shard& shard : calls_)
    for (const auto& calls : shard.counts) total += calls.load(std::memory_order_relaxed);
  return total;
}

void Ledger::add_fault(const FaultSetting& fault) {
  const SymbolRow* row = find_symbol(fault.symbol.c_str());
  if (row == nullptr || fault.nth == 0) {
    std::fprintf(stderr, "cusim: fault for unknown symbol '%s' (or call 0)\n", fault.symbol.c_str());
    std::abort();
  }
  const auto symbol = static_cast<Symbol>(row - &symbol_row(Symbol{}));
  const std::lock_guard guard(mutex_);
  if (fault.times == 0) {
    std::erase_if(faults_, [symbol](const Fault& one) { return one.symbol == symbol; });
    return;
  }
  faults_.push_back({symbol, fault.nth - 1, fault.code, fault.times, fault.is_sticky});
  has_faults_.store(true, std::memory_order_release);
}

std::optional<Ledger::Failure> Ledger::take_fault(Symbol symbol) {
  const std::lock_guard guard(mutex_);
  for (auto fault = faults_.begin(); fault != faults_.end(); ++fault) {
    if (fault->symbol != symbol) continue;
    if (fault->skip > 0) {
      --fault->skip;
      continue;
    }
    const Failure failure{fault->code, fault->is_sticky};
    if (--fault->times == 0) faults_.erase(fault);
    return failure;
  }
  return std::nullopt;
}

void Ledger::add_violation(std::string sentence) {
  const std::lock_guard guard(mutex_);
  ++violation_count_;
  if (violations_.size() < kKeptViolations) violations_.push_back(std::move(sentence));
}

std::size_t Ledger::violation_count() const {
  const std::lock_guard guard(mutex_);
  return violation_count_;
}

const char* Ledger::violation(std::size_t index) const {
  const std::lock_guard guard(mutex_);
  if (index >= violation_count_) return nullptr;
  return index < violations_.size() ? violations_[index].c_str() : "a violation after the first 1000, which are kept";
}

void Ledger::reset() {
  const std::lock_guard guard(mutex_);
  for (Shard& shard : calls_)
    for (auto& calls : shard.counts) calls.store(0, std::memory_order_relaxed);
  faults_.clear();
  violations_.clear();
  violation_count_ = 0;
  has_faults_.store(false, std::memory_order_release);
}

}  // namespace cusim
