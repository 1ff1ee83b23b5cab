// Zones: regions whose holes are looked at apart from others'.
#include <catch2/catch.hpp>

#include <vector>

#include "pool/heap/extent_heap.hpp"

using namespace cupool::heap;

namespace {

constexpr std::uint64_t kBase = 0x7f00'0000'0000;
constexpr std::uint64_t kMiB = 1 << 20;

/// A region of 8 MiB in each of three zones, with memory.
struct ThreeZones {
  ThreeZones() : heap(FitPolicy{}, 3) {
    for (unsigned zone = 0; zone < 3; ++zone) {
      regions.push_back(heap.add_empty_region(kBase + zone * 16 * kMiB, 8 * kMiB, nullptr, zone));
      heap.free(regions.back()->first);
    }
    REQUIRE(heap.check() == "");
  }
  unsigned zone_of(const Extent* extent) const { return extent != nullptr ? extent->region->zone : 99; }

  ExtentHeap heap;
  std::vector<Region*> regions;
};

}  // namespace

TEST_CASE("zones: a block comes from the zones that it is looked for in, in their order") {
  ThreeZones three;
  const auto take = [&](const ZoneOrder& order) { return three.zone_of(three.heap.allocate(8 * kMiB, 0, 0, order)); };
  SECTION("one") {
    CHECK(take({1, 1, false}) == 1);
    CHECK(take({1, 1, false}) == 99);
  }
  SECTION("downwards") {
    CHECK(take({2, 1, false}) == 2);
    CHECK(take({2, 1, false}) == 1);
    CHECK(take({2, 1, false}) == 99);
  }
  SECTION("then upwards") {
    CHECK(take({1, 0, true}) == 1);
    CHECK(take({1, 0, true}) == 0);
    CHECK(take({1, 0, true}) == 2);
    CHECK(take({1, 0, true}) == 99);
  }
  SECTION("unless told otherwise the first") {
    CHECK(take({}) == 0);
    CHECK(take({}) == 99);
  }
  CHECK(three.heap.check() == "");
}

TEST_CASE("zones: a looser hole of the first zone is taken before a tighter one of the next") {
  ThreeZones three;
  Extent* block = three.heap.allocate(kMiB, 0, 0, {1, 1, false});
  three.heap.allocate(7 * kMiB, 0, 0, {1, 1, false});
  three.heap.free(block);
  const ZoneOrder both{2, 1, false};
  const ExtentHeap::Fit fit = three.heap.fit(kMiB, both);
  REQUIRE(fit.hole != nullptr);
  CHECK(fit.hole->bytes == 8 * kMiB);
  CHECK(three.heap.fit(9 * kMiB, both).hole == nullptr);
  CHECK(three.zone_of(three.heap.allocate(kMiB, 0, 0, both)) == 2);
  CHECK(three.heap.check() == "");
}

TEST_CASE("zones: what is freed is among its own zone's holes, from lanes too") {
  ThreeZones three;
  const std::uint32_t lane = three.heap.add_lane();
  std::vector<Extent*> blocks;
  for (unsigned zone = 0; zone < 3; ++zone)
    for (int i = 0; i < 4; ++i) blocks.push_back(three.heap.allocate(2 * kMiB, 0, 0, {zone, zone, false}));
  for (std::size_t i = 0; i < blocks.size(); ++i) three.heap.free(blocks[i], i % 4 == 1 ? lane : 0);
  CHECK(three.heap.check() == "");
  CHECK(three.zone_of(three.heap.allocate(2 * kMiB, lane)) != 99);
  std::vector<Extent*> drained;
  three.heap.drain_lane(lane, [&](Extent* extent) { drained.push_back(extent); });
  for (Extent* extent : drained) three.heap.free(extent);
  CHECK(three.heap.check() == "");
  CHECK(three.zone_of(three.heap.allocate(8 * kMiB, 0, 0, {2, 2, false})) == 2);
}

TEST_CASE("zones: every zone's holes are visited, those that are large enough, until one is the right one") {
  ThreeZones three;
  three.heap.allocate(7 * kMiB, 0, 0, {0, 0, false});  // its hole is too small, and does not end the search
  std::vector<unsigned> seen;
  const auto visit = [&](bool is_right) {
    return [&seen, &three, is_right](const Extent* hole) { return seen.push_back(three.zone_of(hole)), is_right; };
  };
  CHECK_FALSE(three.heap.any_hole_largest_first(4 * kMiB, visit(false)));
  CHECK(seen == std::vector<unsigned>{1, 2});
  CHECK(three.heap.any_hole_largest_first(4 * kMiB, visit(true)));
  CHECK(seen == std::vector<unsigned>{1, 2, 1});
  seen.clear();
  CHECK_FALSE(three.heap.any_hole_largest_first(512, visit(false)));
  CHECK(seen == std::vector<unsigned>{0, 1, 2});
}
