// Handles that are larger than what a block needs of them: released, and created again in pieces, so that nothing which is free stays behind.
#include <catch2/catch.hpp>

#include <algorithm>
#include <cmath>
#include <random>
#include <tuple>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kPage_bytes = 2 * kMiB;

RigOptions pages_of(const char* memory, const char* preallocated = nullptr, const char* limit = nullptr) {
  RigOptions options = device_of(memory);
  options.pool.backing = config::Backing::pages;
  if (preallocated != nullptr) options.pool.policy = config::Policy::preallocate;
  if (preallocated != nullptr) options.pool.preallocate = config::parse_amount(preallocated);
  if (limit != nullptr) options.pool.limit.all = config::parse_amount(limit);
  return options;
}

std::uint64_t page_calls() {
  std::uint64_t calls = 0;
  for (const char* const symbol : {"cuMemCreate", "cuMemRelease", "cuMemMap", "cuMemUnmap", "cuMemSetAccess"}) calls += cusim_calls(symbol);
  return calls;
}

std::uint64_t handles_of(Rig& rig, std::uint64_t bytes) {
  const observe::Snapshot snapshot = rig.snapshot();
  for (const observe::HandleTier& tier : snapshot.devices.at(0).pages.tiers)
    if (tier.handle_bytes == bytes) return tier.handles;
  return 0;
}

/// Asks for other sizes often enough for the pool to know that the program does not only ask for whole pages.
void ask_for_small_ones(Rig& rig) {
  for (std::size_t i = 1; i <= 400; ++i) rig.free(rig.allocate(i * 512));
}

/// Most of it in handles of 4 MiB, and nothing else to be had; of the first half every other block of 40 MiB is free.
struct Checkered {
  explicit Checkered(const char* preallocated = "3900MiB", const char* limit = "3900MiB") : rig(pages_of("16GiB", preallocated, limit)) {
    ask_for_small_ones(rig);
    for (Result<CUdeviceptr> block = rig.try_allocate(40 * kMiB); block.ok(); block = rig.try_allocate(40 * kMiB)) blocks.push_back(block.value());
    while (rig.try_allocate(kPage_bytes).ok()) {  // what is left, in smaller handles
    }
    for (std::size_t i = 0; i < blocks.size() / 2; i += 2) rig.free(blocks[i]);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    rig.pools().after_wait(rig.context());
  }
  bool books_agree() { return now(rig.counters().reserved_bytes) == cusim_used_bytes(0) && rig.pools().check().empty(); }
  Rig rig;
  std::vector<CUdeviceptr> blocks;
};

}  // namespace

TEST_CASE("cracking: of the last handle that is moved a block takes what it needs, and the rest moves for others") {
  Checkered checkered;
  const std::uint64_t large_handles = handles_of(checkered.rig, 4 * kMiB);
  const std::uint64_t released = now(checkered.rig.counters().handles_released);
  checkered.rig.allocate(82 * kMiB);
  const std::uint64_t cracked = now(checkered.rig.counters().handles_released) - released;
  CHECK(cracked == 1);
  CHECK(handles_of(checkered.rig, 4 * kMiB) == large_handles - cracked);
  CHECK(now(checkered.rig.counters().reserved_bytes) == 3900 * kMiB);
  CHECK(checkered.books_agree());
}

TEST_CASE("cracking: nothing is cracked where handles fit") {
  Checkered checkered;
  const std::uint64_t released = now(checkered.rig.counters().handles_released);
  checkered.rig.allocate(80 * kMiB);
  CHECK(now(checkered.rig.counters().handles_released) == released);
  CHECK(checkered.books_agree());
}

TEST_CASE("cracking: where the driver refuses to release, the handle is used whole") {
  Checkered checkered;
  cusim_fail("cuMemRelease", 1, CUDA_ERROR_UNKNOWN, 1);
  checkered.rig.allocate(82 * kMiB);
  CHECK(now(checkered.rig.counters().handles_released) == 0);
  CHECK(now(checkered.rig.counters().reserved_bytes) == 3900 * kMiB);
  CHECK(checkered.books_agree());
}

TEST_CASE("cracking: where the pieces are refused the books and the driver's agree, and the next one has its block") {
  const CUresult code = GENERATE(CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN);
  const std::uint64_t times = GENERATE(1U, 3U, 8U);
  CAPTURE(code, times);
  Checkered checkered;
  cusim_fail("cuMemCreate", 1, code, times);
  const Result<CUdeviceptr> block = checkered.rig.try_allocate(82 * kMiB);
  CHECK((block.ok() || block.code() == CUDA_ERROR_OUT_OF_MEMORY));
  CHECK(checkered.books_agree());
  CHECK(checkered.rig.try_allocate(82 * kMiB).ok());
  CHECK(checkered.books_agree());
}

TEST_CASE("cracking: where the driver has room the pieces come first, and a refusal costs nothing") {
  Checkered checkered;
  REQUIRE(checkered.rig.pools().trim(0, now(checkered.rig.counters().reserved_bytes) - 8 * kMiB) == 8 * kMiB);
  cusim_fail("cuMemRelease", 1, CUDA_ERROR_UNKNOWN, 1);
  const std::uint64_t created = cusim_calls("cuMemCreate");
  checkered.rig.allocate(82 * kMiB);
  CHECK(cusim_calls("cuMemCreate") == created + 2);
  CHECK(checkered.books_agree());
}

TEST_CASE("cracking: a program that asks for whole pages is refused nothing that is free, preallocated or not") {
  using Row = std::tuple<const char*, const char*, unsigned, double>;
  const auto [memory, preallocated, percent, most_mib] = GENERATE(table<const char*, const char*, unsigned, double>(
      {Row{"16GiB", "75%", 97, 64}, Row{"80GiB", "75%", 97, 256}, Row{"80GiB", nullptr, 97, 256}, Row{"16GiB", nullptr, 97, 64}}));
  CAPTURE(memory, percent, most_mib);
  Rig rig(pages_of(memory, preallocated));
  std::mt19937_64 random(1);
  const std::uint64_t most_bytes = config::parse_amount(memory)->resolve(0) / 100 * percent;
  std::vector<std::pair<CUdeviceptr, std::uint64_t>> live;
  std::uint64_t live_bytes = 0;
  for (int i = 0; i < 6000; ++i) {
    const double share = std::uniform_real_distribution<>(0, 1)(random);
    const std::uint64_t bytes = std::max<std::uint64_t>(static_cast<std::uint64_t>(std::pow(most_mib / 2, share)), 1) * kPage_bytes;
    while (live_bytes + bytes > most_bytes) {
      std::swap(live[random() % live.size()], live.back());
      rig.free(live.back().first);
      live_bytes -= live.back().second;
      live.pop_back();
    }
    live.emplace_back(rig.allocate(bytes), bytes);
    live_bytes += bytes;
  }
  CHECK(rig.pools().check().empty());
}

TEST_CASE("cracking: of preallocated memory half of which was freed a block at a time, seven eighths are to be had in one piece") {
  Rig rig(pages_of("16GiB", "75%"));
  std::vector<CUdeviceptr> blocks;
  for (Result<CUdeviceptr> block = rig.try_allocate(4 * kMiB); block.ok(); block = rig.try_allocate(4 * kMiB)) blocks.push_back(block.value());
  for (std::size_t i = 0; i < blocks.size(); i += 2) rig.free(blocks[i]);
  rig.allocate(blocks.size() / 2 * 4 * kMiB / 8 * 7 - 64 * kMiB);
}

TEST_CASE("cracking: as long as a program needs less than an eighth of everything its preallocated memory costs no call") {
  Rig rig(pages_of("16GiB", "75%"));
  rig.allocate(512);
  const std::uint64_t calls = page_calls();
  for (std::uint64_t bytes = 0; bytes + 20 * kMiB < 2 * kGiB; bytes += 20 * kMiB) rig.allocate(20 * kMiB);
  CHECK(page_calls() == calls);
}

TEST_CASE("cracking: a program that asks for other sizes, too, has what it preallocated without a call") {
  Rig rig(pages_of("16GiB", "75%"));
  ask_for_small_ones(rig);
  const std::uint64_t calls = page_calls();
  for (std::uint64_t bytes = 0; bytes < 10 * kGiB; bytes += 20 * kMiB) rig.allocate(20 * kMiB);
  CHECK(page_calls() == calls);
}

TEST_CASE("cracking: each handle is cracked once, and a step that repeats itself calls nothing") {
  Rig rig(pages_of("16GiB", "75%"));
  const auto step = [&] {
    std::vector<CUdeviceptr> blocks;
    for (std::uint64_t bytes = 0; bytes < 8 * kGiB; bytes += 26 * kMiB) {
      blocks.push_back(rig.allocate(20 * kMiB));
      blocks.push_back(rig.allocate(6 * kMiB));
    }
    for (const CUdeviceptr block : blocks) rig.free(block);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    rig.pools().after_wait(rig.context());
  };
  const std::uint64_t first_calls = page_calls();
  for (int i = 0; i < 2; ++i) step();
  const std::uint64_t calls = page_calls();
  CHECK(calls > first_calls + 1000);
  for (int i = 0; i < 3; ++i) step();
  CHECK(page_calls() == calls);
}

TEST_CASE("cracking: short steps of whole pages become quiet where the device has much more than they need") {
  using Row = std::tuple<const char*, int, double, unsigned>;
  const auto [memory, count, most_pages, seed] = GENERATE(table<const char*, int, double, unsigned>(
      {Row{"8GiB", 300, 256, 1}, Row{"8GiB", 300, 256, 2}, Row{"8GiB", 300, 256, 3}, Row{"8GiB", 300, 256, 4}, Row{"6GiB", 100, 512, 1},
       Row{"6GiB", 100, 512, 2}, Row{"8GiB", 450, 512, 2}}));
  CAPTURE(memory, count, most_pages, seed);
  Rig rig(pages_of(memory));
  const auto step = [&rig, blocks = count, most = most_pages, start = seed] {
    std::mt19937_64 random(start);
    std::vector<std::pair<CUdeviceptr, std::uint64_t>> live;
    std::uint64_t live_bytes = 0;
    const auto free_one = [&](std::size_t at) {
      std::swap(live[at], live.back());
      rig.free(live.back().first);
      live_bytes -= live.back().second;
      live.pop_back();
    };
    for (int i = 0; i < blocks; ++i) {
      const double share = std::uniform_real_distribution<>(0, 1)(random);
      const std::uint64_t bytes = std::max<std::uint64_t>(static_cast<std::uint64_t>(std::pow(most, share)), 1) * kPage_bytes;
      while (live_bytes + bytes > 4 * kGiB) free_one(random() % live.size());
      live.emplace_back(rig.allocate(bytes), bytes);
      live_bytes += bytes;
    }
    while (!live.empty()) free_one(live.size() - 1);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    rig.pools().after_wait(rig.context());
  };
  for (int i = 0; i < 5; ++i) step();
  const std::uint64_t calls = page_calls();
  for (int i = 0; i < 5; ++i) step();
  CHECK(page_calls() == calls);
}

TEST_CASE("cracking: while something captures a hole is taken as it is") {
  Rig rig(pages_of("16GiB", "75%"));
  for (std::uint64_t bytes = 0; bytes < 4 * kGiB; bytes += 16 * kMiB) rig.allocate(16 * kMiB);
  const CUstream stream = new_stream();
  REQUIRE(rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }) == CUDA_SUCCESS);
  const std::uint64_t calls = page_calls();
  rig.allocate(36 * kMiB);
  CHECK(page_calls() == calls);
  CUgraph graph = nullptr;
  REQUIRE(rig.pools().end_capture(
              stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
  rig.allocate(36 * kMiB);
  CHECK(page_calls() > calls);
}

TEST_CASE("cracking: whatever the driver refuses meanwhile, a block that has a hole has it") {
  const auto [symbol, code] = GENERATE(table<const char*, CUresult>({{"cuMemUnmap", CUDA_ERROR_UNKNOWN},
                                                                     {"cuMemRelease", CUDA_ERROR_UNKNOWN},
                                                                     {"cuMemCreate", CUDA_ERROR_UNKNOWN},
                                                                     {"cuMemCreate", CUDA_ERROR_OUT_OF_MEMORY},
                                                                     {"cuMemAddressReserve", CUDA_ERROR_OUT_OF_MEMORY},
                                                                     {"cuMemMap", CUDA_ERROR_UNKNOWN},
                                                                     {"cuMemSetAccess", CUDA_ERROR_UNKNOWN}}));
  CAPTURE(symbol, code);
  Rig rig(pages_of("16GiB", "75%"));
  for (std::uint64_t bytes = 0; bytes < 4 * kGiB; bytes += 16 * kMiB) rig.allocate(16 * kMiB);
  const std::uint64_t calls = cusim_calls(symbol);
  cusim_fail(symbol, 1, code, 64);
  rig.allocate(36 * kMiB);
  CHECK((cusim_calls(symbol) > calls || symbol == std::string("cuMemAddressReserve")));
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
  CHECK(rig.pools().check().empty());
}

TEST_CASE("cracking: a handle that cannot move is used as it is") {
  Rig rig(pages_of("16GiB", "75%"));
  for (std::uint64_t bytes = 0; bytes < 4 * kGiB; bytes += 16 * kMiB) rig.allocate(16 * kMiB);
  std::vector<CUdeviceptr> pins;
  for (int i = 0; i < 16; ++i) pins.push_back(rig.allocate(128 * kMiB));
  for (const CUdeviceptr pin : pins) rig.pools().pin_pages(pin);
  for (const CUdeviceptr pin : pins) rig.free(pin);
  const std::uint64_t calls = page_calls();
  for (int i = 0; i < 16; ++i) rig.allocate(36 * kMiB);
  CHECK(page_calls() == calls);
}

TEST_CASE("cracking: an error of earlier work that it meets is the program's") {
  const char* symbol = GENERATE("cuMemUnmap", "cuMemMap", "cuMemSetAccess");
  Rig rig(pages_of("16GiB", "75%"));
  for (std::uint64_t bytes = 0; bytes < 4 * kGiB; bytes += 16 * kMiB) rig.allocate(16 * kMiB);
  cusim_fail(symbol, 1, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
  CHECK(rig.try_allocate(36 * kMiB).code() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.pools().take_untold_oom() == 0);
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
  CHECK(rig.pools().check().empty());
}
