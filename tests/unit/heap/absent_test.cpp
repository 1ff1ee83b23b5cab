// Absent extents: addresses whose memory has not come yet, or has gone.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include "pool/heap/extent_heap.hpp"

using namespace cupool::heap;

namespace {

constexpr std::uint64_t kBase = 0x7f00'0000'0000;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kPage = 2 * kMiB;

struct Addresses {
  ExtentHeap heap;
  Region* region = heap.add_empty_region(kBase, 64 * kMiB, nullptr);
};

Extent* hole_with(ExtentHeap& heap, std::uint64_t address) {
  Extent* found = heap.find_containing(address);
  return found != nullptr && found->state == ExtentState::free ? found : nullptr;
}

}  // namespace

TEST_CASE("addresses without memory serve nothing and count nowhere") {
  Addresses one;
  CHECK(one.heap.allocate(512) == nullptr);
  CHECK(one.heap.free_bytes() == 0);
  CHECK(one.heap.largest_free_bytes() == 0);
  CHECK(one.heap.find(kBase) == nullptr);
  CHECK(one.heap.find_containing(kBase + kMiB)->state == ExtentState::absent);
  one.heap.for_each_run(*one.region, [](const Extent&, std::uint64_t) { FAIL("a run"); });
  CHECK(one.heap.check() == "");
}

TEST_CASE("memory that comes joins the free memory beside it") {
  Addresses one;
  Extent* first = one.region->first;
  one.heap.cut(first, 2 * kPage);
  Extent* second = first->next;
  one.heap.free(first);
  CHECK(one.heap.largest_free_bytes() == 2 * kPage);
  one.heap.cut(second, kPage);
  Extent* hole = one.heap.free(second);
  CHECK(hole->address == kBase);
  CHECK(hole->bytes == 3 * kPage);
  CHECK(one.heap.allocate(3 * kPage)->address == kBase);
  CHECK(one.heap.check() == "");
}

TEST_CASE("memory is taken out of the low end, the high end, the middle and the whole of a hole") {
  struct Cut {
    std::uint64_t from, pages;
  };
  const Cut cut = GENERATE(Cut{0, 1}, Cut{3, 1}, Cut{1, 2}, Cut{0, 4});
  Addresses one;
  one.heap.cut(one.region->first, 4 * kPage);
  Extent* hole = one.heap.free(one.region->first);
  Extent* out = one.heap.take_out(hole, kBase + cut.from * kPage, cut.pages * kPage);
  CHECK(out->state == ExtentState::absent);
  CHECK(out->address == kBase + cut.from * kPage);
  CHECK(out->bytes == cut.pages * kPage);
  CHECK(one.heap.free_bytes() == (4 - cut.pages) * kPage);
  CHECK(one.heap.check() == "");
  one.heap.free(out);  // it was not to be
  CHECK(one.heap.largest_free_bytes() == 4 * kPage);
  CHECK(one.heap.check() == "");
}

TEST_CASE("absent neighbours are joined on demand") {
  Addresses one;
  Extent* first = one.region->first;
  one.heap.cut(first, kPage);
  one.heap.cut(first->next, kPage);
  one.heap.join(first);
  one.heap.join(first);
  CHECK(first->bytes == 64 * kMiB);
  CHECK(one.heap.extent_count() == 1);
  CHECK(one.heap.check() == "");
}

TEST_CASE("a region that is abandoned tells of its blocks and not of its empty addresses") {
  Addresses one;
  one.heap.cut(one.region->first, kPage);
  one.heap.free(one.region->first);
  const Extent* block = one.heap.allocate(kMiB);
  int told = 0;
  one.heap.abandon_region(one.region, [&](Extent& extent) { told += &extent == block ? 1 : 100; });
  CHECK(told == 1);
  CHECK(one.heap.extent_count() == 0);
}

TEST_CASE("random memory coming, going, allocated and freed under the same addresses") {
  Addresses one;
  std::mt19937 random(3);
  std::vector<Extent*> live;
  const std::uint32_t lane = one.heap.add_lane();
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t address = kBase + random() % (64 * kMiB / kPage) * kPage;
    Extent* there = one.heap.find_containing(address);
    switch (random() % 4) {
      case 0:
        if (there->state != ExtentState::absent) break;
        if (there->address != address) {
          one.heap.cut(there, address - there->address);
          there = there->next;
        }
        one.heap.cut(there, std::min(there->bytes, (1 + random() % 4) * kPage));
        one.heap.free(there);
        break;
      case 1: {
        Extent* hole = hole_with(one.heap, address);
        if (hole == nullptr || hole->lane != 0 || hole->address > address || hole->address + hole->bytes < address + kPage) break;
        Extent* out = one.heap.take_out(hole, address, kPage);
        if (out->next != nullptr && out->next->state == ExtentState::absent) one.heap.join(out);
        break;
      }
      case 2:
        if (Extent* block = one.heap.allocate(1 + random() % (3 * kMiB), random() % 2 != 0 ? lane : 0)) live.push_back(block);
        break;
      default:
        if (live.empty()) break;
        std::swap(live[random() % live.size()], live.back());
        one.heap.free(live.back(), random() % 2 != 0 ? lane : 0);
        live.pop_back();
    }
    if (step % 50 == 0) REQUIRE(one.heap.check() == "");
  }
  for (Extent* block : live) one.heap.free(block);
  CHECK(one.heap.check() == "");
}
