// Under a limit: what pools of the driver's keep idle, as held, and as what serves. pool/device/driver_served.cpp, idle_pools.cpp.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <functional>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
RigOptions under(config::Policy policy, const char* limit) {
  RigOptions options;
  options.pool.policy = policy;
  options.pool.limit.all = config::parse_amount(limit);
  return options;
}

/// The program's calls on one stream, as the shim passes them. `pool` null: the device's own.
struct Program {
  Rig& rig;
  CUstream stream = nullptr;
  CUmemoryPool pool = nullptr;
  CUresult fails_with = CUDA_SUCCESS;  ///< what the driver says instead of serving
  bool yields = false;                 ///< other threads come between the driver's call and what follows

  CUresult allocate(CUdeviceptr* out, std::size_t bytes) {
    DriverServed request{0, rig.context(), true, pool == nullptr, 7, bytes, "cuMemAllocAsync"};
    request.handle = stream;
    request.mempool = [this] { return pool; };
    const auto call = [&] {
      if (fails_with != CUDA_SUCCESS) return fails_with;
      const CUresult code = pool != nullptr ? cuMemAllocFromPoolAsync(out, bytes, pool, stream) : cuMemAllocAsync(out, bytes, stream);
      if (yields) std::this_thread::yield();
      return code;
    };
    return rig.pools().allocate_by_driver(request, out, std::cref(call), {});
  }
  std::optional<CUresult> free(CUdeviceptr address) {
    const auto call = [&] { return cuMemFreeAsync(address, stream); };
    return rig.pools().free_by_driver(address, 7, std::cref(call));
  }
};

constexpr std::size_t kBlock_bytes = 2 * kMiB;

/// Pools of the driver grow by 32 MiB, which their blocks divide, as on an H100.
struct Steps {
  Steps() { cusim_configure("POOL_STEP", "32MiB"); }  // read by the Rig's reset
  ~Steps() { cusim_configure("POOL_STEP", nullptr); }
};

/// One of several threads, with at most eight blocks at once.
void take_and_give(Rig& rig, unsigned seed, std::atomic<std::uint64_t>& failures) {
  cuCtxSetCurrent(rig.context());
  Program program{rig};
  cuStreamCreate(&program.stream, CU_STREAM_NON_BLOCKING);
  std::vector<CUdeviceptr> blocks;
  std::mt19937 random(seed);
  for (int step = 0; step < 600; ++step) {
    if (blocks.size() < 8 && random() % 2 == 0) {
      blocks.emplace_back();
      if (program.allocate(&blocks.back(), kBlock_bytes) == CUDA_SUCCESS) continue;
      failures.fetch_add(1);
      blocks.pop_back();
    } else if (!blocks.empty()) {
      if (program.free(blocks.back()) != CUDA_SUCCESS) failures.fetch_add(1);
      blocks.pop_back();
    }
  }
}
}  // namespace

TEST_CASE("async: under a limit idle memory of the driver's pool serves, and what it cannot serve passes the limit for nobody") {
  Rig rig(under(config::Policy::async, "64MiB"));
  Program program{rig};
  std::vector<CUdeviceptr> blocks(32);
  const auto free_every_other = [&] {
    for (std::size_t i = 0; i < blocks.size(); i += 2) REQUIRE(program.free(blocks[i]) == CUDA_SUCCESS);
  };
  for (CUdeviceptr& block : blocks) REQUIRE(program.allocate(&block, kBlock_bytes) == CUDA_SUCCESS);
  CUdeviceptr other = 0;
  CHECK(program.allocate(&other, 512) == CUDA_ERROR_OUT_OF_MEMORY);
  free_every_other();
  CHECK(now(rig.counters().reserved_bytes) == 64 * kMiB);
  const std::uint64_t trims = cusim_calls("cuMemPoolTrimTo");
  for (std::size_t i = 0; i < blocks.size(); i += 2) REQUIRE(program.allocate(&blocks[i], kBlock_bytes) == CUDA_SUCCESS);
  CHECK(cusim_calls("cuMemPoolTrimTo") == trims);
  free_every_other();
  REQUIRE(program.allocate(&other, 16 * kMiB) == CUDA_SUCCESS);  // not in one piece there: what goes back makes room
  CHECK(program.allocate(&other, 32 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(now(rig.counters().live_bytes) == 48 * kMiB);
  CHECK(cusim_used_bytes(0) <= 64 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a call that idle memory was to serve and that the driver refuses costs nothing") {
  const bool is_named = GENERATE(false, true);
  Rig rig(under(is_named ? config::Policy::platform : config::Policy::async, "64MiB"));
  Program program{rig};
  if (is_named) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    REQUIRE(cuMemPoolCreate(&program.pool, &properties) == CUDA_SUCCESS);
    std::uint64_t kept_bytes = UINT64_MAX;
    REQUIRE(cuMemPoolSetAttribute(program.pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept_bytes) == CUDA_SUCCESS);
    rig.pools().mempool_made(0, program.pool);
  }
  CUdeviceptr block = 0;
  REQUIRE(program.allocate(&block, 40 * kMiB) == CUDA_SUCCESS);
  REQUIRE(program.free(block) == CUDA_SUCCESS);
  program.fails_with = CUDA_ERROR_INVALID_VALUE;
  for (int i = 0; i < 3; ++i) {
    CHECK(program.allocate(&block, 40 * kMiB) == CUDA_ERROR_INVALID_VALUE);
    CHECK(rig.pools().check() == "");
  }
  program.fails_with = CUDA_SUCCESS;
  const std::uint64_t trims = cusim_calls("cuMemPoolTrimTo");
  CUdeviceptr other = 0;
  REQUIRE(program.allocate(&block, 40 * kMiB) == CUDA_SUCCESS);
  REQUIRE(program.allocate(&other, 24 * kMiB) == CUDA_SUCCESS);
  CHECK(cusim_calls("cuMemPoolTrimTo") == trims);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("async: what the driver took beyond the limit and has not back yet serves nobody, and then everybody; what lay idle before serves") {
  Rig rig(under(config::Policy::async, "64MiB"));
  Program first{rig, new_stream()};
  Program second{rig, new_stream()};
  CUdeviceptr block = 0;
  REQUIRE(first.allocate(&block, 40 * kMiB) == CUDA_SUCCESS);
  volatile std::uint32_t released = 0;
  for (const Program* program : {&first, &second}) REQUIRE(cusim_launch_wait_host(program->stream, &released) == CUDA_SUCCESS);
  REQUIRE(first.free(block) == CUDA_SUCCESS);  // idle, and of no use to another stream
  CHECK(second.allocate(&block, 40 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_calls("cuMemFreeAsync") == 3);  // it was served by fresh memory, beyond the limit, and from that again
  CHECK(second.allocate(&block, 40 * kMiB) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(block == 0);
  REQUIRE(first.allocate(&block, 40 * kMiB) == CUDA_SUCCESS);  // its own again
  CHECK(rig.pools().check() == "");
  REQUIRE(first.free(block) == CUDA_SUCCESS);
  released = 1;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(second.allocate(&block, 64 * kMiB) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) <= 64 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("async: a step of the driver's pool that passes the limit goes back at once, and what is idle serves on") {
  const Steps steps;
  Rig rig(under(config::Policy::async, "80MiB"));
  Program program{rig, new_stream()};
  std::vector<CUdeviceptr> blocks(32);
  for (CUdeviceptr& block : blocks) REQUIRE(program.allocate(&block, kBlock_bytes) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 64 * kMiB);
  CUdeviceptr other = 0;
  for (int i = 0; i < 3; ++i) {
    CHECK(program.allocate(&other, kBlock_bytes) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(other == 0);
    CHECK(cusim_used_bytes(0) == 64 * kMiB);
    CHECK(rig.pools().check() == "");
  }
  REQUIRE(program.free(blocks.front()) == CUDA_SUCCESS);
  REQUIRE(program.allocate(&blocks.front(), kBlock_bytes) == CUDA_SUCCESS);
  for (CUdeviceptr block : blocks) REQUIRE(program.free(block) == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("async: where the driver's pool cannot grow within the limit a plain block lies outside it, and counts as what it takes") {
  const Steps steps;
  Rig rig(under(config::Policy::async, "80MiB"));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(rig.allocate(kBlock_bytes));
  CHECK(cusim_used_bytes(0) == 64 * kMiB);
  for (int i = 0; i < 4; ++i) blocks.push_back(rig.allocate(3 * kMiB));
  CHECK(cusim_used_bytes(0) == 80 * kMiB);
  CHECK_FALSE(rig.try_allocate(3 * kMiB).ok());
  CHECK(cusim_used_bytes(0) == 80 * kMiB);
  CHECK(now(rig.counters().native_fallbacks) == 4);
  CHECK(rig.pools().check() == "");
  for (const CUdeviceptr block : blocks) rig.free(block);
  CHECK(rig.try_allocate(64 * kMiB).ok());
  CHECK(cusim_used_bytes(0) <= 80 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("threads: a step of the driver's pool that passes the limit goes back, whoever else takes memory meanwhile") {
  constexpr int kThreads = 8, kRounds = 3, kBlocks = 20;
  const Steps steps;
  Rig rig(under(config::Policy::async, "80MiB"));
  std::barrier all(kThreads);
  std::atomic<std::uint64_t> most_bytes{0};
  std::atomic<int> refused{0}, failures{0};
  const auto fill_and_empty = [&](unsigned seed) {
    cuCtxSetCurrent(rig.context());
    Program program{rig, new_stream()};
    program.yields = true;
    std::mt19937 random(seed);
    for (int round = 0; round < kRounds; ++round) {
      std::vector<CUdeviceptr> blocks(kBlocks);
      for (CUdeviceptr& block : blocks)
        if (program.allocate(&block, 1 + random() % (3 * kMiB)) != CUDA_SUCCESS) refused.fetch_add(1);
      all.arrive_and_wait();
      if (seed == 0) most_bytes = std::max(most_bytes.load(), cusim_used_bytes(0));
      all.arrive_and_wait();
      for (const CUdeviceptr block : blocks)
        if (block != 0 && program.free(block) != CUDA_SUCCESS) failures.fetch_add(1);
    }
  };
  std::vector<std::thread> threads;
  for (unsigned seed = 0; seed < kThreads; ++seed) threads.emplace_back(fill_and_empty, seed);
  for (std::thread& thread : threads) thread.join();
  CHECK(refused > 0);
  CHECK(failures == 0);
  CHECK(most_bytes == 64 * kMiB);  // two steps
  CHECK(rig.pools().check() == "");
  CHECK(rig.try_allocate(64 * kMiB).ok());
}

TEST_CASE("async: what the driver took beyond the limit, and gives back in time, is held once") {
  Rig rig(under(config::Policy::async, "64MiB"));
  Program first{rig, new_stream()};
  Program second{rig, new_stream()};
  CUdeviceptr block = 0;
  REQUIRE(first.allocate(&block, 40 * kMiB) == CUDA_SUCCESS);
  for (const Program* program : {&first, &second}) REQUIRE(cusim_launch_spin(program->stream, 10'000) == CUDA_SUCCESS);
  REQUIRE(first.free(block) == CUDA_SUCCESS);
  REQUIRE(second.allocate(&block, 40 * kMiB) == CUDA_SUCCESS);
  CHECK(cusim_calls("cuMemFreeAsync") == 2);  // the first time it was served by fresh memory
  CHECK(rig.pools().check() == "");
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CUdeviceptr other = 0;
  REQUIRE(first.allocate(&other, 24 * kMiB) == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("async: idle memory in pieces makes way for what it does not serve, and nothing is taken back") {
  Rig rig(under(config::Policy::async, "64MiB"));
  Program program{rig, new_stream()};
  std::vector<CUdeviceptr> blocks(3);
  for (CUdeviceptr& block : blocks) REQUIRE(program.allocate(&block, 20 * kMiB) == CUDA_SUCCESS);
  for (const std::size_t i : {0, 2}) REQUIRE(program.free(blocks[i]) == CUDA_SUCCESS);
  CUdeviceptr large = 0;
  REQUIRE(program.allocate(&large, 40 * kMiB) == CUDA_SUCCESS);
  CHECK(cusim_calls("cuMemFreeAsync") == 2);
  CHECK(cusim_used_bytes(0) <= 64 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("async: what blocks are rounded to is nothing that was taken beyond the limit") {
  Rig rig(under(config::Policy::async, "64MiB"));
  Program program{rig, new_stream()};
  std::vector<CUdeviceptr> blocks(32);
  for (CUdeviceptr& block : blocks) REQUIRE(program.allocate(&block, kBlock_bytes - 500) == CUDA_SUCCESS);
  const std::uint64_t trims = cusim_calls("cuMemPoolTrimTo");
  for (int i = 1; i <= 100; ++i) {
    CUdeviceptr& block = blocks[static_cast<std::size_t>(i * 7 % 32)];
    REQUIRE(program.free(block) == CUDA_SUCCESS);
    REQUIRE(program.allocate(&block, kBlock_bytes - 500) == CUDA_SUCCESS);
    REQUIRE(cusim_calls("cuMemFreeAsync") == static_cast<std::uint64_t>(i));
  }
  CHECK(cusim_calls("cuMemPoolTrimTo") == trims);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("async: memory that another thread is just giving to the driver makes up for what was taken beyond the limit") {
  Rig rig(under(config::Policy::async, "64MiB"));
  Program busy{rig, new_stream()};
  Program idle{rig, new_stream()};
  CUdeviceptr pending = 0;
  CUdeviceptr leaving = 0;
  REQUIRE(busy.allocate(&pending, 20 * kMiB) == CUDA_SUCCESS);
  REQUIRE(idle.allocate(&leaving, 24 * kMiB) == CUDA_SUCCESS);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(busy.stream, &released) == CUDA_SUCCESS);
  REQUIRE(busy.free(pending) == CUDA_SUCCESS);
  CUresult code = CUDA_ERROR_UNKNOWN;
  std::atomic<bool> is_served{false};
  std::thread other;
  const auto free_slowly = [&] {
    other = std::thread([&] {
      cuCtxSetCurrent(rig.context());
      CUdeviceptr block = 0;
      const CUstream stream = new_stream();
      DriverServed request{0, rig.context(), true, true, 7, 40 * kMiB, "cuMemAllocAsync"};
      request.handle = stream;
      const auto call = [&] {
        const CUresult served = cuMemAllocAsync(&block, 40 * kMiB, stream);
        is_served.store(true);
        return served;
      };
      code = rig.pools().allocate_by_driver(request, &block, std::cref(call), {});
    });
    while (!is_served.load()) std::this_thread::yield();
    // The other thread is to be waiting for room by then, which nothing outside the pool can see.
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return cuMemFreeAsync(leaving, idle.stream);
  };
  CHECK(rig.pools().free_by_driver(leaving, 7, std::cref(free_slowly)) == CUDA_SUCCESS);
  other.join();
  CHECK(code == CUDA_SUCCESS);
  CHECK(cusim_calls("cuMemFreeAsync") == 2);
  CHECK(rig.pools().check() == "");
  released = 1;
}

TEST_CASE("async: threads whose blocks are exactly the limit are refused nothing, and do not pass it") {
  Rig rig(under(config::Policy::async, "64MiB"));
  std::atomic<std::uint64_t> failures{0};
  std::vector<std::thread> threads;
  for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back([&rig, seed, &failures] { take_and_give(rig, seed, failures); });
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK(cusim_used_bytes(0) <= 64 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("what a pool of the program's keeps idle is held, serves its next request, and goes back before something else is refused") {
  for (const config::Policy policy : {config::Policy::platform, config::Policy::async, config::Policy::grow}) {
    Rig rig(under(policy, "64MiB"));
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.maxSize = 256 * kMiB;
    CUmemoryPool pool = nullptr;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    rig.pools().mempool_made(0, pool);
    Program program{rig, nullptr, pool};
    const auto held_idle = [&] { return rig.live().outside.mempools.load(); };
    const auto set_threshold = [&](std::uint64_t bytes) {
      REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &bytes) == CUDA_SUCCESS);
      rig.pools().mempools_changed();
    };
    CUdeviceptr block = 0;
    REQUIRE(program.allocate(&block, 40 * kMiB) == CUDA_SUCCESS);
    REQUIRE(program.free(block) == CUDA_SUCCESS);
    CHECK(held_idle() == 0);  // the next synchronisation takes it
    set_threshold(32 * kMiB);
    CHECK(held_idle() == 32 * kMiB);
    set_threshold(UINT64_MAX);
    CHECK(held_idle() == 40 * kMiB);
    REQUIRE(program.allocate(&block, 40 * kMiB) == CUDA_SUCCESS);  // from there
    CHECK(held_idle() == 0);
    REQUIRE(program.free(block) == CUDA_SUCCESS);
    CHECK(rig.pools().check() == "");
    const CUdeviceptr plain = rig.allocate(40 * kMiB);
    CHECK(held_idle() == 0);
    CHECK(now(rig.counters().rung_mempools) == 1);
    CHECK(cusim_used_bytes(0) <= 64 * kMiB);
    CHECK(rig.pools().check() == "");
    rig.free(plain);
    rig.pools().mempool_ending(pool);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
    rig.pools().mempools_changed();
    CHECK(cusim_violation_count() == 0);
  }
}

TEST_CASE("threads: a pool that is destroyed is asked nothing any more, whoever asks about pools meanwhile") {
  Rig rig(under(config::Policy::platform, "64MiB"));
  Program first{rig};
  CUdeviceptr block = 0;
  REQUIRE(first.allocate(&block, kBlock_bytes) == CUDA_SUCCESS);  // from here on pools are asked about
  std::atomic<bool> is_over{false};
  std::thread asker([&] {
    cuCtxSetCurrent(rig.context());
    while (!is_over.load()) rig.pools().mempools_changed();
  });
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  for (int i = 0; i < 300; ++i) {
    CUmemoryPool pool = nullptr;
    REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
    rig.pools().mempool_made(0, pool);
    rig.pools().mempools_changed();
    rig.pools().mempool_ending(pool);
    REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  }
  is_over.store(true);
  asker.join();
  CHECK(cusim_violation_count() == 0);
  CHECK(first.free(block) == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}
