// Regions of segments: they double and are shared, but below a pool, which asks for whole multiples of 2 MiB only, each block has its own.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// What PyTorch's own allocator does: segments of 20 MiB for activations, with some of 2 MiB between them that stay. The larger ones go.
std::vector<CUdeviceptr> leave_small_ones(Rig& rig, int count) {
  std::vector<CUdeviceptr> going, staying;
  for (int i = 0; i < count; ++i) {
    going.push_back(rig.allocate(20 * kMiB));
    if (i % 4 == 0) staying.push_back(rig.allocate(2 * kMiB));
  }
  for (const CUdeviceptr address : going) rig.free(address);
  return staying;
}

int count_until_refused(Rig& rig, std::size_t bytes) {
  int count = 0;
  for (Result<CUdeviceptr> block = rig.try_allocate(bytes); block.ok(); block = rig.try_allocate(bytes)) ++count;
  return count;
}

}  // namespace

TEST_CASE("regions: what a pool above gave back is there for its larger segments, whatever of it stayed between") {
  Rig rig(device_of("1GiB"));
  const std::size_t staying = leave_small_ones(rig, 40).size();
  CHECK(count_until_refused(rig, 90 * kMiB) == static_cast<int>((1024 - 2 * staying) / 90));
  CHECK(rig.pools().check() == "");
}

TEST_CASE("regions: a small segment does not settle in a region that was made for a larger one, unless nothing else is left") {
  Rig rig(device_of("600MiB"));
  const CUdeviceptr large = rig.allocate(400 * kMiB);
  rig.free(large);
  std::vector<CUdeviceptr> small;
  for (int i = 0; i < 40; ++i) small.push_back(rig.allocate(2 * kMiB));
  CHECK(rig.allocate(400 * kMiB) != 0);
  for (const CUdeviceptr address : small) rig.free(address);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("regions: what no device could serve costs the pool nothing") {
  Rig rig(device_of("2GiB"));
  std::vector<CUdeviceptr> segments;
  for (int i = 0; i < 20; ++i) segments.push_back(rig.allocate(20 * kMiB));
  for (const CUdeviceptr address : segments) rig.free(address);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  for (const std::size_t bytes : {4 * kGiB, std::size_t{1} << 44, std::size_t{0} - 2 * kMiB, std::size_t{0} - 512})
    CHECK(rig.try_allocate(bytes).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(now(rig.counters().regions_released) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("regions: of sizes that come once and go the pool keeps about half of what was live, beside what lives") {
  Rig rig(device_of("64GiB"));
  std::mt19937 random(7);
  std::vector<CUdeviceptr> live;
  std::uint64_t most_bytes = 0;
  for (int step = 0; step < 2000; ++step) {
    live.push_back(rig.allocate((1 + random() % 200) * 2 * kMiB));
    if (live.size() > 16) {
      std::swap(live[random() % live.size()], live.back());
      rig.free(live.back());
      live.pop_back();
    }
    if (step % 50 == 0) REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    most_bytes =
        std::max<std::uint64_t>(most_bytes, now(rig.counters().reserved_bytes) - now(rig.counters().live_bytes) - now(rig.counters().deferred_bytes));
  }
  CHECK(most_bytes <= peak(rig.counters().live_bytes) * 3 / 4);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("regions: of a program that asks for other sizes too they double and are shared") {
  const bool in_stream_order = GENERATE(false, true);
  Rig rig(device_of("8GiB"));
  const StreamName stream{in_stream_order ? new_stream() : nullptr, in_stream_order ? 77U : 0U};
  for (int i = 0; i < 200; ++i) {
    const std::size_t bytes = in_stream_order || i % 4 != 0 ? 2 * kMiB : 3 * kMiB + 512;
    const Result<CUdeviceptr> block =
        in_stream_order ? rig.pools().allocate_on(rig.context(), bytes, stream, 1, "cuMemAllocAsync") : rig.try_allocate(bytes);
    REQUIRE(block.ok());
  }
  CHECK(now(rig.counters().regions_created) <= 12);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("regions: below a pool a block of another size has the region that was made for it") {
  Rig rig(device_of("8GiB"));
  for (int i = 0; i < 100; ++i) rig.allocate(4 * kMiB);
  for (const std::size_t bytes : {kMiB, std::size_t{3 * kMiB + 512}, std::size_t{48 * kKiB}}) rig.allocate(bytes);
  CHECK(now(rig.counters().native_fallbacks) == 0);
  CHECK(now(rig.counters().regions_created) <= 103);
  CHECK(now(rig.counters().regions_released) == 0);
  CHECK(rig.pools().check() == "");
}
