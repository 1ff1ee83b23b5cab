// How much of what was freed may wait for the GPU before a free waits: shares of what was never needed, and of what is not live.
#include <catch2/catch.hpp>

#include <algorithm>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// Each time the last of the blocks goes behind work of 10 ms, and another comes.
void go_round(Rig& rig, CUstream stream, std::vector<CUdeviceptr>& blocks, int times) {
  for (int i = 0; i < times; ++i) {
    REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
    rig.free(blocks.back());
    blocks.back() = rig.allocate(16 * kMiB);
    std::rotate(blocks.begin(), blocks.end() - 1, blocks.end());
  }
}
}  // namespace

TEST_CASE("more than a third of what the device has to spare never waits: the free waits for the older ones instead") {
  RigOptions options;
  options.pool.limit.all = config::parse_amount("400MiB");
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(rig.allocate(40 * kMiB));  // 160 MiB to spare
  const CUstream stream = new_stream();
  for (std::size_t i = 0; i < 2; ++i) {
    REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
    CHECK(cusim_now_ns() == 0);  // the first never waits, however large
    rig.free(blocks[i]);
  }
  REQUIRE(now(rig.counters().deferred_bytes) == 40 * kMiB);
  CHECK(cusim_now_ns() == 10 * kMs);
}

TEST_CASE("where the device has four times what a program needs twice that may wait for the GPU, on pages") {
  RigOptions options;
  const bool is_paged = GENERATE(false, true);
  options.pool.backing = is_paged ? config::Backing::pages : config::Backing::segments;
  if (!is_paged) options.pool.policy = GENERATE(config::Policy::grow, config::Policy::async);
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(rig.allocate(16 * kMiB));  // 768 MiB to spare, two thirds of them for what waits
  go_round(rig, new_stream(), blocks, 200);
  const std::uint64_t share_bytes = (is_paged ? 512 : 256) * kMiB;
  CHECK(peak(rig.counters().deferred_bytes) >= share_bytes);
  CHECK(peak(rig.counters().deferred_bytes) <= share_bytes + 64 * kMiB);  // and an epoch
  CHECK(cusim_calls("cuEventSynchronize") > 0);
}

TEST_CASE("once the peak is over a quarter of what is not live may wait for the GPU, on pages of which a twentieth was never needed") {
  RigOptions options;  // a device of 1 GiB
  const bool is_paged = GENERATE(false, true);
  options.pool.backing = is_paged ? config::Backing::pages : config::Backing::segments;
  Rig rig(options);
  const std::size_t most = GENERATE(36, 60, 62);  // of 64 blocks of 16 MiB
  std::vector<CUdeviceptr> blocks;
  while (blocks.size() < most) blocks.push_back(rig.allocate(16 * kMiB));
  for (; blocks.size() > 8; blocks.pop_back()) rig.free(blocks.back());
  REQUIRE(now(rig.counters().deferred_bytes) <= 48 * kMiB);  // nothing was running
  go_round(rig, new_stream(), blocks, 100);
  const std::uint64_t share_bytes = is_paged && most < 62 ? 56 * 16 * kMiB / 4 : (64 - most) * 16 * kMiB / 3;
  CHECK(peak(rig.counters().deferred_bytes) >= share_bytes);
  CHECK(peak(rig.counters().deferred_bytes) <= share_bytes + 48 * kMiB);  // and an epoch
  CHECK(cusim_calls("cuEventSynchronize") > 0);
}

TEST_CASE("once the steps are known three quarters of what is not live may wait for the GPU, on pages, but for an eighth of the peak") {
  RigOptions options;  // a device of 1 GiB
  options.pool.backing = config::Backing::pages;
  const bool is_known = GENERATE(false, true);
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int step = 0; step < (is_known ? 4 : 1); ++step) {
    while (blocks.size() < 36) blocks.push_back(rig.allocate(16 * kMiB));  // of 64
    for (; blocks.size() > 8; blocks.pop_back()) rig.free(blocks.back());
  }
  go_round(rig, new_stream(), blocks, 200);
  const std::uint64_t not_live_bytes = 56 * 16 * kMiB;
  const std::uint64_t share_bytes = is_known ? not_live_bytes * 3 / 4 - 36 * 16 * kMiB / 8 : not_live_bytes / 4;
  CHECK(peak(rig.counters().deferred_bytes) >= share_bytes - 16 * kMiB);
  CHECK(peak(rig.counters().deferred_bytes) <= share_bytes + 64 * kMiB);  // and an epoch
}

TEST_CASE("while pages had to be moved lately a third of what was never needed may wait, not a quarter of what is not live") {
  RigOptions options;  // a device of 1 GiB
  options.pool.backing = config::Backing::pages;
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  while (blocks.size() < 60) blocks.push_back(rig.allocate(16 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (i % 8 != 0) rig.free(blocks[i]);  // seven in a row are 112 MiB
  std::vector<CUdeviceptr> ring;
  for (std::size_t i = 0; i < blocks.size(); i += 8) ring.push_back(blocks[i]);
  rig.free(rig.allocate(512 * kMiB));
  REQUIRE(now(rig.counters().rung_remap) == 1);
  const CUstream stream = new_stream();
  const auto most_waits = [&](int allocations) {
    std::uint64_t most_bytes = 0;
    for (int i = 0; i < allocations; ++i) {
      REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
      rig.free(ring.back());
      most_bytes = std::max<std::uint64_t>(most_bytes, now(rig.counters().deferred_bytes));
      ring.back() = rig.allocate(16 * kMiB);
      std::rotate(ring.begin(), ring.end() - 1, ring.end());
    }
    return most_bytes;
  };
  CHECK(most_waits(511) <= 64 * kMiB / 3 + 32 * kMiB);
  CHECK(now(rig.counters().rung_remap) == 1);
  CHECK(most_waits(100) >= (kGiB - 8 * 16 * kMiB) / 4);
}
