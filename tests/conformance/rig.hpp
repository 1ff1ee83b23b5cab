// Rig: a fresh simulated driver, a current context and a PoolSet on it. What every test of pool/device starts from.
//
// The clock is the simulator's: a pause of the pool lets virtual time pass, so that no test sleeps. After each test the
// destructor has checked the pool's invariants and that the driver saw nothing that a correct program never does.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/amount.hpp"
#include "config/options.hpp"
#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/device/pool_set.hpp"
#include "pool/observe/live_page.hpp"
#include "tests/sim/cusim.h"

namespace cupool::test {

inline constexpr std::uint64_t kMs = 1'000'000;  ///< a millisecond, in nanoseconds

/// The simulator's virtual time. Other threads get to run at each pause.
class SimClock final : public Clock {
 public:
  std::uint64_t now_ns() const override { return cusim_now_ns(); }
  void pause(std::uint64_t duration_ns) override;
};

/// Time passes in the driver only: for threads that wait for each other, however long one of them is kept from running meanwhile.
class DriversClock final : public Clock {
 public:
  std::uint64_t now_ns() const override { return cusim_now_ns(); }
  void pause(std::uint64_t duration_ns) override;
};

struct RigOptions {
  /// The backing is segments unless a test says otherwise: most rules are about neither, and many tests count regions.
  RigOptions() { pool.backing = config::Backing::segments; }
  int devices = 1;
  const char* memory = "1GiB";
  const char* driver_version = nullptr;
  config::Options pool;
  Clock* clock = nullptr;                   ///< null: a SimClock
  void (*patch)(DriverApi& api) = nullptr;  ///< puts functions of the test's own into the table that the pool gets
};

inline RigOptions device_of(const char* memory) {
  RigOptions options;
  options.memory = memory;
  return options;
}
/// Under CUPOOL_LIMIT=`limit`.
inline RigOptions limited_to(const char* limit) {
  RigOptions options;
  options.pool.limit.all = config::parse_amount(limit);
  return options;
}
/// `options`, but on pages.
inline RigOptions on_pages(RigOptions options = {}) {
  options.pool.backing = config::Backing::pages;
  return options;
}

class Rig {
 public:
  explicit Rig(const RigOptions& options = {});
  ~Rig();
  Rig(const Rig&) = delete;
  Rig& operator=(const Rig&) = delete;

  PoolSet& pools() { return *pools_; }
  /// The primary context of `device`.
  CUcontext context(int device = 0) const { return contexts_.at(static_cast<std::size_t>(device)); }
  /// Makes the primary context of `device` current.
  void use(int device);

  /// An allocation in the current context, as the shim makes it. `allocate` fails the test when it fails.
  Result<CUdeviceptr> try_allocate(std::size_t bytes);
  CUdeviceptr allocate(std::size_t bytes);
  /// A free that must succeed.
  void free(CUdeviceptr address);
  /// In vain, as no pool on top of this one asks: regions are shared then (RegionGrowth::is_below_a_pool).
  void ask_for_odd_sizes();

  observe::LiveDevice& live(int device = 0) { return lives_[static_cast<std::size_t>(device)]; }
  observe::Counters& counters(int device = 0) { return live(device).counters; }
  observe::Snapshot snapshot() { return pools_->snapshot(std::chrono::seconds(10)); }
  /// Ends the primary context of `device` as cuDevicePrimaryCtxReset does, through the pool.
  void reset_device(int device = 0);
  /// The test has broken the driver on purpose: what it complains about is no finding.
  void expect_violations() { violations_expected_ = true; }

 private:
  SimClock clock_;
  DriverApi api_{};
  std::vector<CUcontext> contexts_;
  std::unique_ptr<observe::LiveDevice[]> lives_;
  std::unique_ptr<PoolSet> pools_;
  bool violations_expected_ = false;
};

/// A current value, without ceremony.
inline std::uint64_t now(const observe::Gauge& gauge) { return gauge.current.load(); }
inline std::uint64_t peak(const observe::Gauge& gauge) { return gauge.peak.load(); }
inline std::uint64_t now(const observe::Total& total) { return total.value.load(); }

/// A non-blocking one, in the current context.
CUstream new_stream();

/// Calls of those driver functions that allocate, free or synchronise.
std::uint64_t memory_and_sync_calls();

}  // namespace cupool::test
