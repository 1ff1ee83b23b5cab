// What the extent heap promises to the device pool, one sentence per case. check() runs after every step.
#include <catch2/catch.hpp>

#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"

using namespace cupool;
using namespace cupool::heap;

namespace {

constexpr std::uint64_t kBase = std::uint64_t{7} << 40;

struct Fixture {
  ExtentHeap heap;
  Extent* take(std::uint64_t bytes) {
    Extent* extent = heap.allocate(bytes);
    REQUIRE(heap.check() == "");
    return extent;
  }
  Extent* give(Extent* extent) {
    Extent* hole = heap.free(extent);
    REQUIRE(heap.check() == "");
    return hole;
  }
  Region* grow(std::uint64_t address, std::uint64_t bytes) {
    Region* region = heap.add_region(address, bytes, this);
    REQUIRE(heap.check() == "");
    return region;
  }
  /// Bytes of each hole that there would be if every deferred extent were free.
  std::vector<std::uint64_t> runs(const Region& region) const {
    std::vector<std::uint64_t> bytes;
    std::uint64_t end = 0;
    heap.for_each_run(region, [&](const Extent& first, std::uint64_t run_bytes) {
      REQUIRE(first.address >= end);
      end = first.address + run_bytes;
      bytes.push_back(run_bytes);
    });
    return bytes;
  }
};

using Runs = std::vector<std::uint64_t>;

}  // namespace

TEST_CASE_METHOD(Fixture, "a heap without regions has nothing and finds nothing") {
  CHECK(heap.allocate(1) == nullptr);
  CHECK(heap.find(kBase) == nullptr);
  CHECK(heap.find_containing(kBase) == nullptr);
  CHECK(heap.largest_free_bytes() == 0);
  CHECK(heap.check() == "");
}

TEST_CASE_METHOD(Fixture, "a request is rounded to whole 512-byte blocks and nothing more") {
  grow(kBase, 2 * kMiB);
  for (const std::uint64_t bytes : {1, 511, 512, 513, 32768, 32769, 100'000}) {
    Extent* extent = take(bytes);
    REQUIRE(extent != nullptr);
    CHECK(extent->bytes == round_request(bytes));
    CHECK(extent->address % 512 == 0);
    CHECK(extent->state == ExtentState::live);
  }
}

TEST_CASE_METHOD(Fixture, "requests of zero, of nearly 2^64 and of more than the heap holds are refused") {
  grow(kBase, 2 * kMiB);
  for (const std::uint64_t bytes : {std::uint64_t{0}, ~std::uint64_t{0}, ~std::uint64_t{511}, std::uint64_t{1} << 63, (std::uint64_t{1} << 48) + 1,
                                    std::uint64_t{1} << 48, 2 * kMiB + 1}) {
    CHECK(take(bytes) == nullptr);
  }
  CHECK(take(2 * kMiB) != nullptr);
}

TEST_CASE_METHOD(Fixture, "a hole that fits exactly is taken whole, before a larger one") {
  grow(kBase, 4 * kMiB);
  Extent* first = take(64 * kKiB);
  Extent* wall = take(512);
  REQUIRE(wall != nullptr);
  const std::uint64_t address = first->address;
  give(first);
  CHECK(take(64 * kKiB)->address == address);
}

TEST_CASE("among the candidates of one bin the tightest is taken, and the lowest of equals") {
  FitPolicy policy;
  policy.candidates = 4;
  ExtentHeap heap(policy);
  heap.add_region(kBase, 64 * kMiB, nullptr);
  // Sizes between 1 MiB and 1 MiB + 16 KiB share a bin; walls keep the holes apart.
  std::vector<Extent*> blocks;
  for (const std::uint64_t extra : {8, 4, 12, 4}) {
    blocks.push_back(heap.allocate(kMiB + extra * kKiB));
    heap.allocate(512);
  }
  const std::uint64_t lowest_tight = blocks[1]->address;
  for (const int i : {1, 3, 0, 2}) heap.free(blocks[static_cast<std::size_t>(i)]);
  CHECK(heap.allocate(kMiB + 2 * kKiB)->address == lowest_tight);
  CHECK(heap.check() == "");
}

TEST_CASE_METHOD(Fixture, "a hole deep in its bin is found before the heap says that nothing fits") {
  grow(kBase, 32 * kMiB);
  std::vector<Extent*> blocks;
  for (int i = 0; i < 24; ++i) {
    blocks.push_back(take(i == 0 ? kMiB + 8 * kKiB : kMiB));
    take(512);
  }
  while (heap.largest_free_bytes() > kMiB) REQUIRE(take(std::min<std::uint64_t>(heap.largest_free_bytes(), 512 * kKiB)) != nullptr);
  for (Extent* block : blocks) give(block);
  REQUIRE(heap.largest_free_bytes() == kMiB + 8 * kKiB);
  CHECK(take(kMiB + 8 * kKiB) != nullptr);
}

TEST_CASE_METHOD(Fixture, "a free block joins a free neighbour before it, after it, and on both sides") {
  Region* region = grow(kBase, 2 * kMiB);
  std::vector<Extent*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(take(512 * kKiB));
  CHECK(heap.free_bytes() == 0);
  give(blocks[0]);
  CHECK(give(blocks[1])->bytes == kMiB);
  CHECK(heap.largest_free_bytes() == kMiB);
  give(blocks[3]);
  CHECK(heap.largest_free_bytes() == kMiB);
  Extent* hole = give(blocks[2]);
  CHECK(hole->bytes == 2 * kMiB);
  CHECK(hole->address == kBase);
  CHECK(region->free_bytes == region->bytes);
  CHECK(heap.extent_count() == 1);
}

TEST_CASE_METHOD(Fixture, "regions that touch are never joined") {
  grow(kBase, 2 * kMiB);
  grow(kBase + 2 * kMiB, 2 * kMiB);
  grow(kBase - 2 * kMiB, 2 * kMiB);
  CHECK(heap.free_bytes() == 6 * kMiB);
  CHECK(heap.largest_free_bytes() == 2 * kMiB);
  CHECK(take(2 * kMiB + 512) == nullptr);
  std::vector<Extent*> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(take(2 * kMiB));
  for (Extent* block : blocks) give(block);
  CHECK(heap.largest_free_bytes() == 2 * kMiB);
  CHECK(heap.wholly_free_bytes() == 6 * kMiB);
}

TEST_CASE_METHOD(Fixture, "a large block goes beside the older neighbour of its hole, a small one to the low end") {
  grow(kBase, 18 * kMiB);
  std::vector<Extent*> blocks;  // of 1 MiB: small, so they lie in the order of allocation
  for (int i = 0; i < 18; ++i) blocks.push_back(take(kMiB));
  Extent* old = blocks.front();
  Extent* young = blocks.back();
  REQUIRE(young->address == kBase + 17 * kMiB);
  for (std::size_t i = 1; i < 17; ++i) give(blocks[i]);
  SECTION("the older one lies before the hole") {
    CHECK(take(4 * kMiB)->previous == old);
    CHECK(take(4 * kMiB)->next == young);  // what is before the hole now is the youngest of all
  }
  SECTION("the older one lies behind the hole") {
    const std::uint64_t address = old->address;
    give(old);
    REQUIRE(take(kMiB)->address == address);  // the region's edge is older than anything; this block is the youngest
    CHECK(take(4 * kMiB)->next == young);
  }
  SECTION("a small one does not ask") {
    heap.defer(old);
    CHECK(take(kMiB)->previous == old);
  }
  SECTION("a neighbour whose free waits counts as the youngest") {
    heap.defer(old);
    CHECK(take(4 * kMiB)->next == young);
  }
}

TEST_CASE_METHOD(Fixture, "a block is found by its base, by any byte inside, and by no other address") {
  grow(kBase, 64 * kMiB);
  Extent* small = take(512);
  Extent* large = take(20 * kMiB);
  CHECK(heap.find(small->address) == small);
  CHECK(heap.find(large->address) == large);
  CHECK(heap.find(large->address + 512) == nullptr);
  CHECK(heap.find(large->address + 1) == nullptr);
  CHECK(heap.find_containing(large->address + large->bytes - 1) == large);
  CHECK(heap.find_containing(large->address + 11 * kMiB + 3) == large);
  CHECK(heap.find_containing(kBase - 1) == nullptr);
  CHECK(heap.find_containing(kBase + 64 * kMiB) == nullptr);
  Extent* hole = heap.find_containing(kBase + 40 * kMiB);
  REQUIRE(hole != nullptr);
  CHECK(hole->state == ExtentState::free);
  CHECK(heap.find(hole->address) == nullptr);
}

TEST_CASE_METHOD(Fixture, "a deferred block is found but its bytes are not free until it is freed") {
  Region* region = grow(kBase, 2 * kMiB);
  Extent* block = take(2 * kMiB);
  heap.defer(block);
  CHECK(heap.check() == "");
  CHECK(heap.find(kBase) == block);
  CHECK(heap.free_bytes() == 0);
  CHECK(take(512) == nullptr);
  CHECK(runs(*region) == Runs{2 * kMiB});
  give(block);
  CHECK(heap.find(kBase) == nullptr);
  CHECK(region->free_bytes == 2 * kMiB);
}

TEST_CASE_METHOD(Fixture, "deferred blocks beside each other become one, which joins what is free beside it") {
  Region* region = grow(kBase, 4 * kMiB);
  std::vector<Extent*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(take(kMiB));
  for (const int i : {1, 2, 3}) heap.defer(blocks[static_cast<std::size_t>(i)]);
  heap.join(blocks[2]);
  CHECK(heap.check() == "");
  heap.join(blocks[1]);
  CHECK(heap.check() == "");
  CHECK(heap.find(kBase + kMiB) == blocks[1]);
  CHECK(heap.find_containing(kBase + 4 * kMiB - 1) == blocks[1]);
  CHECK(heap.free_bytes() == 0);
  CHECK(give(blocks[1])->bytes == 3 * kMiB);
  give(blocks[0]);
  CHECK(ExtentHeap::is_wholly_free(*region));
}

TEST_CASE_METHOD(Fixture, "a run joins deferred blocks with the holes beside them and stops at live blocks") {
  const Region& region = *grow(kBase, 6 * kMiB);
  std::vector<Extent*> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(take(kMiB));
  CHECK(runs(region).empty());
  give(blocks[0]);
  heap.defer(blocks[1]);
  heap.defer(blocks[2]);
  CHECK(heap.largest_free_bytes() == kMiB);
  CHECK(runs(region) == Runs{3 * kMiB});
  heap.defer(blocks[5]);
  CHECK(runs(region) == Runs{3 * kMiB, kMiB});
  give(blocks[4]);
  CHECK(runs(region) == Runs{3 * kMiB, 2 * kMiB});
}

TEST_CASE_METHOD(Fixture, "the owner's fields of a block begin empty even where a block was before") {
  grow(kBase, 2 * kMiB);
  Extent* block = take(2 * kMiB);
  block->requested_bytes = block->buffer_id = block->allocated_ticks = 99;
  block->site = 99;
  block->flags = 99;
  give(block);
  block = take(2 * kMiB);
  CHECK(block->requested_bytes + block->buffer_id + block->allocated_ticks + block->site + block->flags == 0);
  CHECK(block->bin_previous != nullptr);  // a birth, not a link
  heap.defer(block);
  CHECK(block->bin_previous == nullptr);
  CHECK(block->bin_next == nullptr);
}

TEST_CASE_METHOD(Fixture, "free bytes are split into wholly free regions and the rest") {
  grow(kBase, 2 * kMiB);
  grow(kBase + 8 * kMiB, 4 * kMiB);
  CHECK(heap.wholly_free_bytes() == 6 * kMiB);
  Extent* block = take(512);
  CHECK(block->region->bytes == 2 * kMiB);  // the tighter region
  CHECK(heap.wholly_free_bytes() == 4 * kMiB);
  CHECK(heap.inactive_split_bytes() == 2 * kMiB - 512);
  give(block);
  CHECK(heap.inactive_split_bytes() == 0);
}

TEST_CASE_METHOD(Fixture, "a removed region is forgotten and its index is used again") {
  Region* first = grow(kBase, 2 * kMiB);
  Region* second = grow(kBase + 16 * kMiB, 2 * kMiB);
  CHECK(second->index == 1);
  CHECK(second->owner == this);
  CHECK(heap.find_region(kBase + 100) == first);
  heap.remove_region(first);
  CHECK(heap.check() == "");
  CHECK(heap.find_region(kBase + 100) == nullptr);
  CHECK(heap.find_containing(kBase) == nullptr);
  CHECK(heap.region_bytes() == 2 * kMiB);
  CHECK(grow(kBase, 2 * kMiB)->index == 0);
}

TEST_CASE_METHOD(Fixture, "an abandoned region names what it held, in address order, and leaves the other regions alone") {
  Region* doomed = grow(kBase, 2 * kMiB);
  Extent* live = take(kMiB);
  Extent* deferred = take(512 * kKiB);
  heap.defer(deferred);
  grow(kBase + 32 * kMiB, 4 * kMiB);
  Extent* other = take(4 * kMiB);
  std::vector<Extent*> seen;
  heap.abandon_region(doomed, [&](Extent& extent) { seen.push_back(&extent); });
  CHECK(heap.check() == "");
  CHECK(seen == std::vector<Extent*>{live, deferred});
  CHECK(heap.find(other->address) == other);
  CHECK(heap.region_bytes() == 4 * kMiB);
  CHECK(heap.free_bytes() == 0);
  CHECK(heap.allocate(512) == nullptr);
}

TEST_CASE_METHOD(Fixture, "regions and extents are visited in address order, whatever the order of adding") {
  for (const int i : {3, 1, 2, 0}) grow(kBase + static_cast<std::uint64_t>(i) * 4 * kMiB, 2 * kMiB);
  take(kMiB);
  std::uint64_t last = 0;
  std::uint64_t bytes = 0;
  heap.for_each_region([&](const Region& region) {
    CHECK(region.address > last);
    last = region.address;
    heap.for_each_extent(region, [&](const Extent& extent) { bytes += extent.bytes; });
  });
  CHECK(bytes == heap.region_bytes());
}

TEST_CASE_METHOD(Fixture, "check names a broken link, a wrong state and a wrong count") {
  Region* region = grow(kBase, 4 * kMiB);
  Extent* block = take(kMiB);
  SECTION("state") {
    block->state = ExtentState::free;
    CHECK(heap.check() == "two neighbouring extents are both free in one lane");
    block->state = ExtentState::live;
  }
  SECTION("size") {
    block->bytes += 512;
    CHECK(heap.check() == "an extent does not end where its next neighbour begins");
    block->bytes -= 512;
  }
  SECTION("count") {
    region->free_bytes -= 512;
    CHECK(heap.check() == "a region's free bytes are not the sum of its free extents");
    region->free_bytes += 512;
  }
  SECTION("neighbour bit") {
    block->next_is_free = false;
    CHECK(heap.check() == "an extent is wrong about whether its next neighbour is free");
    block->next_is_free = true;
  }
  CHECK(heap.check() == "");
}
