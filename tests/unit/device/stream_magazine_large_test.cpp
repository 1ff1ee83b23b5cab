// Magazines and streams: what has a place. Large blocks stay with their thread while they come and go, and no longer; sizes make room for each other.
#include <catch2/catch.hpp>

#include "tests/unit/device/churn.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// Two neighbours that are free, of a size that came and went so often; the pool has no other hole as large as both.
CUdeviceptr free_neighbours(StreamRig& rig, CUstream stream, std::size_t bytes, int pairs) {
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  rig.free_on(rig.on(stream, 2 * bytes), stream);
  REQUIRE(now(rig.counters().reserved_bytes) == reserved_bytes + 2 * bytes);
  const CUdeviceptr one = rig.on(stream, bytes);
  const CUdeviceptr other = rig.on(stream, bytes);
  REQUIRE(other == one + bytes);
  rig.free_on(other, stream);
  for (int i = 0; i < pairs; ++i) {
    const CUdeviceptr block = rig.on(stream, bytes);
    REQUIRE(block == other);
    rig.free_on(block, stream);
  }
  rig.free_on(one, stream);
  return one;
}

}  // namespace

TEST_CASE("stream magazines: as large as it is, a block that comes and goes stays with its thread") {
  RigOptions options = device_of("80GiB");
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  StreamRig rig(options);
  const CUstream stream = new_stream();
  const std::size_t bytes = GENERATE(64 * kMiB, kGiB);
  free_neighbours(rig, stream, bytes, 20);
  const std::uint64_t before = untold_allocations(rig);
  const std::uint64_t calls = cusim_total_calls();
  for (int i = 0; i < 50; ++i) rig.free_on(rig.on(stream, bytes), stream);
  CHECK(untold_allocations(rig) == before + 50);
  CHECK(cusim_total_calls() == calls);
  const std::uint64_t shortages = now(rig.counters().rung_magazines);
  rig.on(stream, 2 * bytes);
  CHECK(now(rig.counters().rung_magazines) == shortages + 1);  // whoever needs the bytes gets them
}

TEST_CASE("stream magazines: a large size does not inherit that another one came and went") {
  StreamRig rig(device_of("80GiB"));
  const CUstream stream = new_stream();
  device::SizedRacks<32> racks;
  const std::size_t one_bytes = 64 * kMiB;
  std::size_t other_bytes = one_bytes + 2 * kMiB;
  while (&racks.at(other_bytes) != &racks.at(one_bytes)) other_bytes += 2 * kMiB;
  const auto warm = [&](std::size_t bytes) {
    for (int i = 0; i < 40; ++i) rig.free_on(rig.on(stream, bytes), stream);
    return rig.on(stream, bytes);
  };
  const CUdeviceptr one = warm(one_bytes);
  const CUdeviceptr other = warm(other_bytes);
  REQUIRE(untold_allocations(rig) > 0);
  rig.free_on(one, stream);
  CHECK(untold_allocations(rig) == 0);  // the device was asked
  rig.free_on(other, stream);
}

TEST_CASE("stream magazines: large blocks that are not wanted soon after they were freed are holes at once") {
  StreamRig rig(device_of("80GiB"));
  const CUstream stream = new_stream();
  const CUdeviceptr one = free_neighbours(rig, stream, 64 * kMiB, 2);
  const std::uint64_t shortages = now(rig.counters().rung_magazines);
  CHECK(rig.on(stream, 128 * kMiB) == one);
  CHECK(now(rig.counters().rung_magazines) == shortages);
}

TEST_CASE("stream magazines: large blocks that were wanted often, and then no more, are holes after a while") {
  StreamRig rig(device_of("80GiB"));
  const CUstream stream = new_stream();
  rig.free_on(rig.on(stream, 24 * kMiB), stream);  // for the small ones
  const CUdeviceptr one = free_neighbours(rig, stream, 64 * kMiB, 20);
  for (std::size_t i = 1; i <= 200; ++i) rig.on(stream, i * 512);  // sizes of its own: each asks the device
  const std::uint64_t shortages = now(rig.counters().rung_magazines);
  CHECK(rig.on(stream, 128 * kMiB) == one);
  CHECK(now(rig.counters().rung_magazines) == shortages);
}

TEST_CASE("stream magazines: what was wanted yesterday makes room for what is wanted today") {
  StreamRig rig(limited_to("256MiB"));
  const CUstream yesterday = new_stream();
  const CUstream today = new_stream();
  rig.free(rig.allocate(64 * kMiB));            // no miss closes the magazine
  kept_blocks(rig, yesterday, 32 * kKiB, 400);  // more than may be kept
  for (const CUstream stream : {today, yesterday}) {
    kept_blocks(rig, stream, 24 * kKiB, 20);
    const std::uint64_t before = untold_allocations(rig);
    for (int i = 0; i < 50; ++i) rig.free_on(rig.on(stream, 24 * kKiB), stream);
    CHECK(untold_allocations(rig) == before + 50);
  }
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stream magazines: a size that is asked for now and then takes no place from one that is asked for all the time") {
  StreamRig rig(device_of("64GiB"));
  rig.free(rig.allocate(256 * kMiB));  // no miss closes the magazine
  const std::size_t often_bytes = GENERATE(std::size_t{4 * kKiB}, std::size_t{64 * kKiB});
  device::StreamRacks racks;
  std::size_t seldom_bytes = often_bytes + 512;
  while (&racks.sizes.at(seldom_bytes) != &racks.sizes.at(often_bytes)) seldom_bytes += 512;
  const CUstream stream = new_stream();
  kept_blocks(rig, stream, often_bytes, 3);
  std::size_t asked = 0;
  for (int i = 0; i < 1000; ++i) {
    if (i % 10 == 9) rig.free_on(rig.on(stream, seldom_bytes), stream);
    const std::uint64_t told = now(rig.counters().allocations);
    rig.free_on(rig.on(stream, often_bytes), stream);
    asked += now(rig.counters().allocations) != told ? 1 : 0;
  }
  CHECK(asked <= 62);  // of 1000; a few when it gets its place back
  CHECK(rig.pools().check() == "");
}
