// The counters of one device, as plain atomics that can live in shared memory. Their names are in counters.def.
//
// Thread rule: written by one thread at a time, under the device pool's lock (hence relaxed loads and stores, no locked instruction); read by any
// thread at any time.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cupool::observe {

/// A value and the highest it has been.
struct Gauge {
  std::atomic<std::uint64_t> current{0};
  std::atomic<std::uint64_t> peak{0};

  /// Read by anyone at any time.
  std::uint64_t now() const { return current.load(std::memory_order_relaxed); }
  std::uint64_t highest() const { return peak.load(std::memory_order_relaxed); }

  /// As add(), but the caller looks after the peak. Returns the new value.
  std::uint64_t shift(std::int64_t delta) {
    const std::uint64_t changed = now() + static_cast<std::uint64_t>(delta);
    current.store(changed, std::memory_order_relaxed);
    return changed;
  }
  /// Adds `delta` (may be negative). Precondition: the writer holds the lock that owns this gauge.
  void add(std::int64_t delta) {
    const std::uint64_t changed = shift(delta);
    if (changed > highest()) peak.store(changed, std::memory_order_relaxed);
  }
};

/// A number that only grows.
struct Total {
  std::atomic<std::uint64_t> value{0};

  /// Read by anyone at any time.
  std::uint64_t count() const { return value.load(std::memory_order_relaxed); }
  /// Precondition: the writer holds the lock that owns this total.
  void add(std::uint64_t delta = 1) { value.store(count() + delta, std::memory_order_relaxed); }
  /// Takes back one that was counted before its call failed. Precondition: as add().
  void take_back() { value.store(count() - 1, std::memory_order_relaxed); }
};

struct Counters {
#define GAUGE(name, unit, doc) Gauge name;
#define TOTAL(name, unit, doc) Total name;
#include "pool/observe/counters.def"
#undef GAUGE
#undef TOTAL
};

struct CounterRow {
  const char* name;
  const char* unit;
  const char* doc;
  bool is_gauge;
};

inline constexpr CounterRow kCounterRows[] = {
#define GAUGE(name, unit, doc) {#name, #unit, doc, true},
#define TOTAL(name, unit, doc) {#name, #unit, doc, false},
#include "pool/observe/counters.def"
#undef GAUGE
#undef TOTAL
};

}  // namespace cupool::observe
