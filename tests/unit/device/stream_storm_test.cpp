// Stream-ordered calls in random order while memory is short: whatever is stolen, drained, set aside, taken back or split, no byte has two owners
// before its time, every stamp speaks for bytes that are free in its lane, and what the program has freed is there.
#include <array>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/device/churn.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr int kSteps = 250;

struct Owned {
  CUdeviceptr block;
  std::size_t bytes;
  CUstream stream;
  std::uint8_t value;
  bool is_plain;
};

/// A program of three streams; what a block holds is looked at in its stream's order right before its free.
struct Storm : StreamRig {
  Storm(const RigOptions& options, unsigned seed) : StreamRig(options), random(seed) {
    for (CUstream& stream : streams) stream = new_stream();
  }
  std::size_t pick_bytes() {
    const std::size_t unit = random() % 3 == 0 ? 512 : 64 * kKiB;
    return unit << random() % 6;
  }
  void allocate_one() {
    const CUstream stream = streams[random() % streams.size()];
    const std::size_t bytes = pick_bytes();
    const bool is_plain = random() % 10 == 0;
    const Result<CUdeviceptr> block = is_plain ? try_allocate(bytes) : try_on(stream, bytes);
    if (!block.ok()) {
      REQUIRE(block.code() == CUDA_ERROR_OUT_OF_MEMORY);
      if (!live.empty()) free_one();
      return;
    }
    const auto value = static_cast<std::uint8_t>(random());
    REQUIRE(cusim_launch_fill(stream, block.value(), bytes, value, random() % 4 == 0 ? random() % 300'000 : 1) == CUDA_SUCCESS);
    live.push_back({block.value(), bytes, stream, value, is_plain});
    live_bytes += round_up(bytes);
  }
  void free_one() {
    const std::size_t at = random() % live.size();
    const Owned one = live[at];
    live[at] = live.back();
    live.pop_back();
    live_bytes -= round_up(one.bytes);
    REQUIRE(cusim_launch_check(one.stream, one.block, one.bytes, one.value, random() % 4 == 0 ? random() % 300'000 : 1) == CUDA_SUCCESS);
    if (random() % 10 == 0) {
      if (!one.is_plain) REQUIRE(cuStreamSynchronize(one.stream) == CUDA_SUCCESS);  // that free does not wait
      free(one.block);
      return;
    }
    CUstream by = one.stream;
    if (random() % 8 == 0) {  // in another stream's order, which has waited
      by = streams[random() % streams.size()];
      CUevent event = nullptr;
      REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
      REQUIRE(cuEventRecord(event, one.stream) == CUDA_SUCCESS);
      REQUIRE(cuStreamWaitEvent(by, event, 0) == CUDA_SUCCESS);
      REQUIRE(cuEventDestroy_v2(event) == CUDA_SUCCESS);
    }
    free_on(one.block, by);
  }
  void renew_stream() {
    CUstream& stream = streams[random() % streams.size()];
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    pools().stream_ending(random() % 2 == 0 ? context() : nullptr, name_of(stream).identity);
    const CUstream old = stream;
    REQUIRE(cuStreamDestroy_v2(old) == CUDA_SUCCESS);
    stream = new_stream();
    for (Owned& one : live)
      if (one.stream == old) one.stream = stream;
  }
  void step() {
    const unsigned what = static_cast<unsigned>(random() % 100);
    if (what < 50) allocate_one();
    else if (what < 95 && !live.empty()) free_one();
    else if (what == 95) renew_stream();
    else if (what == 96) REQUIRE(cuStreamSynchronize(streams[0]) == CUDA_SUCCESS);
    else if (what == 97 && random() % 8 == 0) pools().trim();
    else cusim_advance_ns(50'000);
  }
  static std::uint64_t round_up(std::size_t bytes) { return (bytes + 511) / 512 * 512; }

  std::mt19937 random;
  std::array<CUstream, 3> streams{};
  std::vector<Owned> live;
  std::uint64_t live_bytes = 0;
};

}  // namespace

TEST_CASE("a storm of stream-ordered calls in little memory") {
  const bool paged = GENERATE(false, true);
  const char* limit = GENERATE("8MiB", "14MiB");
  const unsigned seed = GENERATE(1U, 2U);
  Storm storm(paged ? on_pages(limited_to(limit)) : limited_to(limit), seed);
  INFO("paged " << paged << ", limit " << limit << ", seed " << seed);
  for (int i = 0; i < kSteps; ++i) {
    storm.step();
    REQUIRE(now(storm.counters().live_bytes) == storm.live_bytes);
    if (i % 7 == 0) REQUIRE(storm.pools().check() == "");
  }
  REQUIRE(storm.pools().mempool_figures(0, kDefaultPool).used_bytes <= storm.live_bytes);
  while (!storm.live.empty()) storm.free_one();
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(now(storm.counters().live_bytes) == 0);
  CHECK(storm.try_on(storm.streams[1], static_cast<std::size_t>(config::parse_amount(limit)->resolve(kGiB)) - 2 * kMiB).ok());
  CHECK(storm.pools().check() == "");
}
