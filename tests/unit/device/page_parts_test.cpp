// All of a device in parts of whole pages, beside a small block that comes and goes or stays.
#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

RigOptions pages(const char* memory) {
  RigOptions options;
  options.memory = memory;
  options.pool.backing = config::Backing::pages;
  return options;
}

}  // namespace

TEST_CASE("pages: all of the device is there in equal parts, whatever small block came and went before") {
  const std::uint64_t parts = GENERATE(std::uint64_t{2}, std::uint64_t{4}, std::uint64_t{64});
  const bool is_freed_first = GENERATE(true, false);
  Rig rig(pages("256MiB"));
  const CUdeviceptr small = rig.allocate(kMiB);
  if (is_freed_first) rig.free(small);
  rig.allocate(256 * kMiB / parts);
  if (!is_freed_first) rig.free(small);
  for (std::uint64_t i = 1; i < parts; ++i) rig.allocate(256 * kMiB / parts);
  CHECK(now(rig.counters().live_bytes) == 256 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: a small block keeps one page of what is preallocated") {
  RigOptions options = pages("16GiB");
  options.pool.policy = config::Policy::preallocate;
  Rig rig(options);
  rig.allocate(4 * kKiB);
  for (int i = 0; i < 2; ++i) rig.allocate(8 * kGiB - 2 * kMiB);
  CHECK(now(rig.counters().live_blocks) == 3);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("blocks of half and of whole pages in turn fill a large device") {
  Rig rig(pages("8GiB"));
  std::uint64_t live_bytes = 0;
  for (std::uint64_t bytes = 11 * kMiB; rig.try_allocate(bytes).ok(); bytes = bytes == 11 * kMiB ? 22 * kMiB : 11 * kMiB) live_bytes += bytes;
  CHECK(live_bytes >= 8 * kGiB - 24 * kMiB);
}

TEST_CASE("pages: what the driver has left is asked once a quarter of it was taken, and not with each growth") {
  RigOptions options = pages("1GiB");
  options.pool.release_threshold_bytes = kGiB;  // so each growth brings one block
  Rig rig(options);
  rig.allocate(2 * kMiB);
  const std::uint64_t asked = cusim_calls("cuMemGetInfo_v2");
  for (int i = 0; i < 300; ++i) rig.allocate(2 * kMiB);
  CHECK(now(rig.counters().rung_grow) == 301);
  CHECK(cusim_calls("cuMemGetInfo_v2") - asked >= 2);  // 1024 MiB, less than 768, than 576, than 432
  CHECK(cusim_calls("cuMemGetInfo_v2") - asked <= 4);
}
