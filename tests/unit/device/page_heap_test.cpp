// The page heap over the simulated driver: memory moves, blocks do not, and nothing is lost when the driver refuses.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

RigOptions pages(const char* memory) {
  RigOptions options;
  options.memory = memory;
  options.pool.backing = config::Backing::pages;
  return options;
}

RigOptions pages_with_limit(const char* limit) {
  RigOptions options = pages("1GiB");
  options.pool.limit.all = config::parse_amount(limit);
  return options;
}

/// Fills a limit of 64 MiB with blocks of 4 MiB, and frees every other one: half is free, and no two neighbours are.
std::vector<CUdeviceptr> checkered(Rig& rig) {
  std::vector<CUdeviceptr> kept;
  std::vector<CUdeviceptr> going;
  for (int i = 0; i < 16; ++i) (i % 2 == 0 ? kept : going).push_back(rig.allocate(4 * kMiB));
  for (const CUdeviceptr address : going) rig.free(address);
  return kept;
}

}  // namespace

TEST_CASE("pages: memory in pieces is gathered for a block that no hole has, and live bytes stay") {
  Rig rig(pages_with_limit("64MiB"));
  const std::vector<CUdeviceptr> kept = checkered(rig);
  for (std::size_t i = 0; i < kept.size(); ++i) REQUIRE(cuMemsetD8_v2(kept[i], static_cast<unsigned char>(i + 1), 4 * kMiB) == CUDA_SUCCESS);
  const CUdeviceptr large = rig.allocate(28 * kMiB);
  REQUIRE(cuMemsetD8_v2(large, 0xee, 28 * kMiB) == CUDA_SUCCESS);
  CHECK(now(rig.counters().rung_remap) + now(rig.counters().rung_poll) == 1);
  CHECK(now(rig.counters().remaps) >= 1);
  CHECK(now(rig.counters().moved_bytes) >= 20 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) <= 64 * kMiB);
  std::vector<unsigned char> bytes(4 * kMiB);
  for (std::size_t i = 0; i < kept.size(); ++i) {
    REQUIRE(cuMemcpyDtoH_v2(bytes.data(), kept[i], bytes.size()) == CUDA_SUCCESS);
    CHECK((bytes == std::vector<unsigned char>(bytes.size(), static_cast<unsigned char>(i + 1))));
  }
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: what waits for the GPU is not moved before its work is over") {
  Rig rig(pages_with_limit("64MiB"));
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(rig.allocate(4 * kMiB));
  REQUIRE(cusim_launch_fill(stream, blocks[1], 4 * kMiB, 7, 5 * kMs) == CUDA_SUCCESS);  // the driver complains when its page goes
  const std::uint64_t began_ns = cusim_now_ns();
  for (std::size_t i = 1; i < blocks.size(); i += 2) rig.free(blocks[i]);  // the last of them wait already: memory is short
  rig.allocate(20 * kMiB);
  CHECK(cusim_now_ns() - began_ns >= 4 * kMs);
  CHECK(now(rig.counters().remaps) >= 1);
}

TEST_CASE("pages: an address whose page was taken is not bound again") {
  Rig rig(pages_with_limit("64MiB"));
  const std::vector<CUdeviceptr> kept = checkered(rig);
  const CUdeviceptr large = rig.allocate(28 * kMiB);
  for (const CUdeviceptr address : kept) CHECK((large + 28 * kMiB <= address || address + 4 * kMiB <= large));
  CHECK(now(rig.counters().quarantined_bytes) >= 20 * kMiB);
  BlockView block;
  CHECK(rig.pools().find(kept[0] + 4 * kMiB, &block) == Ownership::vacant);
}

TEST_CASE("pages: pinned ones keep their place, also after the free, as long as others will do") {
  Rig rig(pages_with_limit("64MiB"));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(rig.allocate(4 * kMiB));
  std::vector<CUdeviceptr> pinned;
  for (std::size_t i = 1; i < blocks.size(); i += 2) {
    if (i % 4 == 1) rig.pools().pin_pages(blocks[i]);
    if (i % 4 == 1) pinned.push_back(blocks[i]);
    rig.free(blocks[i]);
  }
  const CUdeviceptr first = rig.allocate(12 * kMiB);  // of the 16 MiB that are not
  CHECK(now(rig.counters().remaps) == 1);
  for (int i = 0; i < 5; ++i) blocks.push_back(rig.allocate(4 * kMiB));  // where they are: the pinned ones, and what is left
  CHECK(now(rig.counters().remaps) == 1);
  for (const CUdeviceptr address : pinned) CHECK(rig.pools().find(address, nullptr) == Ownership::live);
  for (std::size_t i = blocks.size() - 5; i < blocks.size(); ++i) rig.free(blocks[i]);
  rig.free(first);
  const CUdeviceptr all = rig.allocate(32 * kMiB);  // all that is free
  CHECK(now(rig.counters().remaps) == 2);
  CHECK(now(rig.counters().reserved_bytes) == 64 * kMiB);
  for (const CUdeviceptr address : pinned) CHECK(rig.pools().find(address, nullptr) != Ownership::live);
  CHECK(rig.pools().check() == "");
  rig.free(all);
}

TEST_CASE("pages: what was pinned is the driver's again when that is short of memory") {
  Rig rig(pages("64MiB"));
  const CUdeviceptr block = rig.allocate(56 * kMiB);
  rig.pools().pin_pages(block);
  rig.free(block);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  REQUIRE(free_bytes < 16 * kMiB);
  rig.pools().trim(0, 0);
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  CHECK(free_bytes == 64 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: the pool takes what it needs and no more than its handles") {
  Rig rig(pages("1GiB"));
  rig.allocate(100 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) <= 104 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
  CHECK(now(rig.counters().mapped_bytes) == now(rig.counters().reserved_bytes));
}

TEST_CASE("pages: while memory is plenty growths come ahead, by an eighth of what there is at most") {
  RigOptions options = pages("1GiB");
  const bool gives_back = GENERATE(false, true);
  if (gives_back) options.pool.release_threshold_bytes = kMiB * 1024;
  Rig rig(options);
  for (int i = 0; i < 100; ++i) {
    rig.allocate(2 * kMiB);
    const std::uint64_t live_bytes = now(rig.counters().live_bytes);
    REQUIRE(now(rig.counters().reserved_bytes) <= live_bytes + live_bytes / 8 + 4 * kMiB);  // a handle reaches as far
  }
  CHECK(now(rig.counters().rung_grow) == cusim_calls("cuMemSetAccess"));
  if (gives_back) CHECK(now(rig.counters().rung_grow) > 50);
  else CHECK(now(rig.counters().rung_grow) < 40);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: what a growth wants ahead is no reason to refuse what is needed") {
  Rig rig(pages("1GiB"));
  rig.allocate(128 * kMiB);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  const std::uint64_t grown = now(rig.counters().rung_grow);
  CUdeviceptr others = 0;
  REQUIRE(cuMemAlloc_v2(&others, free_bytes - 6 * kMiB) == CUDA_SUCCESS);  // as another process: the pool is not told
  rig.allocate(3 * kMiB);
  rig.allocate(2 * kMiB + 512 * kKiB);
  CHECK(now(rig.counters().rung_grow) > grown);
  CHECK(now(rig.counters().rung_remap) == 0);
  CHECK(now(rig.counters().failed_allocations) == 0);
  CHECK(now(rig.counters().native_fallbacks) == 0);
  CHECK(rig.pools().check() == "");
  REQUIRE(cuMemFree_v2(others) == CUDA_SUCCESS);
}

TEST_CASE("pages: preallocating takes few calls and leaves nothing behind at the context's end") {
  RigOptions options = pages("141GiB");
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("105GiB");
  Rig rig(options);
  rig.allocate(512);
  CHECK(now(rig.counters().reserved_bytes) >= 105 * kGiB);
  CHECK(now(rig.counters().reserved_bytes) <= 105 * kGiB + 256 * kMiB);
  CHECK(now(rig.counters().vmm_calls) <= 1000);
  rig.reset_device();
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(now(rig.counters().reserved_bytes) == 0);
}

TEST_CASE("pages: empty ones go back, a page at a time") {
  RigOptions options = pages("1GiB");
  options.pool.release_threshold_bytes = 16 * kMiB;
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(rig.allocate(8 * kMiB));
  const std::uint64_t most_bytes = cusim_used_bytes(0);
  for (std::size_t i = 0; i < blocks.size(); i += 2) rig.free(blocks[i]);
  for (int i = 0; i < 256; ++i) rig.free(rig.allocate(512));
  CHECK(cusim_used_bytes(0) <= most_bytes - 100 * kMiB);
  CHECK(rig.pools().check() == "");
  rig.pools().trim();
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
}

TEST_CASE("pages: every refusal of the driver leaves the books and the driver's in agreement") {
  const char* symbol = GENERATE("cuMemAddressReserve", "cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemGetInfo_v2");
  const CUresult code = GENERATE(CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN, CUDA_ERROR_NOT_SUPPORTED);
  const unsigned nth = GENERATE(1U, 6U);
  CAPTURE(symbol, code, nth);
  Rig rig(pages_with_limit("64MiB"));
  cusim_fail(symbol, nth, code, 3);
  std::map<CUdeviceptr, std::size_t> live;
  std::mt19937 random(nth);
  for (int step = 0; step < 120; ++step) {
    const std::size_t bytes = 512 + random() % (9 * kMiB);
    if (random() % 5 < 3) {
      const Result<CUdeviceptr> block = rig.try_allocate(bytes);
      if (block.ok()) live[block.value()] = bytes;
      else CHECK(block.code() == CUDA_ERROR_OUT_OF_MEMORY);
    } else if (!live.empty()) {
      const auto victim = std::next(live.begin(), static_cast<std::ptrdiff_t>(random() % live.size()));
      rig.free(victim->first);
      live.erase(victim);
    }
    REQUIRE(rig.pools().check() == "");
  }
  for (const auto& [address, bytes] : live) CHECK(cuMemsetD8_v2(address, 1, bytes) == CUDA_SUCCESS);
  for (const auto& block : live) rig.free(block.first);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.allocate(512);
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
}

TEST_CASE("pages: random blocks on streams at every pressure: no byte has two owners") {
  const char* limit = GENERATE("8MiB", "9MiB");
  const unsigned seed = GENERATE(3U, 5U);
  CAPTURE(limit, seed);
  Rig rig(pages_with_limit(limit));
  std::mt19937 random(seed);
  std::vector<CUstream> streams(3);
  for (CUstream& stream : streams) REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  struct Block {
    CUdeviceptr address;
    std::size_t bytes;
    CUstream stream;
    unsigned char value;
  };
  std::vector<Block> live;
  unsigned char value = 0;
  for (int step = 0; step < 400; ++step) {
    if (random() % 2 == 0) {
      const std::size_t bytes = random() % 4 == 0 ? 1 + random() % (5 * kMiB) : 1 + random() % (96 * kKiB);
      const Result<CUdeviceptr> block = rig.try_allocate(bytes);
      if (!block.ok()) continue;
      const CUstream stream = streams[random() % streams.size()];
      live.push_back({block.value(), bytes, stream, ++value});
      REQUIRE(cusim_launch_fill(stream, block.value(), bytes, value, 1000 + random() % kMs) == CUDA_SUCCESS);
    } else if (!live.empty()) {
      std::swap(live[random() % live.size()], live.back());
      const Block block = live.back();
      live.pop_back();
      REQUIRE(cusim_launch_check(block.stream, block.address, block.bytes, block.value, random() % kMs) == CUDA_SUCCESS);
      rig.free(block.address);
    }
    if (random() % 64 == 0) cusim_advance_ns(random() % (3 * kMs));
    if (step % 100 == 0) REQUIRE(rig.pools().check() == "");
  }
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(now(rig.counters().remaps) > 0);
  CHECK(cusim_mismatched_bytes() == 0);
}

TEST_CASE("pages: repeated steps make no call of the driver's from the third on") {
  Rig rig(pages_with_limit("200MiB"));
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::uint64_t calls = 0;
  for (int step = 0; step < 8; ++step) {
    std::mt19937 random(11);
    if (step == 3) calls = memory_and_sync_calls();
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 30; ++i) {
      blocks.push_back(rig.allocate(1 + random() % (8 * kMiB)));
      if (i % 3 == 2) {
        rig.free(blocks[blocks.size() - 2]);
        blocks.erase(blocks.end() - 2);
      }
    }
    for (const CUdeviceptr block : blocks) rig.free(block);
  }
  CHECK(memory_and_sync_calls() == calls);
}

TEST_CASE("pages: what the driver will not take back stays the pool's, whatever it says") {
  const CUresult code = GENERATE(CUDA_ERROR_NOT_READY, CUDA_ERROR_UNKNOWN);
  Rig rig(pages("64MiB"));
  rig.free(rig.allocate(16 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  cusim_fail("cuMemRelease", 2, code, 3);
  rig.pools().trim();
  CHECK(rig.pools().check() == "");
  CHECK(now(rig.counters().reserved_bytes) == 6 * kMiB);
  CHECK(cusim_used_bytes(0) == 6 * kMiB);
  rig.allocate(60 * kMiB);  // and serves again
  CHECK(cusim_used_bytes(0) <= 64 * kMiB);
}

TEST_CASE("pages: what the driver will not unmap stays where it is, and is not released") {
  Rig rig(pages("64MiB"));
  rig.free(rig.allocate(16 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const std::uint64_t held_bytes = cusim_used_bytes(0);
  cusim_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, 100);
  rig.pools().trim();
  CHECK(cusim_calls("cuMemRelease") == 0);
  CHECK(cusim_used_bytes(0) == held_bytes);
  CHECK(now(rig.counters().reserved_bytes) == held_bytes);
  CHECK(now(rig.counters().mapped_bytes) == held_bytes);
  CHECK(rig.pools().check() == "");
  rig.free(rig.allocate(16 * kMiB));  // and serves again
  CHECK(cusim_used_bytes(0) == held_bytes);
}

TEST_CASE("pages: what the driver neither opens nor unmaps is told, counts until its context ends, and is served to nobody") {
  Rig rig(pages_with_limit("64MiB"));
  const CUdeviceptr before = rig.allocate(4 * kMiB);
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  static_cast<void>(rig.pools().take_messages());
  cusim_fail("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN, 1);
  cusim_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, 3);
  rig.allocate(8 * kMiB);  // elsewhere
  const std::vector<Message> told = rig.pools().take_messages();
  REQUIRE(told.size() == 1);
  CAPTURE(told[0].text);
  CHECK(told[0].text.find("neither opened nor unmapped 8.00 MiB of pages") != std::string::npos);
  CHECK(now(rig.counters().reserved_bytes) >= reserved_bytes + 8 * kMiB);
  CHECK(rig.pools().check() == "");
  const CUdeviceptr after = rig.allocate(8 * kMiB);
  REQUIRE(cuMemsetD8_v2(after, 1, 8 * kMiB) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(before, 1, 4 * kMiB) == CUDA_SUCCESS);
  rig.reset_device();
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(now(rig.counters().reserved_bytes) == 0);
}

TEST_CASE("pages: what a dead context left behind is asked for again when the driver refuses once or twice") {
  const char* symbol = GENERATE("cuMemUnmap", "cuMemRelease", "cuMemAddressFree");
  const unsigned nth = GENERATE(1U, 3U);
  CAPTURE(symbol, nth);
  Rig rig(pages("64MiB"));
  rig.allocate(16 * kMiB);
  cusim_fail(symbol, nth, CUDA_ERROR_UNKNOWN, 2);
  rig.reset_device();
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(now(rig.counters().reserved_bytes) == 0);
}

TEST_CASE("pages: what a dead context left behind goes by runs, and a run that the driver refuses by handles") {
  const unsigned refusals = GENERATE(0U, 3U, 5U);
  CAPTURE(refusals);
  Rig rig(pages("64MiB"));
  rig.allocate(16 * kMiB);
  REQUIRE(now(rig.counters().handles_created) == 8);
  const std::uint64_t unmaps = cusim_calls("cuMemUnmap");
  if (refusals != 0) cusim_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, refusals);
  rig.reset_device();
  CHECK(cusim_calls("cuMemUnmap") - unmaps == (refusals == 0 ? 1 : refusals + 8));
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("what one context's streams have freed behind events of their own serves another context") {
  const config::Backing backing = GENERATE(config::Backing::pages, config::Backing::segments);
  RigOptions options = pages_with_limit("32MiB");
  options.pool.backing = backing;
  Rig rig(options);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  CUstream another = nullptr;
  REQUIRE(cuStreamCreate(&another, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const auto name_of = [](CUstream one) { return StreamName{one, reinterpret_cast<std::uintptr_t>(one)}; };
  const auto take = [&](CUstream on, std::size_t bytes) { return rig.pools().allocate_on(rig.context(), bytes, name_of(on), 1, "cuMemAllocAsync"); };
  REQUIRE(rig.pools().free_on(take(another, 512).value(), rig.context(), name_of(another)).outcome == FreeOutcome::freed);
  CHECK(take(stream, 40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);  // memory is short from now on: frees carry events
  const Result<CUdeviceptr> block = take(stream, 20 * kMiB);
  REQUIRE(block.ok());
  REQUIRE(cusim_launch_fill(stream, block.value(), 512, 1, kMs) == CUDA_SUCCESS);
  REQUIRE(rig.pools().free_on(block.value(), rig.context(), name_of(stream)).outcome == FreeOutcome::freed);
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  rig.pools().context_seen(second, 0);
  CHECK(rig.try_allocate(24 * kMiB).code() == CUDA_SUCCESS);
}

TEST_CASE("pages: a block of the driver's own that a stream freed makes room when it is needed") {
  Rig rig(pages_with_limit("33MiB"));
  rig.allocate(22 * kMiB);
  const CUdeviceptr odd = rig.allocate(10 * kMiB + 512 * kKiB);  // only as a block of its own: the limit ends within a page
  BlockView view;
  REQUIRE(rig.pools().find(odd, &view) == Ownership::live);
  REQUIRE(view.is_native);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(stream, kMs) == CUDA_SUCCESS);
  REQUIRE(rig.pools().free_on(odd, rig.context(), {stream, 1}).outcome == FreeOutcome::freed);
  CHECK(rig.try_allocate(8 * kMiB).code() == CUDA_SUCCESS);
}
