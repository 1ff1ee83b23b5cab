// A program that once needed everything, and goes on with little: its operations cost what they did before.
#include <catch2/catch.hpp>

#include <cstdint>
#include <vector>

#include "tests/unit/device/churn.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// How many of so many pairs the device was told of at once, as it is of those under its lock.
template <class Pair> int told_pairs(Rig& rig, int pairs, Pair&& pair) {
  int count = 0;
  for (int i = 0; i < pairs; ++i) {
    const std::uint64_t told = now(rig.counters().allocations);
    pair();
    if (now(rig.counters().allocations) != told) ++count;
  }
  return count;
}

std::uint64_t recorded_events() { return cusim_calls("cuCtxRecordEvent") + cusim_calls("cuEventRecord"); }

std::vector<CUdeviceptr> allocate_all(Rig& rig, std::size_t bytes) {
  std::vector<CUdeviceptr> blocks;
  for (Result<CUdeviceptr> block = rig.try_allocate(bytes); block.ok(); block = rig.try_allocate(bytes)) blocks.push_back(block.value());
  return blocks;
}

/// All of 8 GiB was live at once, and nothing is any more.
struct EmptiedRig : StreamRig {
  explicit EmptiedRig(config::Backing backing) : StreamRig(device_with(backing)) {
    const std::vector<CUdeviceptr> blocks = allocate_all(*this, 64 * kMiB);
    all = blocks.size();
    free_them(*this, blocks);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    pools().after_wait(context());
  }
  static RigOptions device_with(config::Backing backing) {
    RigOptions options = device_of("8GiB");
    options.pool.backing = backing;
    return options;
  }
  std::size_t all = 0;
};

}  // namespace

TEST_CASE("a program that once needed everything, and now little of it, has small blocks back without the lock, for an event per 64 frees") {
  for (const config::Backing backing : {config::Backing::segments, config::Backing::pages}) {
    INFO(static_cast<int>(backing));
    EmptiedRig rig(backing);
    const auto pair = [&rig] { rig.free(rig.allocate(4 * kKiB)); };
    told_pairs(rig, 2000, pair);
    const std::uint64_t events = recorded_events();
    CHECK(told_pairs(rig, 6400, pair) <= 6400 / 10);
    CHECK(recorded_events() - events <= 6400 / 60);
    CHECK(allocate_all(rig, 64 * kMiB).size() + 1 >= rig.all);  // the first of them begins behind what the thread keeps
  }
}

TEST_CASE("what it frees on a stream has no events of its own either") {
  EmptiedRig rig(config::Backing::segments);
  const CUstream stream = new_stream();
  const auto pair = [&] { rig.free_on(rig.allocate(64 * kKiB), stream); };
  told_pairs(rig, 100, pair);
  const std::uint64_t events = recorded_events();
  told_pairs(rig, 800, pair);
  CHECK(recorded_events() - events <= 800 / 60);
}

TEST_CASE("it does not wait at its frees for the GPU, which is behind") {
  EmptiedRig rig(config::Backing::segments);
  for (int i = 0; i < 64; ++i) REQUIRE(cusim_launch_spin(nullptr, kMs) == CUDA_SUCCESS);
  const std::uint64_t waits = cusim_calls("cuEventSynchronize");
  for (int i = 0; i < 1000; ++i) {
    rig.free(rig.allocate(256 * kKiB));
    REQUIRE(cusim_launch_spin(nullptr, kMs) == CUDA_SUCCESS);
    cusim_advance_ns(kMs);
  }
  CHECK(cusim_calls("cuEventSynchronize") == waits);
}

TEST_CASE("nor does it wait for a place that fits, once it has needed a quarter at most for as long as it ran before, and for 8,192 allocations") {
  const bool is_more = GENERATE(false, true);
  EmptiedRig rig(config::Backing::pages);
  rig.allocate(is_more ? 2 * kGiB : kGiB);
  for (int i = 0; i < 64; ++i) REQUIRE(cusim_launch_spin(nullptr, kMs) == CUDA_SUCCESS);
  const auto waits_of = [&](int pairs) {
    const std::uint64_t waits = cusim_calls("cuEventSynchronize");
    for (int i = 0; i < pairs; ++i) {
      rig.free(rig.allocate(16 * kMiB));
      REQUIRE(cusim_launch_spin(nullptr, kMs) == CUDA_SUCCESS);
      cusim_advance_ns(kMs);
    }
    return cusim_calls("cuEventSynchronize") - waits;
  };
  CHECK(waits_of(1000) >= 900);  // it may need all of it again any time
  waits_of(2 * 4096 - 1000);
  const std::uint64_t waits = waits_of(1000);
  CHECK((is_more ? waits >= 900 : waits == 0));
}
