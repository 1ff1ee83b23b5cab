// OwnerMap: certain about what is not ours, by page about what may be.
#include <thread>

#include <catch2/catch.hpp>

#include "pool/core/bytes.hpp"
#include "pool/device/owner_map.hpp"

using cupool::kMiB;
using cupool::device::OwnerMap;

namespace {
constexpr std::uint64_t kBase = 0x7f00'0000'0000;
}

TEST_CASE("a page belongs to the device that has a region in it, and to nobody when the last is gone") {
  OwnerMap map;
  CHECK(map.find(kBase) == OwnerMap::kNobody);
  REQUIRE(map.add(kBase + kMiB, 6 * kMiB, 3));  // neither begins nor ends on a page
  CHECK(map.find(kBase) == 3);
  CHECK(map.find(kBase + 7 * kMiB - 1) == 3);
  CHECK(map.find(kBase + 8 * kMiB) == OwnerMap::kNobody);
  REQUIRE(map.add(kBase + 7 * kMiB, 512, 3));
  map.remove(kBase + kMiB, 6 * kMiB);
  CHECK(map.find(kBase) == OwnerMap::kNobody);
  CHECK(map.find(kBase + 7 * kMiB) == 3);
  map.remove(kBase + 7 * kMiB, 512);
  CHECK(map.find(kBase + 7 * kMiB) == OwnerMap::kNobody);
}

TEST_CASE("a page that two devices share sends the question to each") {
  OwnerMap map;
  REQUIRE(map.add(kBase, 512, 0));
  REQUIRE(map.add(kBase + 512, 512, 1));
  CHECK(map.find(kBase) == OwnerMap::kSeveral);
  map.remove(kBase, 512);
  map.remove(kBase + 512, 512);
  CHECK(map.find(kBase) == OwnerMap::kNobody);
}

TEST_CASE("every page of a long region is its device's, those beside it are not, and small ones may come where it was") {
  constexpr std::uint64_t kLeaf = 8 * cupool::kGiB;
  OwnerMap map;
  for (const std::uint64_t first : {kBase, kBase + 2 * kMiB, kBase + kLeaf - 2 * kMiB})
    for (const std::uint64_t bytes : {kLeaf - 2 * kMiB, kLeaf, 3 * kLeaf + 6 * kMiB}) {
      REQUIRE(map.add(first, bytes, 1));
      int wrong = 0;
      for (std::uint64_t page = first; page < first + bytes; page += 2 * kMiB) wrong += map.find(page) == 1 ? 0 : 1;
      CHECK(wrong == 0);
      CHECK(map.find(first - 1) == OwnerMap::kNobody);
      CHECK(map.find(first + bytes) == OwnerMap::kNobody);
      map.remove(first, bytes);
      wrong = 0;
      for (std::uint64_t page = first; page < first + bytes; page += 2 * kMiB) wrong += map.find(page) == OwnerMap::kNobody ? 0 : 1;
      CHECK(wrong == 0);
      REQUIRE(map.add(first + bytes / 2, 512, 0));
      CHECK(map.find(first + bytes / 2) == 0);
      map.remove(first + bytes / 2, 512);
    }
}

TEST_CASE("addresses beyond the map are nobody's and cannot be added") {
  OwnerMap map;
  CHECK(map.find(~std::uint64_t{0}) == OwnerMap::kNobody);
  CHECK_FALSE(map.add(~std::uint64_t{0} - 10 * kMiB, 4 * kMiB, 0));
  CHECK_FALSE(map.add(kBase, 0, 0));
  REQUIRE(map.add((std::uint64_t{1} << 52) - 2 * kMiB, 2 * kMiB, 0));
}

TEST_CASE("threads that add and remove in the same page lose no count") {
  OwnerMap map;
  REQUIRE(map.add(kBase, 512, 0));
  std::thread other([&] {
    for (int i = 0; i < 20000; ++i) {
      if (!map.add(kBase + 1024, 512, 0)) return;
      map.remove(kBase + 1024, 512);
    }
  });
  for (int i = 0; i < 20000; ++i) {
    REQUIRE(map.add(kBase + 2048, 512, 0));
    map.remove(kBase + 2048, 512);
  }
  other.join();
  CHECK(map.find(kBase) == 0);
  map.remove(kBase, 512);
  CHECK(map.find(kBase) == OwnerMap::kNobody);
}
