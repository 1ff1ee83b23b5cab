// Small blocks and large ones on pages of their own: FitPolicy::small_below_bytes.
#include <catch2/catch.hpp>

#include <new>
#include <vector>

#include "pool/heap/extent_heap.hpp"
#include "tests/unit/heap/failing_memory.hpp"

using namespace cupool::heap;

namespace {

constexpr std::uint64_t kBase = 0x7f00'0000'0000;
constexpr std::uint64_t kKiB = 1 << 10;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kPage = 2 * kMiB;
constexpr ZoneOrder kAnyHole{0, 0, true};
constexpr ZoneOrder kLevels{0, 0, false, 3};
constexpr ZoneOrder kOnPages{.begins_on_pages = true};

FitPolicy apart() {
  FitPolicy policy;
  policy.beside_older_from_bytes = FitPolicy::kNever;
  policy.small_below_bytes = 256 * kKiB;
  policy.page_bytes = kPage;
  policy.wide_bytes = 16 * kMiB;
  return policy;
}

/// A heap of one region, with memory.
struct Apart {
  explicit Apart(std::uint64_t bytes = 64 * kMiB, const FitPolicy& policy = apart()) : heap(policy) { heap.add_region(kBase, bytes, nullptr); }
  ~Apart() { CHECK(heap.check() == ""); }
  /// Where a new block lies; ~0: nowhere.
  std::uint64_t place(std::uint64_t bytes, const ZoneOrder& order = {}) {
    const Extent* block = heap.allocate(bytes, 0, 0, order);
    return block != nullptr ? block->address - kBase : ~std::uint64_t{0};
  }
  ExtentHeap heap;
};

}  // namespace

TEST_CASE("apart: a large block begins on the page behind a small one's, and small blocks fill what is left there") {
  Apart apart;
  CHECK(apart.place(kMiB) == 0);
  CHECK(apart.place(4 * kKiB) == kMiB);
  CHECK(apart.place(256 * kKiB) == kPage);  // the smallest that is large
  CHECK(apart.place(4 * kKiB) == kMiB + 4 * kKiB);
  CHECK(apart.place(256 * kKiB - 512) == kMiB + 8 * kKiB);  // the largest that is small
  CHECK(apart.heap.free_bytes() == 64 * kMiB - kMiB - 8 * kKiB - 512 * kKiB + 512);
}

TEST_CASE("apart: pairs of a large and a small block have the small ones together") {
  Apart apart;
  std::vector<Extent*> large;
  std::uint64_t last = 0;
  for (int i = 0; i < 40; ++i) {
    large.push_back(apart.heap.allocate(kMiB));
    const std::uint64_t at = apart.place(4 * kKiB);
    if (i > 0) CHECK(at == last + 4 * kKiB);
    last = at;
  }
  for (Extent* block : large) apart.heap.free(block);
  CHECK(apart.heap.largest_free_bytes() >= 60 * kMiB);
}

TEST_CASE("apart: where nothing small lies before it, a block begins where the hole does") {
  Apart apart;
  const std::uint64_t behind = GENERATE(std::uint64_t{256 * kKiB}, std::uint64_t{kMiB + 512});
  CHECK(apart.place(behind) == 0);
  CHECK(apart.place(kMiB) == behind);
}

TEST_CASE("apart: a small block may end where a page does") {
  Apart apart;
  CHECK(apart.place(kPage - 4 * kKiB) == 0);
  CHECK(apart.place(4 * kKiB) == kPage - 4 * kKiB);
  CHECK(apart.place(kMiB) == kPage);
}

TEST_CASE("apart: a small block whose free waits is one that stays") {
  Apart apart;
  Extent* small = apart.heap.allocate(4 * kKiB);
  apart.heap.defer(small);
  CHECK(apart.place(kMiB) == kPage);
}

TEST_CASE("apart: behind addresses without memory a block begins at once") {
  ExtentHeap heap(apart());
  Region* region = heap.add_empty_region(kBase, 64 * kMiB, nullptr);
  heap.cut(region->first, 512);
  heap.free(region->first->next);
  CHECK(heap.allocate(kMiB)->address == kBase + 512);
}

TEST_CASE("apart: in a stream's lane, too, and what stays free before the block is the lane's") {
  Apart apart;
  const std::uint32_t lane = apart.heap.add_lane();
  apart.heap.free(apart.heap.allocate(64 * kMiB), lane);
  CHECK(apart.heap.allocate(4 * kKiB, lane)->address == kBase);
  CHECK(apart.heap.allocate(kMiB, lane)->address == kBase + kPage);
  CHECK(apart.heap.allocate(kPage, lane, 0, kOnPages)->address == kBase + 2 * kPage);
  CHECK(apart.heap.lane_bytes(lane) == apart.heap.free_bytes());
  CHECK(apart.place(512) == ~std::uint64_t{0});  // nothing is everybody's
}

TEST_CASE("apart: a hole without room for it is used from its beginning, an exact one to its end") {
  const std::uint64_t spare = GENERATE(std::uint64_t{512}, std::uint64_t{0});
  Apart apart(2 * kPage - spare);
  CHECK(apart.place(4 * kKiB) == 0);
  CHECK(apart.place(kPage) == (spare == 0 ? kPage : 4 * kKiB));
}

TEST_CASE("apart: where any hole is taken, only in wide ones") {
  const std::uint64_t short_of = GENERATE(std::uint64_t{0}, std::uint64_t{512});
  Apart apart(4 * kKiB + 16 * kMiB - short_of);
  CHECK(apart.place(4 * kKiB) == 0);
  CHECK(apart.place(kMiB, kAnyHole) == (short_of == 0 ? kPage : 4 * kKiB));
}

TEST_CASE("apart: with more levels there are larger pages for larger blocks") {
  constexpr std::uint64_t kSmall = 256 * kKiB;
  Apart apart(4 * kMiB * kKiB);
  CHECK(apart.place(4 * kKiB) == 0);
  CHECK(apart.place(8 * kSmall - 512, kLevels) == kPage);  // nothing as small is before the next
  SECTION("the second level") {
    CHECK(apart.place(8 * kSmall, kLevels) == 8 * kPage);
    CHECK(apart.place(64 * kSmall - 512, kLevels) == 8 * kPage + 8 * kSmall);
  }
  SECTION("the third") {
    CHECK(apart.place(64 * kSmall, kLevels) == 64 * kPage);
    CHECK(apart.place(512 * kSmall, kLevels) == 64 * kPage + 64 * kSmall);
  }
  SECTION("only the first, unless told otherwise") { CHECK(apart.place(64 * kSmall + 512) == kPage + 8 * kSmall - 512); }
}

TEST_CASE("apart: where the hole is not wide enough for a level, the one below it is minded") {
  const unsigned level = GENERATE(1U, 2U);
  const std::uint64_t times = std::uint64_t{1} << (3 * level);
  const std::uint64_t short_of = GENERATE(std::uint64_t{0}, std::uint64_t{512});
  Apart apart(4 * kKiB + times * 16 * kMiB - short_of);
  CHECK(apart.place(4 * kKiB) == 0);
  CHECK(apart.place(times * 256 * kKiB, kLevels) == (short_of == 0 ? times : times / 8) * kPage);
}

TEST_CASE("apart: a block of whole pages begins on one, if the hole has room for that") {
  Apart apart(10 * kPage);
  CHECK(apart.place(kMiB, kOnPages) == 0);
  CHECK(apart.place(2 * kPage, kOnPages) == kPage);
  CHECK(apart.place(2 * kPage + 512, kOnPages) == 3 * kPage);
  CHECK(apart.place(kPage, kOnPages) == 6 * kPage);
  CHECK(apart.place(3 * kPage - 512, kOnPages) == 7 * kPage);
  CHECK(apart.place(512, kOnPages) == 10 * kPage - 512);
  CHECK(apart.place(kPage - 512, kOnPages) == 5 * kPage + 512);  // the gap before the second one
  CHECK(apart.place(kMiB, kOnPages) == kMiB);                    // and that before the first
}

TEST_CASE("apart: a block of whole pages begins on one where that leaves little of its size") {
  const std::uint64_t pages = GENERATE(std::uint64_t{15}, std::uint64_t{16});
  Apart apart;
  CHECK(apart.place(kMiB) == 0);
  CHECK(apart.place(pages * kPage) == (pages == 16 ? kPage : kMiB));
}

TEST_CASE("apart: a block of whole pages begins anywhere where the hole is no wider") {
  Apart apart(2 * kPage + kMiB);
  CHECK(apart.place(kMiB) == 0);
  CHECK(apart.place(2 * kPage) == kMiB);
}

TEST_CASE("apart: pages are counted from where the region begins") {
  ExtentHeap heap(apart());
  heap.add_region(kBase + kMiB, 64 * kMiB, nullptr);
  CHECK(heap.allocate(512)->address == kBase + kMiB);
  CHECK(heap.allocate(kMiB)->address == kBase + kMiB + kPage);
}

TEST_CASE("apart: behind another lane's small hole a block begins at once") {
  Apart apart;
  Extent* block = apart.heap.allocate(4 * kKiB);
  apart.heap.free(block, apart.heap.add_lane());
  CHECK(apart.place(kMiB) == 4 * kKiB);
}

TEST_CASE("apart: a block of a lane lies where it lay before, although the hole before it has joined the lane") {
  Apart apart;
  const std::uint32_t lane = apart.heap.add_lane();
  apart.place(kPage - 8 * kKiB);
  apart.place(4 * kKiB);
  Extent* block = apart.heap.allocate(kPage);
  REQUIRE(block->address == kBase + kPage);
  apart.heap.free(block, lane);  // with the hole before it, which begins right behind a small block
  CHECK(apart.heap.allocate(kPage, lane)->address == kBase + kPage);
}

TEST_CASE("apart: the block is its keeper's, and where host memory is out nothing has changed") {
  Apart apart;
  apart.place(4 * kKiB);
  const Extent* block = apart.heap.allocate(kMiB, 0, 3);
  CHECK(block->address == kBase + kPage);
  CHECK(block->keeper == 3);
  apart.place(4 * kKiB);
  const std::uint64_t free_bytes = apart.heap.free_bytes();
  bool has_failed = false;
  for (std::uint8_t keeper = 4; keeper < 8; ++keeper) {
    failing_memory::g_fail_in = 0;
    try {
      apart.heap.free(apart.heap.allocate(kMiB, 0, keeper));
    } catch (const std::bad_alloc&) {
      has_failed = true;
    }
    failing_memory::g_fail_in = -1;
    CHECK(apart.heap.free_bytes() == free_bytes);
    CHECK(apart.heap.check() == "");
  }
  CHECK(has_failed);
}

TEST_CASE("apart: unless told otherwise blocks begin anywhere") {
  Apart apart(64 * kMiB, FitPolicy{});
  CHECK(apart.place(4 * kKiB) == 0);
  CHECK(apart.place(kMiB) == 4 * kKiB);
}
