// Epochs in a queue. One that was closed late stands there before others: it may not be waited for itself, but it keeps nobody from waiting for
// those. And what the GPU is done with leaves the queue.
#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kS = 1'000'000'000;

/// Work of three seconds, covered by an epoch that an allocation closed: what was freed lately is the smaller part of it.
void leave_late_epoch(Rig& rig) {
  std::vector<CUdeviceptr> small;
  for (int i = 0; i < 65; ++i) small.push_back(rig.allocate(64 * kKiB));
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const auto mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  REQUIRE(rig.pools().begin_capture(
              stream, [&] { return cuStreamBeginCapture_v2(stream, mode); }, mode) == CUDA_SUCCESS);
  for (const CUdeviceptr block : small) rig.free(block);
  CUgraph graph = nullptr;
  REQUIRE(rig.pools().end_capture(
              stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(stream, 3 * kS) == CUDA_SUCCESS);
  const std::uint64_t closed = now(rig.counters().epochs_closed);
  rig.allocate(64 * kKiB);
  REQUIRE(now(rig.counters().epochs_closed) == closed + 1);
}

RigOptions of_backing(config::Backing backing) {
  RigOptions options;
  options.memory = "256MiB";
  options.pool.backing = backing;
  return options;
}

}  // namespace

TEST_CASE("an allocation waits for what was freed as natively it had been, also behind an epoch that may only be polled") {
  Rig rig(of_backing(GENERATE(config::Backing::segments, config::Backing::pages)));
  leave_late_epoch(rig);
  for (int i = 0; i < 16; ++i) {
    INFO(i);
    const Result<CUdeviceptr> block = rig.try_allocate(48 * kMiB);
    REQUIRE(block.ok());
    rig.free(block.value());
  }
  CHECK(cusim_now_ns() >= 3 * kS);
}

TEST_CASE("frees catch up with what is over natively, also behind an epoch that may only be polled") {
  const config::Backing backing = GENERATE(config::Backing::segments, config::Backing::pages);
  Rig rig(of_backing(backing));
  const bool is_tight = GENERATE(false, true);
  if (is_tight) rig.allocate(144 * kMiB);
  leave_late_epoch(rig);
  for (int i = 0; i < 16; ++i) rig.free(rig.allocate(16 * kMiB));
  CHECK(cusim_now_ns() >= 3 * kS);
  if (is_tight) CHECK(peak(rig.counters().deferred_bytes) <= 48 * kMiB);  // a third of what is spare, and an epoch
  // A third of what is spare, or two, and an epoch
  CHECK(peak(rig.counters().deferred_bytes) <= (backing == config::Backing::segments ? 128 : 176) * kMiB);
}

TEST_CASE("make_room waits for what was freed as natively it had been, also behind an epoch that may only be polled") {
  RigOptions options = of_backing(GENERATE(config::Backing::segments, config::Backing::pages));
  options.pool.limit.all = config::parse_amount("64MiB");
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(48 * kMiB);
  leave_late_epoch(rig);
  rig.free(block);
  CHECK(rig.pools().make_room());
  CHECK(cusim_now_ns() >= 3 * kS);
}

TEST_CASE("epochs that came to stand in a queue while the GPU was behind get fewer again, and are asked about seldom while it is") {
  Rig rig(device_of("1GiB"));  // no thread keeps such blocks there
  const CUstream stream = new_stream();
  const auto pairs = [&](int epochs) {
    for (int i = 0; i < 64 * epochs; ++i) {
      rig.free(rig.allocate(64 * kKiB));
      REQUIRE(cusim_launch_spin(stream, kMs) == CUDA_SUCCESS);
    }
  };
  constexpr std::uint64_t kEpoch_bytes = 64 * 64 * kKiB;
  pairs(30);
  REQUIRE(now(rig.counters().deferred_bytes) >= 30 * kEpoch_bytes);
  cusim_advance_ns(100'000 * kMs);  // all is over
  pairs(1);
  const auto pairs_behind = [&](int epochs) {  // the GPU stays as far behind as it is
    for (int i = 0; i < epochs; ++i) {
      pairs(1);
      cusim_advance_ns(64 * kMs);
    }
  };
  pairs_behind(40);
  CHECK(now(rig.counters().deferred_bytes) <= 8 * kEpoch_bytes);
  pairs(8);
  const std::uint64_t asked = cusim_calls("cuEventQuery");
  pairs_behind(64);
  CHECK(cusim_calls("cuEventQuery") <= asked + 64 + 64 / 8);
}
