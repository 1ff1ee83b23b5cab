// Lanes: holes that only one user may take, until their lane is drained.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "pool/heap/extent_heap.hpp"

using namespace cupool::heap;

namespace {

constexpr std::uint64_t kBase = 0x7f00'0000'0000;
constexpr std::uint64_t kMiB = 1 << 20;

struct OneRegion {
  explicit OneRegion(std::uint64_t bytes = 8 * kMiB) : region(heap.add_region(kBase, bytes, nullptr)) {}
  ExtentHeap heap;
  Region* region;
};

}  // namespace

TEST_CASE("a hole of a lane is not for other lanes, nor for everybody") {
  OneRegion one;
  Extent* all = one.heap.allocate(8 * kMiB);
  const std::uint32_t mine = one.heap.add_lane();
  const std::uint32_t other = one.heap.add_lane();
  one.heap.free(all, mine);
  CHECK(one.heap.check() == "");
  CHECK(one.heap.allocate(512) == nullptr);
  CHECK(one.heap.allocate(512, other) == nullptr);
  CHECK(one.heap.lane_bytes(mine) == 8 * kMiB);
  CHECK(one.heap.free_bytes() == 8 * kMiB);
  CHECK(one.heap.largest_free_bytes() == 8 * kMiB);
  Extent* block = one.heap.allocate(512, mine);
  REQUIRE(block != nullptr);
  CHECK(block->address == kBase);
  CHECK(one.heap.check() == "");
}

TEST_CASE("what goes only whole is counted of everybody's holes, and of no lane's") {
  FitPolicy policy;
  policy.page_bytes = kMiB;
  ExtentHeap heap(policy, 1, [](const Extent& hole) { return (hole.address + hole.bytes) / kMiB * kMiB - (hole.address + kMiB - 1) / kMiB * kMiB; });
  heap.add_region(kBase, 8 * kMiB, nullptr);
  CHECK(heap.whole_bytes() == 8 * kMiB);
  Extent* a = heap.allocate(512);
  CHECK(heap.whole_bytes() == 7 * kMiB);
  Extent* b = heap.allocate(3 * kMiB);
  CHECK(heap.whole_bytes() == 4 * kMiB);
  const std::uint32_t lane = heap.add_lane();
  heap.free(b, lane);
  CHECK(heap.whole_bytes() == 4 * kMiB);
  CHECK(heap.gather(lane, 5 * kMiB));  // everybody's hole behind it joins it
  CHECK(heap.whole_bytes() == 0);
  heap.drain_lane(lane, [&heap](Extent* hole) { heap.free(hole); });
  CHECK(heap.whole_bytes() == 7 * kMiB);
  heap.free(a);
  CHECK(heap.whole_bytes() == 8 * kMiB);
  CHECK(heap.check() == "");
}

TEST_CASE("a lane without a fitting hole takes everybody's") {
  OneRegion one;
  const std::uint32_t lane = one.heap.add_lane();
  Extent* block = one.heap.allocate(kMiB, lane);
  REQUIRE(block != nullptr);
  CHECK(one.heap.lane_bytes(lane) == 0);
  CHECK(one.heap.check() == "");
}

TEST_CASE("everybody's holes beside a block join its lane when they are no larger") {
  OneRegion one;
  Extent* a = one.heap.allocate(kMiB);
  Extent* b = one.heap.allocate(kMiB);
  Extent* c = one.heap.allocate(kMiB);
  one.heap.allocate(kMiB);
  const std::uint32_t lane = one.heap.add_lane();
  const std::uint64_t address = a->address;
  one.heap.free(a);
  one.heap.free(c);
  one.heap.free(b, lane);
  CHECK(one.heap.check() == "");
  CHECK(one.heap.lane_bytes(lane) == 3 * kMiB);
  CHECK(one.heap.allocate(3 * kMiB, lane)->address == address);
  CHECK(one.heap.check() == "");
}

namespace {
/// A lane has a hole of 3 MiB, everybody one of 1 MiB, and nothing else is free.
struct LooseAndTight : OneRegion {
  LooseAndTight() {
    Extent* loose = heap.allocate(3 * kMiB);
    heap.allocate(512);
    Extent* own = heap.allocate(kMiB);
    heap.allocate(heap.largest_free_bytes());
    tight = own->address;
    heap.free(loose, lane);
    heap.free(own);
  }
  ~LooseAndTight() { CHECK(heap.check() == ""); }
  std::uint32_t lane = heap.add_lane();
  std::uint64_t tight = 0;
};
}  // namespace

TEST_CASE("a lane's loose hole is left alone while everybody has a tighter one") {
  LooseAndTight one;
  CHECK(one.heap.allocate(kMiB, one.lane)->address == one.tight);
  CHECK(one.heap.lane_bytes(one.lane) == 3 * kMiB);
}

TEST_CASE("a lane that comes first is used although everybody has a tighter hole") {
  LooseAndTight one;
  constexpr ZoneOrder kLaneFirst{.lane_first = true};
  CHECK(one.heap.allocate(kMiB, one.lane, 0, kLaneFirst)->address != one.tight);
  CHECK(one.heap.allocate(2 * kMiB, one.lane, 0, kLaneFirst)->address != one.tight);
  CHECK(one.heap.allocate(2 * kMiB, one.lane, 0, kLaneFirst) == nullptr);
  CHECK(one.heap.allocate(kMiB, one.lane, 0, kLaneFirst)->address == one.tight);
}

TEST_CASE("holes coalesce within their lane only, but for small ones of everybody's") {
  OneRegion one;
  Extent* a = one.heap.allocate(kMiB);
  Extent* b = one.heap.allocate(1536 * 1024);
  Extent* c = one.heap.allocate(kMiB);
  Extent* d = one.heap.allocate(kMiB);
  const std::uint32_t lane = one.heap.add_lane();
  one.heap.free(b);
  one.heap.free(c, lane);
  CHECK(one.heap.check() == "");
  one.heap.free(a, lane);
  CHECK(one.heap.check() == "");
  CHECK(one.heap.lane_bytes(lane) == 2 * kMiB);
  one.heap.free(d, lane);
  CHECK(one.heap.check() == "");
  CHECK(one.heap.allocate(2 * kMiB, lane)->address == c->address);
  CHECK(one.heap.check() == "");
}

TEST_CASE("a region with a hole in a lane is not wholly free") {
  OneRegion one;
  Extent* block = one.heap.allocate(kMiB);
  const std::uint32_t lane = one.heap.add_lane();
  one.heap.free(block, lane);
  CHECK(one.heap.free_bytes() == 8 * kMiB);
  CHECK(one.heap.wholly_free_bytes() == 0);
  CHECK_FALSE(ExtentHeap::is_wholly_free(*one.region));
  std::vector<Extent*> drained;
  one.heap.drain_lane(lane, [&](Extent* extent) { drained.push_back(extent); });
  CHECK(one.heap.check() == "");
  REQUIRE(drained.size() == 1);
  CHECK(drained[0]->state == ExtentState::deferred);
  one.heap.free(drained[0]);
  CHECK(one.heap.wholly_free_bytes() == 8 * kMiB);
  CHECK(one.heap.check() == "");
}

TEST_CASE("gather joins what lies beside a lane's holes, and no more than is asked for") {
  OneRegion one;
  std::vector<Extent*> blocks;
  for (const std::uint64_t kib : {1536, 1024, 1536, 1024}) blocks.push_back(one.heap.allocate(kib * 1024));
  const std::uint32_t lane = one.heap.add_lane();
  const std::uint32_t other = one.heap.add_lane();
  one.heap.free(blocks[0]);
  one.heap.free(blocks[1], lane);
  one.heap.free(blocks[2]);
  one.heap.free(blocks[3], other);
  CHECK_FALSE(one.heap.gather(lane, 5 * kMiB));
  CHECK(one.heap.lane_bytes(lane) == kMiB);
  REQUIRE(one.heap.gather(lane, 4 * kMiB));
  CHECK(one.heap.check() == "");
  CHECK(one.heap.lane_bytes(lane) == 4 * kMiB);
  CHECK(one.heap.allocate(4 * kMiB, lane)->address == kBase);
  CHECK(one.heap.allocate(kMiB)->address == kBase + 5 * kMiB);
  CHECK(one.heap.check() == "");
}

TEST_CASE("a region that is forgotten takes its holes out of every lane") {
  OneRegion one;
  Extent* block = one.heap.allocate(kMiB);
  const std::uint32_t lane = one.heap.add_lane();
  one.heap.free(block, lane);
  one.heap.abandon_region(one.region, [](Extent&) {});
  CHECK(one.heap.lane_bytes(lane) == 0);
  CHECK(one.heap.check() == "");
}

TEST_CASE("lanes are handed out again, empty") {
  OneRegion one;
  const std::uint32_t lane = one.heap.add_lane();
  one.heap.remove_lane(lane);
  CHECK(one.heap.add_lane() == lane);
}

TEST_CASE("random work in three lanes keeps every invariant, and no lane gets what another freed") {
  std::mt19937 random(20261121);
  ExtentHeap heap;
  for (std::uint64_t i = 0; i < 3; ++i) heap.add_region(kBase + i * 64 * kMiB, (i + 1) * kMiB, nullptr);
  const std::uint32_t lanes[] = {0, heap.add_lane(), heap.add_lane()};
  std::vector<Extent*> live;
  std::vector<std::uint32_t> last_lane(6 * kMiB / 512 * 64, 0);  // by granule: who freed it last
  const auto granules = [&](const Extent& extent, auto&& visit) {
    for (std::uint64_t at = extent.address; at < extent.address + extent.bytes; at += 512) visit(last_lane[(at - kBase) / 512]);
  };
  for (int step = 0; step < 30'000; ++step) {
    const std::uint32_t lane = lanes[random() % 3];
    if (random() % 100 == 0 && lane != 0) {
      std::vector<Extent*> drained;
      heap.drain_lane(lane, [&](Extent* extent) { drained.push_back(extent); });
      for (Extent* extent : drained) {
        granules(*extent, [](std::uint32_t& last) { last = 0; });
        heap.free(extent);
      }
    } else if (live.empty() || random() % 2 == 0) {
      const std::uint64_t bytes = 512 * (1 + random() % (random() % 8 == 0 ? 512 : 16));
      Extent* block = heap.allocate(bytes, lane);
      if (block == nullptr && lane != 0 && heap.gather(lane, bytes)) {
        block = heap.allocate(bytes, lane);
        REQUIRE(block != nullptr);
      }
      if (block == nullptr) continue;
      bool foreign = false;
      granules(*block, [&](std::uint32_t last) { foreign = foreign || (last != 0 && last != lane); });
      REQUIRE_FALSE(foreign);
      live.push_back(block);
    } else {
      const std::size_t at = random() % live.size();
      Extent* block = live[at];
      live[at] = live.back();
      live.pop_back();
      granules(*block, [lane](std::uint32_t& last) { last = lane; });
      heap.free(block, lane);
    }
    if (step % 64 == 0) REQUIRE(heap.check() == "");
  }
  REQUIRE(heap.check() == "");
}

TEST_CASE("any part of a hole can be set aside: what is left of it stays in its lane") {
  const std::uint64_t from = GENERATE(0, 1, 3);
  const std::uint64_t bytes = GENERATE(1, 4, 5, 8);
  const bool is_shared = GENERATE(false, true);
  if (from + bytes > 8) return;
  OneRegion one;
  const std::uint32_t lane = is_shared ? 0 : one.heap.add_lane();
  one.heap.free(one.heap.allocate(8 * kMiB), lane);
  Extent* part = one.heap.set_aside(kBase + from * kMiB, bytes * kMiB);
  REQUIRE(part != nullptr);
  CHECK(part->state == ExtentState::deferred);
  CHECK(part->address == kBase + from * kMiB);
  CHECK(part->bytes == bytes * kMiB);
  CHECK(one.heap.free_bytes() == (8 - bytes) * kMiB);
  if (lane != 0) CHECK(one.heap.lane_bytes(lane) == (8 - bytes) * kMiB);
  CHECK(one.heap.check() == "");
  CHECK(one.heap.set_aside(kBase, 8 * kMiB) == nullptr);  // not free any more
  one.heap.free(part, lane);
  CHECK(one.heap.check() == "");
  CHECK(one.heap.largest_free_bytes() == 8 * kMiB);
}

TEST_CASE("neighbouring holes of different lanes are visited as one run, once") {
  OneRegion one(16 * kMiB);
  const std::uint32_t mine = one.heap.add_lane();
  const std::uint32_t other = one.heap.add_lane();
  std::vector<Extent*> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(one.heap.allocate(kMiB));
  CHECK(one.heap.blockless_bytes() == 0);
  const std::uint64_t address = blocks[1]->address;
  one.heap.free(blocks[1], mine);
  one.heap.free(blocks[2], other);
  one.heap.free(blocks[3]);
  one.heap.free(blocks[4], mine);
  one.heap.free(blocks[8]);  // everybody's alone: no run of a lane's
  std::vector<std::pair<std::uint64_t, std::uint64_t>> runs;
  const auto note = [&](const Extent& first, std::uint64_t bytes) { runs.emplace_back(first.address, bytes); };
  one.heap.for_each_lane_run(1, note);
  CHECK(runs == std::vector<std::pair<std::uint64_t, std::uint64_t>>{{address, 4 * kMiB}});
  runs.clear();
  one.heap.for_each_lane_run(3 * kMiB, note);  // no hole of a lane is so large
  CHECK(runs.empty());
  for (std::size_t i = 0; i < blocks.size(); ++i)
    if (i == 0 || (i > 4 && i != 8)) one.heap.free(blocks[i], i % 2 == 0 ? mine : other);
  CHECK(one.heap.blockless_bytes() == 16 * kMiB);
  CHECK(one.heap.wholly_free_bytes() == 0);
  CHECK(one.heap.check() == "");
}
