// CUPOOL_FREE=immediate: the caller orders the reuse of its blocks, as a program does that has all work in one stream. It cannot order that the pool
// takes the memory away from under running work, so the pool does.
#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

RigOptions immediate(const char* driver_version = nullptr) {
  RigOptions options = device_of("128MiB");
  options.pool.free = config::FreeMode::immediate;
  options.driver_version = driver_version;
  return options;
}

/// A block that its free leaves with work of `duration_ns` behind it.
void free_under_work(Rig& rig, CUdeviceptr block, std::size_t bytes, std::uint64_t duration_ns) {
  REQUIRE(cusim_launch_fill(nullptr, block, bytes, 7, duration_ns) == CUDA_SUCCESS);
  rig.free(block);
}

/// A device whose free memory lies in two pieces, each with work behind it, beside a block that stays.
void free_in_pieces(Rig& rig, std::uint64_t duration_ns) {
  const CUdeviceptr first = rig.allocate(40 * kMiB);
  rig.allocate(20 * kMiB);
  const CUdeviceptr second = rig.allocate(40 * kMiB);
  free_under_work(rig, first, 40 * kMiB, duration_ns);
  free_under_work(rig, second, 40 * kMiB, duration_ns);
}

}  // namespace

TEST_CASE("immediate frees: a block is reused at once, whatever still works on it") {
  Rig rig(GENERATE(true, false) ? on_pages(immediate()) : immediate());
  const CUdeviceptr block = rig.allocate(4 * kMiB);
  free_under_work(rig, block, 4 * kMiB, 5 * kMs);
  CHECK(rig.allocate(4 * kMiB) == block);
  CHECK(cusim_now_ns() < 5 * kMs);
}

TEST_CASE("immediate frees: pages move once the work on them is over") {
  Rig rig(on_pages(immediate(GENERATE(as<const char*>{}, nullptr, "12040"))));
  free_in_pieces(rig, 5 * kMs);
  rig.allocate(90 * kMiB);
  CHECK(now(rig.counters().remaps) > 0);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);  // what still ran would touch its memory now
}

TEST_CASE("immediate frees: pages stay where they are while work on them does not end") {
  Rig rig(on_pages(immediate()));
  volatile std::uint32_t is_over = 0;
  REQUIRE(cusim_launch_wait_host(nullptr, &is_over) == CUDA_SUCCESS);
  free_in_pieces(rig, 0);
  const Result<CUdeviceptr> refused = rig.try_allocate(90 * kMiB);
  CHECK(!refused.ok());
  CHECK(refused.error().code == CUDA_ERROR_OUT_OF_MEMORY);
  is_over = 1;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.allocate(90 * kMiB);
}

TEST_CASE("immediate frees: what goes back to the driver goes once the work on it is over") {
  RigOptions options = immediate(GENERATE(as<const char*>{}, nullptr, "12040"));
  if (GENERATE(true, false)) options = on_pages(options);
  Rig rig(options);
  free_under_work(rig, rig.allocate(64 * kMiB), 64 * kMiB, 5 * kMs);
  CHECK(rig.pools().make_room());
  CHECK(cusim_used_bytes(0) == 0);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("immediate frees: what is above the release threshold goes back once the work on it is over") {
  RigOptions options = immediate();
  if (GENERATE(true, false)) options = on_pages(options);
  options.pool.release_threshold_bytes = 0;
  Rig rig(options);
  free_under_work(rig, rig.allocate(64 * kMiB), 64 * kMiB, 5 * kMs);
  CHECK(cusim_used_bytes(0) == 0);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}
