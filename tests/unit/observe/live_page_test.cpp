// The live page as a foreign reader sees it: by the offsets of the published format only.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "pool/observe/live_page.hpp"

using namespace cupool::observe;
using cupool::kDriverCallCount;
using cupool::kDriverCallNames;

namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

struct Page {
  explicit Page(const std::string& json, std::size_t missing_bytes = 0)
      : bytes(live_page_bytes(json.size())), memory(static_cast<char*>(std::aligned_alloc(4096, bytes))) {
    std::memset(memory.get(), 0, bytes);
    header = format_live_page(memory.get(), bytes - missing_bytes, {4711, 99, 1700000000000000000, 12345}, json);
  }
  template <class T> T at(std::size_t offset) const {
    T value;
    std::memcpy(&value, memory.get() + offset, sizeof value);
    return value;
  }
  std::string text(std::size_t offset_field) const { return {memory.get() + at<std::uint32_t>(offset_field), at<std::uint32_t>(offset_field + 4)}; }

  std::size_t bytes;
  std::unique_ptr<char, Free> memory;
  LiveHeader* header = nullptr;
};

/// Line `index` of a name table.
std::string line(const std::string& table, std::size_t index) {
  std::size_t start = 0;
  for (; index > 0; --index) start = table.find('\n', start) + 1;
  return table.substr(start, table.find('\n', start) - start);
}

}  // namespace

TEST_CASE("a page begins with its magic word, version and identity at the published offsets") {
  const Page page("{}");
  REQUIRE(page.header != nullptr);
  CHECK(std::memcmp(page.memory.get(), "CUPULPG1", 8) == 0);
  CHECK(page.at<std::uint32_t>(8) == 2);
  CHECK(page.at<std::uint32_t>(12) == 160);
  CHECK(page.at<std::int32_t>(16) == 4711);
  CHECK(page.at<std::uint32_t>(20) == 1);
  CHECK(page.at<std::uint64_t>(24) == 99);
  CHECK(page.at<std::uint64_t>(32) == 1700000000000000000);
  CHECK(page.at<std::uint64_t>(40) == 12345);
  CHECK(page.at<std::uint32_t>(96) == 0);
}

TEST_CASE("the name tables name every counter, driver call and figure, in the order of the storage") {
  const Page page("{}");
  std::size_t offset = 0;
  std::size_t row_index = 0;
  const std::string counters = page.text(48);
  for (const CounterRow& row : kCounterRows) {
    CHECK(line(counters, row_index++) == std::string(row.name) + (row.is_gauge ? " gauge " : " total ") + row.unit);
    offset += row.is_gauge ? 16 : 8;
  }
  CHECK(offset == sizeof(Counters));
  const std::string calls = page.text(56);
  for (std::size_t i = 0; i < kDriverCallCount; ++i) CHECK(line(calls, i) == kDriverCallNames[i]);
  CHECK(line(page.text(104), 3) == "at_peak_free_bytes");
  CHECK(line(page.text(112), 3) == "host");
}

TEST_CASE("what the pool writes into a slot is found through the tables") {
  const Page page("{}");
  LiveDevice& device = live_devices(page.header)[63];
  device.ordinal = 5;
  std::strcpy(device.name, "GPU five");
  device.counters.deferred_bytes.add(700);
  device.counters.deferred_bytes.add(-300);
  device.counters.frees.add(3);
  device.driver_calls[kDriverCallCount - 1].store(17);
  device.fragmentation.at_peak_inactive_split_bytes.store(77);
  device.outside.host.store(88);
  auto* shard = new (device.shards + 3 * sizeof(LiveShard)) LiveShard;
  shard->live_blocks.store(std::uint64_t{0} - 2);
  device.in_use.store(1, std::memory_order_release);

  const std::size_t slot = page.at<std::uint32_t>(72) + 63 * page.at<std::uint32_t>(76);
  CHECK(page.at<std::uint32_t>(80) == 64);
  CHECK(page.at<std::uint32_t>(slot) == 1);
  CHECK(page.at<std::int32_t>(slot + 4) == 5);
  CHECK(std::string(page.memory.get() + slot + 48) == "GPU five");
  const std::size_t counters = slot + page.at<std::uint32_t>(84);
  std::size_t offset = counters;
  for (const CounterRow& row : kCounterRows) {
    if (std::string(row.name) == "deferred_bytes") {
      CHECK(page.at<std::uint64_t>(offset) == 400);
      CHECK(page.at<std::uint64_t>(offset + 8) == 700);
    }
    if (std::string(row.name) == "frees") CHECK(page.at<std::uint64_t>(offset) == 3);
    offset += row.is_gauge ? 16 : 8;
  }
  CHECK(page.at<std::uint64_t>(slot + page.at<std::uint32_t>(88) + 8 * (kDriverCallCount - 1)) == 17);
  CHECK(page.at<std::uint64_t>(slot + page.at<std::uint32_t>(92) + 8 * 10) == 77);
  CHECK(page.at<std::uint64_t>(slot + page.at<std::uint32_t>(100) + 8 * 3) == 88);
  CHECK(page.at<std::uint32_t>(144) == kLiveShards);
  const std::size_t shards = slot + page.at<std::uint32_t>(136);
  const std::size_t stride = page.at<std::uint32_t>(140);
  CHECK(line(page.text(148), 5) == "live_blocks");
  for (std::size_t i = 0; i < kLiveShards; ++i) CHECK(page.at<std::uint64_t>(shards + i * stride + 8 * 5) == (i == 3 ? std::uint64_t{0} - 2 : 0));
  CHECK(slot + page.at<std::uint32_t>(76) <= page.bytes);
}

TEST_CASE("the process's text is in the page, whatever its length") {
  for (const std::size_t length : {std::size_t{0}, std::size_t{2}, std::size_t{4096}, std::size_t{100000}}) {
    const std::string json(length, 'x');
    const Page page(json);
    REQUIRE(page.header != nullptr);
    CHECK(page.text(64) == json);
    CHECK(page.at<std::uint32_t>(64) + json.size() <= page.bytes);
  }
}

TEST_CASE("memory that is too small is refused untouched") {
  const Page page("{}", 1);
  CHECK(page.header == nullptr);
  CHECK(page.at<std::uint64_t>(0) == 0);
  CHECK(format_live_page(nullptr, 1 << 20, {}, "") == nullptr);
}

TEST_CASE("a name that passed unpooled is listed once, long ones cut, and a full list says so") {
  const Page page("{}");
  CHECK(note_unpooled(page.header, "cuMemAllocAsync"));
  CHECK(note_unpooled(page.header, "cuMemAllocAsync"));
  CHECK(note_unpooled(page.header, std::string(200, 'n')));
  const std::size_t first = page.at<std::uint32_t>(120);
  const std::size_t stride = page.at<std::uint32_t>(124);
  CHECK(page.at<std::uint32_t>(first) == 2);
  CHECK(std::string(page.memory.get() + first + 4) == "cuMemAllocAsync");
  CHECK(std::string(page.memory.get() + first + stride + 4) == std::string(59, 'n'));
  CHECK(page.at<std::uint32_t>(first + 2 * stride) == 0);
  for (std::size_t i = 2; i < kUnpooledSlots; ++i) CHECK(note_unpooled(page.header, "name" + std::to_string(i)));
  CHECK_FALSE(note_unpooled(page.header, "one too many"));
  CHECK(note_unpooled(page.header, "cuMemAllocAsync"));
}

TEST_CASE("names noted by several threads at once all arrive") {
  const Page page("{}");
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&page, t] {
      for (int i = 0; i < 8; ++i) note_unpooled(page.header, "thread" + std::to_string(t) + "_" + std::to_string(i));
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> seen;
  for (std::size_t i = 0; i < kUnpooledSlots; ++i) {
    const std::size_t slot = page.at<std::uint32_t>(120) + i * page.at<std::uint32_t>(124);
    if (page.at<std::uint32_t>(slot) == 2) seen.emplace_back(page.memory.get() + slot + 4);
  }
  std::sort(seen.begin(), seen.end());
  CHECK(seen.size() == 32);
  CHECK(std::unique(seen.begin(), seen.end()) == seen.end());
}
