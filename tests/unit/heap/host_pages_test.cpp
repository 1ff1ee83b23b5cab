// Blocks of whole host pages begin on one, where that is asked for: ZoneOrder::on_host_pages.
#include <catch2/catch.hpp>

#include <random>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"

using namespace cupool::heap;
using cupool::align_up;

namespace {

constexpr std::uint64_t kBase = 0x7f00'0000'0000;
constexpr std::uint64_t kKiB = 1 << 10;
constexpr std::uint64_t kMiB = 1 << 20;
constexpr std::uint64_t kPage = 4 * kKiB;
constexpr ZoneOrder kOnHostPages{0, 0, false, 1, true};

/// A heap of one region; all its blocks are cut from the low end of holes, unless `beside_older_from_bytes` says otherwise.
struct HostPages {
  explicit HostPages(std::uint64_t bytes, std::uint64_t beside_older_from_bytes = FitPolicy::kNever) : heap(policy(beside_older_from_bytes)) {
    heap.add_region(kBase, bytes, nullptr);
  }
  ~HostPages() { CHECK(heap.check() == ""); }
  static FitPolicy policy(std::uint64_t beside_older_from_bytes) {
    FitPolicy policy;
    policy.beside_older_from_bytes = beside_older_from_bytes;
    return policy;
  }
  Extent* allocate(std::uint64_t bytes) { return heap.allocate(bytes, 0, 0, kOnHostPages); }
  std::uint64_t place(std::uint64_t bytes) {
    const Extent* block = allocate(bytes);
    return block != nullptr ? block->address - kBase : ~std::uint64_t{0};
  }
  ExtentHeap heap;
};

}  // namespace

TEST_CASE("host pages: a block of 2 MiB and more, in whole host pages, begins on one") {
  HostPages some(64 * kMiB);
  CHECK(some.place(512) == 0);
  CHECK(some.place(2 * kMiB) == kPage);                   // the least
  CHECK(some.place(2 * kMiB + 512) == kPage + 2 * kMiB);  // not whole host pages
  CHECK(some.place(3 * kMiB) == 2 * kPage + 4 * kMiB);    // behind a gap
  CHECK(some.place(kPage - 512) == 512);                  // the gaps are ordinary holes
  CHECK(some.place(kPage - 512) == kPage + 4 * kMiB + 512);
  CHECK(some.place(512) == 2 * kPage + 7 * kMiB);
  CHECK(some.place(2 * kMiB - kPage) == 2 * kPage + 7 * kMiB + 512);  // too small to be one
  CHECK(some.heap.free_bytes() == 64 * kMiB - 2 * kPage - 9 * kMiB + kPage - 512);
}

TEST_CASE("host pages: where nobody asks for it, blocks lie without a gap") {
  ExtentHeap heap(HostPages::policy(FitPolicy::kNever));
  heap.add_region(kBase, 64 * kMiB, nullptr);
  CHECK(heap.allocate(512)->address == kBase);
  CHECK(heap.allocate(2 * kMiB)->address == kBase + 512);
  CHECK(heap.check() == "");
}

TEST_CASE("host pages: at the high end of a hole, too") {
  HostPages some(16 * kMiB - 512, 2 * kMiB);
  CHECK(some.place(512) == 0);
  CHECK(some.place(4 * kMiB) == 12 * kMiB - kPage);  // a region's end is older than anything
  CHECK(some.place(kPage - 512) == 16 * kMiB - kPage);
  HostPages odd(16 * kMiB - 512, 2 * kMiB);
  CHECK(odd.place(512) == 0);
  CHECK(odd.place(4 * kMiB + 512) == 12 * kMiB - 1024);
}

TEST_CASE("host pages: a hole with room for the block on a page is taken before a tighter one, unless any hole will do") {
  constexpr std::uint64_t kTight_bytes = 2 * kMiB + 512;
  HostPages some(2 * kTight_bytes + 12 * kMiB);
  CHECK(some.place(512) == 0);
  Extent* tight = some.allocate(kTight_bytes);
  CHECK(some.place(kTight_bytes) == 512 + kTight_bytes);
  some.heap.free(tight);
  SECTION("there is one") { CHECK(some.place(2 * kMiB) == align_up(512 + 2 * kTight_bytes, kPage)); }
  SECTION("any will do") { CHECK(some.heap.allocate(2 * kMiB, 0, 0, {0, 0, true, 1, true})->address == kBase + 512); }
  SECTION("there is none") {
    while (some.heap.largest_free_bytes() > kTight_bytes) REQUIRE(some.allocate(some.heap.largest_free_bytes()) != nullptr);
    CHECK(some.place(2 * kMiB) == 512);
  }
}

TEST_CASE("host pages: a tight hole in which the block begins on one anyway is taken as it is") {
  HostPages some(16 * kMiB);
  Extent* tight = some.allocate(2 * kMiB);
  CHECK(some.place(512) == 2 * kMiB);
  some.heap.free(tight);
  CHECK(some.place(2 * kMiB) == 0);
}

TEST_CASE("host pages: a lane's own hole is taken before everybody's, on a page or not; of everybody's one with room for that") {
  constexpr std::uint64_t kTight_bytes = 2 * kMiB + 512;
  HostPages some(16 * kMiB);
  CHECK(some.place(512) == 0);
  Extent* tight = some.allocate(kTight_bytes);
  CHECK(some.place(512) == 512 + kTight_bytes);
  const std::uint32_t lane = some.heap.add_lane();
  const bool is_its_own = GENERATE(true, false);
  some.heap.free(tight, is_its_own ? lane : 0);
  const Extent* block = some.heap.allocate(2 * kMiB, lane, 0, kOnHostPages);
  CHECK(block->address == (is_its_own ? kBase + 512 : align_up(kBase + 1024 + kTight_bytes, kPage)));
}

TEST_CASE("host pages: whatever comes and goes, only a heap without a page to begin on lays a block elsewhere") {
  const auto seed = GENERATE(1U, 2U, 3U, 4U);
  std::mt19937 random(seed);
  HostPages some(256 * kMiB, 2 * kMiB);
  std::vector<Extent*> live;
  int aligned = 0, elsewhere = 0;
  for (int i = 0; i < 20'000; ++i) {
    if (!live.empty() && random() % 100 < (some.heap.free_bytes() < 32 * kMiB ? 70 : 45)) {
      const std::size_t at = random() % live.size();
      some.heap.free(live[at]);
      live[at] = live.back();
      live.pop_back();
      continue;
    }
    const std::uint64_t bytes = random() % 2 == 0 ? (random() % 512 + 1) * 512 : (2 * kMiB + random() % 1024 * kPage);
    const bool had_room = some.heap.largest_free_bytes() >= bytes + kPage - 512;
    Extent* block = some.allocate(bytes);
    if (block == nullptr) continue;
    live.push_back(block);
    if (bytes < 2 * kMiB) continue;
    ++(block->address % kPage == 0 ? aligned : elsewhere);
    if (had_room) CHECK(block->address % kPage == 0);
  }
  CHECK(aligned > 2'000);
  CHECK(elsewhere * 100 < aligned);
}
