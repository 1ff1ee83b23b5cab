// The table of entry points: which variant a lookup means.
#include "shim/entry_points.hpp"

#include <catch2/catch.hpp>

#include <set>
#include <string>

using namespace cupool::shim;

TEST_CASE("every row has a symbol of its own") {
  std::set<std::string> symbols;
  for (const EntryPoint& row : kEntryPoints) CHECK(symbols.insert(row.symbol).second);
}

TEST_CASE("an exported symbol finds its row and nothing else does") {
  CHECK(find_symbol("cuMemAlloc_v2") == Entry::cuMemAlloc_v2);
  CHECK(find_symbol("cuMemAlloc") == Entry::cuMemAlloc);
  CHECK_FALSE(find_symbol("cuMemAlloc_v"));
  CHECK_FALSE(find_symbol("cuMemAlloc_v22"));
  CHECK_FALSE(find_symbol("cudnnCreate"));
  CHECK_FALSE(find_symbol(""));
}

TEST_CASE("a lookup means the newest variant that the asked version has") {
  CHECK(find_looked_up("cuMemAlloc", 12000, false) == Entry::cuMemAlloc_v2);
  CHECK(find_looked_up("cuMemAlloc", 3020, false) == Entry::cuMemAlloc_v2);
  CHECK(find_looked_up("cuMemAlloc", 3010, false) == Entry::cuMemAlloc);
  CHECK(find_looked_up("cuCtxCreate", 11030, false) == Entry::cuCtxCreate_v2);
  CHECK(find_looked_up("cuCtxCreate", 12049, false) == Entry::cuCtxCreate_v3);
  CHECK(find_looked_up("cuCtxCreate", 12050, false) == Entry::cuCtxCreate_v4);
  CHECK(find_looked_up("cuGetProcAddress", 11030, false) == Entry::cuGetProcAddress);
  CHECK(find_looked_up("cuGetProcAddress", 12000, false) == Entry::cuGetProcAddress_v2);
  CHECK_FALSE(find_looked_up("cuMemAllocAsync", 11010, false));
}

TEST_CASE("per-thread lookups get the per-thread variant where there is one, and never otherwise") {
  CHECK(find_looked_up("cuMemFreeAsync", 12000, true) == Entry::cuMemFreeAsync_ptsz);
  CHECK(find_looked_up("cuMemFreeAsync", 12000, false) == Entry::cuMemFreeAsync);
  CHECK(find_looked_up("cuStreamBeginCapture", 12000, true) == Entry::cuStreamBeginCapture_v2_ptsz);
  CHECK(find_looked_up("cuStreamBeginCapture", 10000, true) == Entry::cuStreamBeginCapture_ptsz);
  CHECK(find_looked_up("cuMemAlloc", 12000, true) == Entry::cuMemAlloc_v2);
  for (const EntryPoint& row : kEntryPoints) {
    const auto found = find_looked_up(row.looked_up_name, row.since, row.is_per_thread);
    REQUIRE(found);
    CHECK(std::string(kEntryPoints[static_cast<std::size_t>(*found)].symbol) == row.symbol);
  }
}

TEST_CASE("an exported symbol may be looked up by its full name") {
  CHECK(find_looked_up("cuMemAlloc_v2", 12000, false) == Entry::cuMemAlloc_v2);
  CHECK(find_looked_up("cuMemFreeAsync_ptsz", 12000, false) == Entry::cuMemFreeAsync_ptsz);
}
