// RegionTable: many regions, in any order.
#include <catch2/catch.hpp>

#include <algorithm>
#include <random>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/region_table.hpp"

using namespace cupool;
using namespace cupool::heap;

TEST_CASE("ten thousand regions, added and erased in random order, are found by any address inside and no other") {
  std::mt19937_64 random(11);
  RegionTable table;
  constexpr std::uint64_t kBase = std::uint64_t{1} << 40;
  std::vector<std::uint64_t> addresses(10'000);
  for (std::size_t i = 0; i < addresses.size(); ++i) addresses[i] = kBase + i * 4096;
  std::shuffle(addresses.begin(), addresses.end(), random);
  std::vector<RegionRecord*> records;
  for (const std::uint64_t address : addresses) records.push_back(table.insert(std::make_unique<RegionRecord>(address, 2048, nullptr)));
  REQUIRE(table.check() == "");
  CHECK(table.size() == addresses.size());
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    REQUIRE(table.find(addresses[i]) == records[i]);
    REQUIRE(table.find(addresses[i] + 2047) == records[i]);
    REQUIRE(table.find(addresses[i] + 2048) == nullptr);
    REQUIRE(table.find(addresses[i] - 1) == nullptr);
  }
  std::shuffle(records.begin(), records.end(), random);
  while (!records.empty()) {
    const std::uint64_t address = records.back()->address;
    REQUIRE(table.find(address) == records.back());  // so that the table remembers what is erased next
    table.erase(records.back());
    records.pop_back();
    REQUIRE(table.find(address) == nullptr);
    if (records.size() % 1000 == 0) REQUIRE(table.check() == "");
  }
  CHECK(table.size() == 0);
}
