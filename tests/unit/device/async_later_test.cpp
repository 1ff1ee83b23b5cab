// The `async` policy on a driver that gets to a free some time after the call, and what goes back to the device of what lies idle.
#include <array>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// A driver that has not got to a free when the call returns, but when its stream is next asked about.
std::vector<std::pair<CUdeviceptr, CUstream>> g_later;
CUresult CUDAAPI free_later(CUdeviceptr address, CUstream stream) {
  g_later.emplace_back(address, stream);
  return CUDA_SUCCESS;
}
CUresult CUDAAPI query_and_free(CUstream stream) {
  for (const auto& [address, freed_on] : std::exchange(g_later, {}))
    if (freed_on == stream) REQUIRE(cuMemFreeAsync(address, freed_on) == CUDA_SUCCESS);
    else g_later.emplace_back(address, freed_on);
  return cuStreamQuery(stream);
}

}  // namespace

TEST_CASE("async: what is freed in order of the pool's own stream is given back, and told as free, once the device has got to it") {
  RigOptions options;
  options.pool.policy = config::Policy::async;
  options.memory = "512MiB";
  options.patch = [](DriverApi& api) {
    api.cuMemFreeAsync = &free_later;
    api.cuStreamQuery = &query_and_free;
  };
  Rig rig(options);
  const bool is_asked = GENERATE(false, true);
  rig.free(rig.allocate(400 * kMiB));
  if (is_asked) {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
    rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);
    CHECK(free_bytes >= 480 * kMiB);
  }
  CHECK(rig.pools().make_room());
  CHECK(g_later.empty());
  CHECK(cusim_used_bytes(0) < 64 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("async: a call outside the pool gets as much of what lies idle as it lacks, and all of it only when that does not do") {
  RigOptions options;
  options.pool.policy = config::Policy::async;
  options.memory = "4GiB";
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 48; ++i) blocks.push_back(rig.allocate(64 * kMiB));
  for (const CUdeviceptr block : blocks) rig.free(block);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().make_room_for(0, kMiB);  // what waits is looked at, and lies idle in the driver's pool then
  const std::uint64_t before_bytes = now(rig.counters().reserved_bytes);
  REQUIRE(before_bytes >= 2800 * kMiB);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  REQUIRE(rig.pools().make_room_for(0, free_bytes + 100 * kMiB));
  const std::uint64_t after_bytes = now(rig.counters().reserved_bytes);
  CHECK(before_bytes - after_bytes >= 100 * kMiB);
  CHECK(before_bytes - after_bytes <= 256 * kMiB);
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  REQUIRE(rig.pools().make_room_for(0, 4 * kGiB - 64 * kMiB));
  CHECK(now(rig.counters().reserved_bytes) <= 64 * kMiB);
}

TEST_CASE("async: a block that somebody has freed past the books keeps none of the others from going back") {
  const std::size_t lost = GENERATE(0, 1, 2);
  RigOptions options;
  options.pool.policy = config::Policy::async;
  Rig rig(options);
  rig.expect_violations();
  std::array<CUdeviceptr, 3> blocks{};
  for (CUdeviceptr& block : blocks) block = rig.allocate(20 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 5'000'000) == CUDA_SUCCESS);
  for (const CUdeviceptr block : blocks) rig.free(block);
  REQUIRE(cuMemFree_v2(blocks[lost]) == CUDA_SUCCESS);  // as a second free that another thread makes at the same moment
  cusim_advance_ns(10'000'000);
  static_cast<void>(rig.pools().trim());
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  static_cast<void>(rig.pools().trim());
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("async: memory that primes the pool and is not taken back at first is the device's again all the same") {
  RigOptions options;
  options.pool.policy = config::Policy::async;
  options.pool.preallocate = config::parse_amount("64MiB");
  options.memory = "256MiB";
  Rig rig(options);
  cusim_fail("cuMemFreeAsync", 1, CUDA_ERROR_UNKNOWN, 1);
  cusim_fail("cuMemFree_v2", 1, CUDA_ERROR_UNKNOWN, 1);
  rig.free(rig.allocate(kMiB));
  CHECK(rig.try_allocate(240 * kMiB).ok());
  CHECK(rig.pools().check() == "");
}

namespace {
std::function<void()> g_beside;  ///< once, by another thread, while the driver tells what is free

CUresult CUDAAPI tell_late(std::size_t* free_bytes, std::size_t* total_bytes) {
  if (const std::function<void()> call = std::exchange(g_beside, nullptr)) std::thread(call).join();
  return cuMemGetInfo_v2(free_bytes, total_bytes);
}

/// Whatever runs is over as soon as the driver has said that it is not.
CUresult CUDAAPI query_too_early(CUevent event) {
  const CUresult code = cuEventQuery(event);
  cusim_advance_ns(50 * kMs);
  return code;
}
}  // namespace

TEST_CASE("async: what a stream may still use is no part of what lies idle, nor of what could go back") {
  RigOptions options;
  options.pool.policy = config::Policy::async;
  options.patch = [](DriverApi& api) {
    api.cuMemGetInfo_v2 = &tell_late;
    api.cuEventQuery = &query_too_early;
  };
  g_beside = nullptr;
  Rig rig(options);
  const CUstream stream = new_stream();
  const CUdeviceptr waiting = rig.allocate(64 * kMiB);
  const std::vector<CUdeviceptr> blocks = {rig.allocate(40 * kMiB), rig.allocate(40 * kMiB)};
  REQUIRE(cusim_launch_spin(stream, 50 * kMs) == CUDA_SUCCESS);
  REQUIRE(rig.pools().free_on(waiting, rig.context(), name_of(stream)).outcome == FreeOutcome::freed);
  g_beside = [&] {  // after the pool has given back what lay idle
    rig.use(0);
    for (const CUdeviceptr block : blocks) rig.free(block);
  };
  rig.pools().note_refusal(0, 2 * kGiB, {"cuMemCreate"});
  const observe::Snapshot snapshot = rig.snapshot();
  REQUIRE(snapshot.ooms.size() == 1);
  const observe::OomEvidence& evidence = snapshot.ooms.front().evidence;
  CHECK(evidence.deferred_at_driver_bytes >= 64 * kMiB);
  CHECK(evidence.releasable_bytes <= evidence.pool_free_bytes);
  CHECK(evidence.releasable_with_deferred_bytes <= evidence.pool_free_bytes + evidence.deferred_bytes);
}
