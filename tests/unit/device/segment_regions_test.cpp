// Regions of segments: they double and are shared, but large blocks have their own, and below a pool, which asks for whole multiples of 2 MiB only,
// all have.
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

TEST_CASE("regions: what was large leaves all of its region, whatever small blocks came between and stay") {
  Rig rig(device_of("1GiB"));
  std::vector<CUdeviceptr> large;
  std::size_t small_bytes = 0;
  for (; small_bytes < 70 * 40 * kKiB; small_bytes += 40 * kKiB) {
    large.push_back(rig.allocate(12 * kMiB - 512));
    rig.allocate(40 * kKiB);
  }
  for (const CUdeviceptr address : large) rig.free(address);
  CHECK(count_until_refused(rig, 150 * kMiB) >= 6);  // of 6.8
  CHECK(rig.pools().check() == "");
}

TEST_CASE("regions: small blocks do not open the region that a large one left, while the driver has others") {
  Rig rig(device_of("1GiB"));
  rig.allocate(4 * kKiB);
  rig.free(rig.allocate(600 * kMiB));
  for (int i = 0; i < 60; ++i) rig.allocate(3 * kMiB);
  CHECK(rig.try_allocate(600 * kMiB).ok());
  CHECK(rig.pools().check() == "");
}

TEST_CASE("regions: of large sizes that come once and go the pool keeps no more than twice what was live while there is plenty") {
  Rig rig(device_of("64GiB"));
  std::mt19937 random(7);
  std::vector<CUdeviceptr> live;
  for (int step = 0; step < 2000; ++step) {
    live.push_back(rig.allocate((16 + random() % 400) * kMiB - random() % 1000 * 512));
    if (live.size() > 40) {
      std::swap(live[random() % live.size()], live.back());
      rig.free(live.back());
      live.pop_back();
    }
    if (step % 50 == 0) REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  }
  CHECK(peak(rig.counters().reserved_bytes) <= 2 * peak(rig.counters().live_bytes));
  CHECK(rig.pools().check() == "");
}
