// Opened blocks and their regions: references, bounds, overlaps, contexts.
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <random>

#include "pool/ipc/import_table.hpp"

using namespace cupool::ipc;
using Close = ImportTable::Close;

namespace {

constexpr CUdeviceptr kRegion = 0x7000'0000;
constexpr std::uint64_t kRegion_bytes = 0x10000;

CUcontext context(std::uintptr_t number) { return reinterpret_cast<CUcontext>(number << 12); }

CUipcMemHandle handle(int number) {
  CUipcMemHandle made{};
  std::memcpy(&made, &number, sizeof number);
  return made;
}

OpenedRegion region(CUdeviceptr base = kRegion, int number = 1, std::uintptr_t owner = 1) {
  return {base, kRegion_bytes, context(owner), handle(number), 1, 0, 0};
}

BlockPlace place(std::uint64_t offset, std::uint64_t bytes, std::uint64_t nonce) { return {{nonce, 0}, handle(1), kRegion_bytes, offset, bytes}; }

struct Table : ImportTable {
  Table() { add_driver_open(region()); }
  ~Table() { CHECK(check() == ""); }
  Close peek(CUdeviceptr base) const {
    OpenedBlock block;
    return peek_close(base, block);
  }
};

}  // namespace

TEST_CASE("a block is found from its first byte to its last, and nothing around it") {
  Table table;
  REQUIRE(table.open(kRegion, place(512, 1000, 1)) == kRegion + 512);
  REQUIRE(table.find(kRegion + 512) != nullptr);
  CHECK(table.find(kRegion + 512)->base == kRegion + 512);
  CHECK(table.find(kRegion + 1511)->bytes == 1000);
  CHECK(table.find(kRegion + 1512) == nullptr);
  CHECK(table.find(kRegion + 511) == nullptr);
  CHECK(table.find_region(kRegion + 511) != nullptr);
  CHECK(table.find_region(kRegion + kRegion_bytes - 1) != nullptr);
  CHECK(table.find_region(kRegion + kRegion_bytes) == nullptr);
  CHECK(table.find_region(kRegion - 1) == nullptr);
  CHECK(table.find(0) == nullptr);
}

TEST_CASE("a short block behind a long one hides neither") {
  Table table;
  table.open(kRegion, place(0, 0x8000, 1));
  table.open(kRegion, place(0x8000, 16, 2));
  table.open(kRegion, place(0x9000, 16, 3));
  CHECK(table.find(kRegion + 0x7fff)->nonce == Nonce{1, 0});
  CHECK(table.find(kRegion + 0x8000)->nonce == Nonce{2, 0});
  CHECK(table.find(kRegion + 0x8010) == nullptr);
  CHECK(table.find(kRegion + 0x900f)->nonce == Nonce{3, 0});
}

TEST_CASE("a block that does not fit in what the driver opened is refused") {
  Table table;
  CHECK(table.open(kRegion, place(0, kRegion_bytes + 1, 1)) == 0);
  CHECK(table.open(kRegion, place(1, kRegion_bytes, 1)) == 0);
  CHECK(table.open(kRegion, place(kRegion_bytes, 1, 1)) == 0);
  CHECK(table.open(kRegion, place(UINT64_MAX, 2, 1)) == 0);
  CHECK(table.open(kRegion, place(0, 0, 1)) == 0);
  CHECK(table.open(kRegion + 1, place(0, 1, 1)) == 0);
  CHECK(table.open(kRegion, place(0, kRegion_bytes, 1)) == kRegion);
}

TEST_CASE("a region is idle until a block is in it") {
  Table table;
  const auto idle = table.take_idle(kRegion);
  REQUIRE(idle.has_value());
  CHECK(idle->driver_opens == 1);
  CHECK_FALSE(table.take_idle(kRegion).has_value());
  table.add_driver_open(region());
  table.open(kRegion, place(0, 1, 1));
  CHECK_FALSE(table.take_idle(kRegion).has_value());
}

TEST_CASE("the region goes with the last reference of its last block, and as often as the driver opened it") {
  Table table;
  table.open(kRegion, place(0, 512, 1));
  table.open(kRegion, place(0, 512, 1));
  table.open(kRegion, place(512, 512, 2));
  table.add_driver_open(region());  // two threads were at it
  CHECK(table.peek(kRegion) == Close::counted);
  CHECK_FALSE(table.close(kRegion).has_value());
  CHECK(table.peek(kRegion) == Close::last_of_block);
  CHECK_FALSE(table.close(kRegion).has_value());
  CHECK(table.peek(kRegion) == Close::unknown);
  CHECK_FALSE(table.close(kRegion).has_value());
  CHECK(table.peek(kRegion + 512) == Close::last_of_region);
  const auto gone = table.close(kRegion + 512);
  REQUIRE(gone.has_value());
  CHECK(gone->base == kRegion);
  CHECK(gone->driver_opens == 2);
  CHECK(table.region_count() == 0);
  CHECK(table.find_region(kRegion) == nullptr);
}

TEST_CASE("a region at the addresses of another context's replaces it, which is gone") {
  Table table;
  table.open(kRegion, place(512, 512, 1));
  table.open(kRegion, place(1024, 512, 2));
  table.add_driver_open(region(kRegion, 1, 2));
  CHECK(table.open(kRegion, place(512, 512, 1)) == kRegion + 512);
  CHECK(table.find(kRegion + 1024) == nullptr);
  REQUIRE(table.find_region(kRegion) != nullptr);
  CHECK(table.find_region(kRegion)->context == context(2));
  CHECK(table.find_region(kRegion)->driver_opens == 1);
  table.remove_context(context(1), table.mark());
  CHECK(table.peek(kRegion + 512) == Close::last_of_region);
}

TEST_CASE("so does one that only overlaps it") {
  Table table;
  table.open(kRegion, place(512, 512, 1));
  table.add_driver_open(region(kRegion - kRegion_bytes, 2, 2));
  CHECK(table.region_count() == 2);
  table.add_driver_open(region(kRegion + 0x8000, 3, 2));
  CHECK(table.region_count() == 2);
  CHECK(table.find(kRegion + 512) == nullptr);
  table.add_driver_open(region(kRegion - 0x8000 - 1, 4, 3));
  CHECK(table.region_count() == 2);
  CHECK(table.find_region(kRegion - kRegion_bytes) == nullptr);
  OpenedRegion huge = region(kRegion - 0x20000, 5, 3);
  huge.bytes = 1;
  table.add_driver_open(huge);
  CHECK(table.region_count() == 3);
  huge.base -= 0x20000;
  huge.bytes = 0x10'0000;
  table.add_driver_open(huge, false);  // only the exporter's file says so
  CHECK(table.region_count() == 4);
  for (const CUdeviceptr base : {kRegion - 0x8000 - 1, kRegion + 0x8000, kRegion - 0x20000, kRegion - 0x40000}) table.take_idle(base);
}

TEST_CASE("an open between a wait and the close is seen") {
  Table table;
  OpenedBlock block;
  table.open(kRegion, place(0, 512, 1));
  table.open(kRegion, place(512, 512, 2));
  CHECK(table.peek_close(kRegion, block) == Close::last_of_block);
  const std::uint64_t opens = block.opens;
  table.open(kRegion, place(0, 512, 1));
  table.close(kRegion);
  CHECK(table.peek_close(kRegion, block) == Close::last_of_block);
  CHECK(block.opens != opens);
}

TEST_CASE("an interior address is nothing that can be closed") {
  Table table;
  table.open(kRegion, place(512, 512, 1));
  CHECK(table.peek(kRegion + 513) == Close::unknown);
  CHECK(table.peek(kRegion) == Close::unknown);
  CHECK_FALSE(table.close(kRegion).has_value());
  CHECK(table.find(kRegion + 512) != nullptr);
}

TEST_CASE("a region is found by the driver's handle in its own context only") {
  Table table;
  table.open(kRegion, place(0, 1, 1));
  CHECK(table.find_region(handle(1), context(1)) != nullptr);
  CHECK(table.find_region(handle(1), context(2)) == nullptr);
  CHECK(table.find_region(handle(2), context(1)) == nullptr);
}

TEST_CASE("two exports of one address are open at once: queries see the newer, closing takes the older") {
  Table table;
  table.open(kRegion, place(0, 1024, 1));
  table.open(kRegion, place(0, 512, 2));
  CHECK(table.find(kRegion)->bytes == 512);
  CHECK(table.find(kRegion + 600)->bytes == 1024);
  CHECK_FALSE(table.close(kRegion).has_value());
  CHECK(table.find(kRegion)->nonce == Nonce{2, 0});
  CHECK(table.find(kRegion + 600) == nullptr);
  CHECK(table.close(kRegion).has_value());
}

TEST_CASE("of two blocks at one address the newer is seen, also where it begins before the older") {
  Table table;
  table.open(kRegion, place(0x4000, 512, 1));
  table.open(kRegion, place(0, 0x8000, 2));
  CHECK(table.find(kRegion + 0x4100)->nonce == Nonce{2, 0});
  CHECK(table.find(kRegion + 0x3fff)->nonce == Nonce{2, 0});
}

TEST_CASE("the region needs SYNC_MEMOPS while one of its blocks does") {
  Table table;
  table.open(kRegion, place(0, 512, 1));
  table.open(kRegion, place(512, 512, 2));
  CHECK(table.set_sync_memops(kRegion, true));
  CHECK(table.set_sync_memops(kRegion + 600, true));
  CHECK_FALSE(table.set_sync_memops(kRegion, false));
  CHECK_FALSE(table.find(kRegion)->sync_memops);
  CHECK(table.find(kRegion + 512)->sync_memops);
  CHECK(table.set_sync_memops(kRegion + 512, false));
}

TEST_CASE("a context takes its regions and blocks along, but not those of the next one with its handle") {
  Table table;
  table.open(kRegion, place(0, 512, 1));
  table.add_driver_open(region(0x8000'0000, 2, 2));
  table.open(0x8000'0000, place(0, 512, 2));
  const std::uint64_t before = table.mark();
  table.add_driver_open(region(0x9000'0000, 3, 1));
  table.open(0x9000'0000, place(0, 512, 3));
  table.remove_context(context(1), before);
  CHECK(table.check() == "");
  CHECK(table.find(kRegion) == nullptr);
  CHECK(table.find_region(kRegion) == nullptr);
  CHECK(table.find(0x8000'0000) != nullptr);
  CHECK(table.find(0x9000'0000) != nullptr);
}

TEST_CASE("a long random life agrees with a plain list of references") {
  ImportTable table;
  std::mt19937 random(3);
  std::map<CUdeviceptr, unsigned> references;
  for (int step = 0; step < 5000; ++step) {
    const CUdeviceptr base = kRegion + (random() % 4) * kRegion_bytes;
    const std::uint64_t offset = (random() % 16) * 1024;
    if (random() % 2 == 0) {
      if (table.find_region(handle(static_cast<int>(base)), context(1)) == nullptr) table.add_driver_open(region(base, static_cast<int>(base)));
      REQUIRE(table.open(base, place(offset, 512 + random() % 2 * 512, random() % 3)) == base + offset);
      ++references[base + offset];
    } else if (references[base + offset] != 0) {
      OpenedBlock block;
      REQUIRE(table.peek_close(base + offset, block) != Close::unknown);
      table.close(base + offset);
      --references[base + offset];
    } else {
      REQUIRE_FALSE(table.close(base + offset).has_value());
    }
    REQUIRE((table.find(base + offset) != nullptr) == (references[base + offset] != 0));
    REQUIRE(table.check() == "");
  }
}
