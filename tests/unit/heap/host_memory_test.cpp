// When host memory runs out: every operation has happened entirely or not at all.
#include <catch2/catch.hpp>

#include <new>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"
#include "tests/unit/heap/failing_memory.hpp"

using failing_memory::g_fail_in;
using namespace cupool;
using namespace cupool::heap;

namespace {

constexpr std::uint64_t kBase = std::uint64_t{9} << 40;

/// Calls `action` with the n-th host allocation failing, for n = 0, 1, ... until it passes unharmed. Returns how often it threw.
template <class Action, class Unchanged> int fail_each_allocation(Action&& action, Unchanged&& unchanged) {
  for (int n = 0;; ++n) {
    bool threw = false;
    g_fail_in = n;
    try {
      action();
    } catch (const std::bad_alloc&) {
      threw = true;
    }
    const bool reached = g_fail_in < 0;
    g_fail_in = -1;
    if (!reached) return n;
    if (threw) unchanged();
    REQUIRE(n < 100);
  }
}

}  // namespace

TEST_CASE("a block that cannot move to another keeper's page for want of host memory stays where it is") {
  ExtentHeap heap;
  heap.add_region(kBase, 2 * kMiB, nullptr);
  Extent* block = heap.allocate(4096);
  Extent* exact = heap.allocate(2 * kMiB - 4096);
  heap.free(exact);
  const int failures = fail_each_allocation(
      [&] {
        if (block->keeper == 0) block = heap.rehome(block, 1);
      },
      [&] {
        REQUIRE(heap.find(kBase) == block);
        REQUIRE(heap.check() == "");
      });
  CHECK(failures >= 1);
  CHECK(block->keeper == 1);
  Extent* other = nullptr;
  const int more_failures = fail_each_allocation(
      [&] {
        if (other == nullptr) other = heap.allocate(2 * kMiB - 4096, 0, 2);
      },
      [&] {
        REQUIRE(heap.free_bytes() == 2 * kMiB - 4096);
        REQUIRE(heap.check() == "");
      });
  CHECK(more_failures >= 1);
  REQUIRE(other != nullptr);
  CHECK(other->keeper == 2);
  CHECK(heap.check() == "");
}

TEST_CASE("add_region without host memory leaves the heap as it was") {
  // 257 and 513 regions: the first and later leaves of the table split at 256 rows.
  for (const std::size_t before : {0, 1, 4, 8, 256, 511}) {
    ExtentHeap heap;
    for (std::size_t i = 0; i < before; ++i) heap.add_region(kBase + i * 4 * kMiB, 2 * kMiB, nullptr);
    const std::uint64_t address = kBase + before / 2 * 4 * kMiB + 2 * kMiB;
    Region* region = nullptr;
    const int failures = fail_each_allocation(
        [&] {
          if (region == nullptr) region = heap.add_region(address, 2 * kMiB, nullptr);
        },
        [&] {
          REQUIRE(region == nullptr);
          REQUIRE(heap.check() == "");
          REQUIRE(heap.region_count() == before);
          REQUIRE(heap.region_bytes() == before * 2 * kMiB);
          REQUIRE(heap.find_region(address) == nullptr);
        });
    CHECK(failures >= 2);  // the record and its page index at least
    REQUIRE(region != nullptr);
    CHECK(heap.check() == "");
    CHECK(heap.find_region(address) == region);
  }
}

TEST_CASE("allocate without host memory leaves the heap as it was") {
  ExtentHeap heap;
  heap.add_region(kBase, 64 * kMiB, nullptr);
  int failures = 0;
  int refusals = 0;  // failures that reached the caller: the arena could not grow
  for (int i = 0; i < 3000; ++i) {
    const std::uint64_t free_bytes = heap.free_bytes();
    const std::uint64_t bytes = i % 3 == 0 ? 3 * kMiB / 512 : 512;
    Extent* extent = nullptr;
    failures += fail_each_allocation(
        [&] {
          if (extent == nullptr) extent = heap.allocate(bytes);
        },
        [&] {
          ++refusals;
          REQUIRE(extent == nullptr);
          REQUIRE(heap.check() == "");
          REQUIRE(heap.free_bytes() == free_bytes);
        });
    REQUIRE(extent != nullptr);
  }
  CHECK(refusals > 10);
  CHECK(failures > refusals);  // dense pages make do without
  CHECK(heap.check() == "");
}

TEST_CASE("regions are forgotten without host memory, and with the last one all of the heap's goes back") {
  ExtentHeap heap;
  const std::uint64_t empty_bytes = heap.metadata_bytes();
  std::vector<Region*> regions;
  for (std::size_t i = 0; i < 600; ++i) regions.push_back(heap.add_region(kBase + i * 2 * kMiB, 2 * kMiB, nullptr));
  for (int i = 0; i < 5000; ++i) heap.allocate(100 * kKiB);
  for (Region* region : regions) {
    g_fail_in = 0;
    heap.abandon_region(region, [](Extent&) {});
    g_fail_in = -1;
  }
  CHECK(heap.check() == "");
  CHECK(heap.metadata_bytes() < empty_bytes + 16 * kKiB);  // what is left is the capacity of the region table
}

TEST_CASE("without host memory for dense pages every lookup still answers, and free needs none at all") {
  ExtentHeap heap;
  heap.add_region(kBase, 2 * kMiB, nullptr);
  std::vector<Extent*> blocks(4096);
  for (Extent*& block : blocks) {
    g_fail_in = 0;  // the arena's growth or a dense page, whichever asks
    try {
      block = heap.allocate(512);
    } catch (const std::bad_alloc&) {
      g_fail_in = -1;
      block = heap.allocate(512);
    }
    g_fail_in = -1;
    REQUIRE(block != nullptr);
  }
  REQUIRE(heap.check() == "");
  for (std::size_t i = 0; i < blocks.size(); i += 2) {
    REQUIRE(heap.find(blocks[i]->address) == blocks[i]);
    g_fail_in = 0;
    heap.free(blocks[i]);
    g_fail_in = -1;
  }
  REQUIRE(heap.check() == "");
  for (std::size_t i = 1; i < blocks.size(); i += 2) heap.free(blocks[i]);
  CHECK(heap.check() == "");
  CHECK(heap.extent_count() == 1);
}
