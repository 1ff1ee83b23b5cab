// Turns of calls that make pools of the driver grow, and what is late to go back: see pool_growth.hpp.
#include "pool/device/pool_growth.hpp"

#include <sched.h>

#include <algorithm>

namespace cupool::device {

PoolGrowth::Turn PoolGrowth::begin(std::uint64_t bytes) {
  if (limit_.limit_bytes() == 0) return {};
  const std::uint64_t most_bytes = saturating_add(bytes, kStep_bytes);
  for (std::uint32_t attempt = 0;; ++attempt) {
    if (std::optional<Turn> turn = try_begin(most_bytes, attempt == kMostAttempts)) return std::move(*turn);
    if (attempt < kSpins) sched_yield();
    else clock_.pause(kDriverCallPause_ns);
  }
}

std::optional<PoolGrowth::Turn> PoolGrowth::try_begin(std::uint64_t most_bytes, bool is_last_attempt) {
  const MutexLock lock(mutex_);
  if (is_last_attempt) {
    ++round_;
    growing_bytes_ = 0;
    is_alone_ = false;
  }
  const bool may_pass = limit_.headroom_bytes() < saturating_add(growing_bytes_, most_bytes);
  if (is_alone_ || (may_pass && growing_bytes_ != 0)) return std::nullopt;
  is_alone_ = may_pass;
  growing_bytes_ += most_bytes;
  return std::optional<Turn>(std::in_place, *this, most_bytes, round_);
}

void PoolGrowth::end(std::uint64_t most_bytes, std::uint64_t round) {
  const MutexLock lock(mutex_);
  if (round != round_) return;
  growing_bytes_ -= most_bytes;
  if (growing_bytes_ == 0) is_alone_ = false;
}

void PoolGrowth::note_late(std::uint64_t address, std::uint64_t bytes, std::uint64_t grown_bytes) {
  const std::uint64_t beside_bytes = saturating_sub(grown_bytes, bytes);  // on which side of the block the rest of the step lies is not known
  const Span span{saturating_sub(address, beside_bytes), address + bytes + beside_bytes};
  const MutexLock lock(mutex_);
  if (late_count_ < late_.size()) {
    late_[late_count_++] = span;
    return;
  }
  Span& last = late_.back();
  last = {std::min(last.begin, span.begin), std::max(last.end, span.end)};
}

bool PoolGrowth::is_late(std::uint64_t address, std::uint64_t bytes) const {
  const MutexLock lock(mutex_);
  return std::any_of(late_.begin(), late_.begin() + late_count_,
                     [&](const Span& span) { return address < span.end && span.begin < address + bytes; });
}

bool PoolGrowth::has_late() const {
  if (limit_.limit_bytes() == 0) return false;
  const MutexLock lock(mutex_);
  return late_count_ != 0;
}

void PoolGrowth::forget_late() {
  const MutexLock lock(mutex_);
  late_count_ = 0;
}

}  // namespace cupool::device
