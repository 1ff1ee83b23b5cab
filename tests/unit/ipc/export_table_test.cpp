// Exports: known by address and buffer id, indices used again, contexts that take theirs along.
#include <catch2/catch.hpp>
#include <random>
#include <set>

#include "pool/ipc/export_table.hpp"

using namespace cupool::ipc;

namespace {

CUcontext context(std::uintptr_t number) { return reinterpret_cast<CUcontext>(number << 12); }

struct Table : ExportTable {
  std::uint32_t put(CUdeviceptr base, std::uint64_t id, std::uintptr_t owner = 1) {
    const std::uint32_t index = add(base, id, context(owner), {base, id}, evicted).index;
    REQUIRE(check() == "");
    return index;
  }
  std::optional<std::uint32_t> evicted;
};

}  // namespace

TEST_CASE("an export is found by address and buffer id together") {
  Table table;
  CHECK(table.buffer_at(0x1000) == 0);
  CHECK(table.next_index() == 0);
  CHECK(table.put(0x1000, 7) == 0);
  REQUIRE(table.find(0x1000, 7) != nullptr);
  CHECK(table.find(0x1000, 7)->nonce == Nonce{0x1000, 7});
  CHECK(table.find(0x1000, 8) == nullptr);
  CHECK(table.find(0x1001, 7) == nullptr);
  CHECK(table.buffer_at(0x1000) == 7);
}

TEST_CASE("removing asks for the block, not only its address") {
  Table table;
  table.put(0x1000, 7);
  CHECK_FALSE(table.remove(0x1000, 6).has_value());
  CHECK(table.remove(0x1000, 7) == std::optional<std::uint32_t>(0));
  CHECK_FALSE(table.remove(0x1000, 7).has_value());
  CHECK(table.size() == 0);
  CHECK(table.check() == "");
}

TEST_CASE("indices are used again before new ones are taken") {
  Table table;
  for (std::uint64_t i = 0; i < 10; ++i) CHECK(table.put(i << 12, i + 1) == i);
  table.remove(3 << 12, 4);
  table.remove(8 << 12, 9);
  CHECK(table.next_index() == 8);
  CHECK(table.put(20 << 12, 50) == 8);
  CHECK(table.put(21 << 12, 51) == 3);
  CHECK(table.put(22 << 12, 52) == 10);
}

TEST_CASE("a new block at an address evicts the export that still stands there") {
  Table table;
  const std::uint32_t before = table.put(0x1000, 7);
  CHECK_FALSE(table.evicted.has_value());
  const std::uint32_t after = table.put(0x1000, 8);
  CHECK(table.evicted == std::optional<std::uint32_t>(before));
  CHECK(after != before);
  CHECK_FALSE(table.remove(0x1000, 7).has_value());
  CHECK(table.buffer_at(0x1000) == 8);
}

TEST_CASE("a context takes its exports along, but not those of the next one with its handle") {
  Table table;
  const std::uint32_t a = table.put(0x1000, 1, 1);
  table.put(0x2000, 2, 2);
  const std::uint64_t before = table.mark();
  table.put(0x3000, 3, 1);
  CHECK(table.remove_context(context(1), before) == std::vector<std::uint32_t>{a});
  CHECK(table.check() == "");
  CHECK(table.buffer_at(0x1000) == 0);
  CHECK(table.buffer_at(0x2000) == 2);
  CHECK(table.buffer_at(0x3000) == 3);
  CHECK(table.remove_context(context(9), UINT64_MAX).empty());
}

TEST_CASE("a long random life keeps the table whole") {
  ExportTable table;
  std::mt19937 random(5);
  std::uint64_t id = 0;
  std::set<std::pair<CUdeviceptr, std::uint64_t>> live;
  std::size_t most = 0;
  for (int step = 0; step < 4000; ++step) {
    const CUdeviceptr base = (random() % 200) << 9;
    const std::uint64_t present = table.buffer_at(base);
    if (random() % 2 == 0) {
      std::optional<std::uint32_t> evicted;
      table.add(base, ++id, context(random() % 3), {}, evicted);
      REQUIRE(evicted.has_value() == (present != 0));
    } else if (present != 0) {
      REQUIRE(table.remove(base, present).has_value());
    }
    if (random() % 500 == 0) table.remove_context(context(1), table.mark());
    most = std::max(most, table.size());
    REQUIRE(table.check() == "");
  }
  CHECK(table.next_index() <= most + 1);  // + 1: an evicted export's index is free only after the new one has its own
}
