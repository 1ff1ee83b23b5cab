// Small blocks among large ones: what stays of them must not keep the large ones' memory from others.
#include <catch2/catch.hpp>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kMemory_bytes = 16 * kGiB;
constexpr std::size_t kLarge_bytes = 32 * kMiB;
constexpr std::uint64_t kPage_bytes = 2 * kMiB;

RigOptions pages_of(const char* memory) {
  RigOptions options = device_of(memory);
  options.pool.backing = config::Backing::pages;
  return options;
}

struct Mixed {
  std::vector<CUdeviceptr> large, small;
};

/// A large block and a small one by turns, until `most_bytes` live.
Mixed fill(Rig& rig, std::size_t small_bytes, std::uint64_t most_bytes, std::size_t large_bytes = kLarge_bytes) {
  Mixed mixed;
  while (now(rig.counters().live_bytes) + large_bytes + small_bytes <= most_bytes) {
    mixed.large.push_back(rig.allocate(large_bytes));
    mixed.small.push_back(rig.allocate(small_bytes));
  }
  return mixed;
}

void free_all(Rig& rig, const std::vector<CUdeviceptr>& blocks) {
  for (const CUdeviceptr block : blocks) rig.free(block);
}

/// The largest block that is to be had, to 64 MiB or less.
std::uint64_t largest_bytes(Rig& rig, std::uint64_t memory_bytes = kMemory_bytes) {
  std::uint64_t low = 0;
  std::uint64_t high = memory_bytes;
  while (high - low > memory_bytes / 256) {
    const std::uint64_t middle = low + (high - low) / 2;
    const Result<CUdeviceptr> block = rig.try_allocate(middle);
    (block.ok() ? low : high) = middle;
    if (block.ok()) rig.free(block.value());
  }
  return low;
}

}  // namespace

TEST_CASE("pages: small blocks that stay between large ones keep a thirty-second of the device from others, and what they lie on") {
  const std::size_t small_bytes = GENERATE(4 * kKiB, 40 * kKiB, 512 * kKiB, 2 * kMiB);
  Rig rig(pages_of("16GiB"));
  const Mixed mixed = fill(rig, small_bytes, kMemory_bytes / 10 * 9);
  free_all(rig, mixed.large);
  INFO(small_bytes);
  CHECK(largest_bytes(rig) >= kMemory_bytes - now(rig.counters().live_bytes) - kMemory_bytes / 32 - 320 * kMiB);
}

TEST_CASE("pages: small blocks that stay between blocks of 1 MiB keep little from others, whether handles are pages or larger") {
  const auto [memory, memory_bytes] =
      GENERATE(std::pair<const char*, std::uint64_t>{"1GiB", kGiB}, std::pair<const char*, std::uint64_t>{"8GiB", 8 * kGiB});
  const std::size_t small_bytes = GENERATE(4 * kKiB, 40 * kKiB, 128 * kKiB);
  Rig rig(pages_of(memory));
  const Mixed mixed = fill(rig, small_bytes, memory_bytes / 10 * 9, kMiB);
  free_all(rig, mixed.large);
  INFO(memory << " " << small_bytes);
  const std::uint64_t small_pages = mixed.small.size() * small_bytes / kPage_bytes;
  CHECK(largest_bytes(rig, memory_bytes) >= memory_bytes - now(rig.counters().live_bytes) - memory_bytes / 32 - small_pages * kPage_bytes);
}

TEST_CASE("pages: in a small preallocated pool, too") {
  RigOptions options = pages_of("1GiB");
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("1000MiB");
  Rig rig(options);
  const Mixed mixed = fill(rig, 4 * kKiB, 900 * kMiB, kMiB);
  free_all(rig, mixed.large);
  CHECK(largest_bytes(rig, kGiB) >= kGiB - now(rig.counters().live_bytes) - kGiB / 16);
}

TEST_CASE("pages: in a large preallocated pool, too, where handles are of a hundred pages, even what no longer fits where small blocks belong") {
  RigOptions options = pages_of("80GiB");
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("78GiB");
  Rig rig(options);
  const Mixed mixed = fill(rig, kMiB + 512 * kKiB, 70 * kGiB);
  free_all(rig, mixed.large);
  CHECK(largest_bytes(rig, 80 * kGiB) >= 80 * kGiB - now(rig.counters().live_bytes) - 80 * kGiB / 16);
}

TEST_CASE("pages: where the pool is a small part of the device, small blocks lie beside large ones, and no addresses are taken for them") {
  Rig rig(pages_of("16GiB"));
  fill(rig, 40 * kKiB, kMemory_bytes / 40);
  CHECK(cusim_calls("cuMemAddressReserve") == 1);
  fill(rig, 40 * kKiB, kMemory_bytes / 8);
  CHECK(cusim_calls("cuMemAddressReserve") == 2);
}

TEST_CASE("pages: small blocks get handles no larger than all that they have") {
  Rig rig(pages_of("16GiB"));
  while (now(rig.counters().live_bytes) < kMemory_bytes / 16) rig.allocate(kLarge_bytes);
  const std::uint64_t mapped_bytes = now(rig.counters().mapped_bytes);
  std::uint64_t zone_bytes = 0;
  int growths = 0;
  while (growths < 5) {
    rig.allocate(512 * kKiB);
    const std::uint64_t before_bytes = std::exchange(zone_bytes, now(rig.counters().mapped_bytes) - mapped_bytes);
    CHECK(zone_bytes <= std::max(2 * before_bytes, std::uint64_t{2 * kMiB}));
    growths += zone_bytes != before_bytes ? 1 : 0;
  }
}

TEST_CASE("pages: when handles are smaller blocks may lie among others for which they were small before") {
  Rig rig(pages_of("16GiB"));
  std::vector<CUdeviceptr> large;
  while (now(rig.counters().live_bytes) < kMemory_bytes - 2 * kGiB) large.push_back(rig.allocate(kLarge_bytes));
  for (std::size_t i = 0; i < 4; ++i) rig.free(large[large.size() / 2 + i]);
  REQUIRE(rig.pools().much_waits(rig.context()));
  rig.pools().after_wait(rig.context());
  const std::uint64_t calls = cusim_calls("cuMemMap");
  for (int i = 0; i < 16; ++i) rig.allocate(2 * kMiB - 512);  // whole pages would be cracked
  CHECK(cusim_calls("cuMemMap") == calls);
  rig.allocate(64 * kKiB);
  CHECK(cusim_calls("cuMemMap") == calls + 1);
}

TEST_CASE("pages: on a device on which handles are single pages small blocks lie beside large ones") {
  Rig rig(pages_of("1GiB"));
  fill(rig, 40 * kKiB, kGiB);
  CHECK(cusim_calls("cuMemAddressReserve") == 1);
}

TEST_CASE("pages: where the driver has nothing left small blocks lie in any hole, and large ones too") {
  Rig rig(pages_of("16GiB"));
  const Mixed mixed = fill(rig, 40 * kKiB, kMemory_bytes - 64 * kMiB);
  while (rig.try_allocate(2 * kMiB).ok()) {}
  for (std::size_t i = 0; i < mixed.large.size(); i += 2) rig.free(mixed.large[i]);
  const std::uint64_t calls = cusim_calls("cuMemMap") + cusim_calls("cuMemCreate");
  for (int i = 0; i < 200; ++i) rig.allocate(40 * kKiB);
  CHECK(cusim_calls("cuMemMap") + cusim_calls("cuMemCreate") == calls);
  for (const std::size_t bytes : {kLarge_bytes, 8 * kMiB})
    while (rig.try_allocate(bytes).ok()) {}
  free_all(rig, mixed.small);
  const std::uint64_t later_calls = cusim_calls("cuMemMap");
  rig.allocate(8 * kMiB);
  CHECK(cusim_calls("cuMemMap") == later_calls);
}

TEST_CASE("pages: a job that repeats itself takes what is free in any zone before it grows") {
  Rig rig(pages_of("16GiB"));
  const auto step = [&] {
    const Mixed mixed = fill(rig, 40 * kKiB, kMemory_bytes / 4);
    free_all(rig, mixed.large);
    free_all(rig, mixed.small);
  };
  for (int i = 0; i < 3; ++i) step();
  const std::uint64_t calls = cusim_calls("cuMemMap");
  std::vector<CUdeviceptr> more;
  for (int i = 0; i < 4000; ++i) more.push_back(rig.allocate(48 * kKiB));  // more of them than ever
  CHECK(cusim_calls("cuMemMap") == calls);
}

TEST_CASE("pages: in a preallocated pool small blocks keep little from large ones, and cost no driver call while it lasts") {
  const std::size_t small_bytes = GENERATE(40 * kKiB, 512 * kKiB);
  RigOptions options = pages_of("16GiB");
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("12GiB");
  Rig rig(options);
  rig.allocate(512);
  CHECK(now(rig.counters().reserved_bytes) == 12 * kGiB);
  const std::uint64_t calls = cusim_calls("cuMemMap");
  const Mixed mixed = fill(rig, small_bytes, 11 * kGiB);
  CHECK(cusim_calls("cuMemMap") == calls);
  free_all(rig, mixed.large);
  CHECK(largest_bytes(rig) >= kMemory_bytes - now(rig.counters().live_bytes) - kMemory_bytes / 32);
  while (rig.try_allocate(64 * kMiB).ok()) {  // and theirs is everybody's
  }
  CHECK(now(rig.counters().live_bytes) >= kMemory_bytes - kGiB / 2);
}

TEST_CASE("pages: of blocks of whole pages that fill a device every other one goes, and what it had is everybody's") {
  using Row = std::tuple<std::uint64_t, const char*, std::size_t>;
  const auto [block_mib, memory, step] = GENERATE(table<std::uint64_t, const char*, std::size_t>(
      {Row{2, "4GiB", 8}, Row{4, "16GiB", 2}, Row{6, "16GiB", 2}, Row{12, "16GiB", 2}, Row{20, "16GiB", 2}, Row{24, "16GiB", 2}, Row{20, "80GiB", 2},
       Row{40, "40GiB", 2}, Row{130, "80GiB", 2}}));
  CAPTURE(block_mib, memory, step);
  Rig rig(pages_of(memory));
  std::vector<CUdeviceptr> blocks;
  for (Result<CUdeviceptr> block = rig.try_allocate(block_mib * kMiB); block.ok(); block = rig.try_allocate(block_mib * kMiB))
    blocks.push_back(block.value());
  std::uint64_t freed_bytes = 0;
  for (std::size_t i = 0; i < blocks.size(); i += step) {
    rig.free(blocks[i]);
    freed_bytes += block_mib * kMiB;
  }
  rig.allocate(freed_bytes / 100 * 97);
  CHECK(rig.pools().check().empty());
}

TEST_CASE("pages: of blocks that share pages every other one goes, and all that they did not share is everybody's") {
  const std::size_t bytes = GENERATE(5 * kMiB + 512, 8294 * kKiB, 17000 * kKiB, 33890 * kKiB, 66000 * kKiB);
  constexpr std::size_t kMuch_bytes = 250 * kMiB;
  Rig rig(pages_of("16GiB"));
  std::vector<CUdeviceptr> blocks;
  while (now(rig.counters().live_bytes) + bytes <= kMemory_bytes / 64 * 63) blocks.push_back(rig.allocate(bytes));
  std::size_t freed = 0;
  for (std::size_t i = 0; i < blocks.size(); i += 2, ++freed) rig.free(blocks[i]);
  std::uint64_t had_bytes = 0;
  while (rig.try_allocate(kMuch_bytes).ok()) had_bytes += kMuch_bytes;
  INFO(bytes);
  CHECK(had_bytes + kMuch_bytes >= freed * (bytes / kPage_bytes - 1) * kPage_bytes);
}

TEST_CASE("pages: a job that begins again takes what it has among blocks of other sizes before it has more") {
  Rig rig(pages_of("80GiB"));
  for (std::size_t i = 1; i <= 400; ++i) rig.free(rig.allocate(i * 512));  // for a program that only asks for whole pages handles are cracked
  const auto calls = [] { return cusim_calls("cuMemCreate") + cusim_calls("cuMemUnmap"); };
  std::uint64_t for_large = 0;
  const auto step = [&](std::size_t large, std::size_t small) {
    std::vector<CUdeviceptr> blocks;
    const std::uint64_t at_begin = calls();
    for (std::size_t i = 0; i < large; ++i) blocks.push_back(rig.allocate(256 * kMiB));
    for_large = calls() - at_begin;
    free_all(rig, blocks);  // the end of the second one brings what waits in each
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    rig.pools().after_wait(rig.context());
    const std::uint64_t before = calls();
    blocks.clear();
    for (std::size_t i = 0; i < small; ++i) blocks.push_back(rig.allocate(8 * kMiB));
    free_all(rig, blocks);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    rig.pools().after_wait(rig.context());
    return calls() - before;
  };
  CHECK(step(80, 1024) > 0);  // they have addresses of their own
  CHECK(step(81, 64) == 0);
  CHECK(step(81, 1400) == 0);  // not known to repeat itself: it has not done twice what it did until its peak
  CHECK(for_large == 0);
  const std::uint64_t before = calls();
  CHECK(step(81, 1400) == 0);
  CHECK(calls() == before);
}
