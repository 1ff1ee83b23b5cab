// Stream-ordered memory that the driver serves itself, in the books: pool/device/driver_served.cpp.
#include <catch2/catch.hpp>

#include <atomic>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
RigOptions under(config::Policy policy, const char* limit = nullptr) {
  RigOptions options;
  options.pool.policy = policy;
  if (limit != nullptr) options.pool.limit.all = config::parse_amount(limit);
  return options;
}

/// The program's calls, as the shim passes them.
struct Program {
  Rig& rig;
  int asked = 0;
  CUresult reason = CUDA_ERROR_OUT_OF_MEMORY;  ///< what the driver says of a size that is impossible

  CUresult allocate(CUdeviceptr* out, std::size_t bytes, bool goes_with_context = true) {
    const DriverServed request{0, rig.context(), goes_with_context, true, 7, bytes, "cuMemAllocAsync"};
    const auto call = [&] { return cuMemAllocAsync(out, bytes, nullptr); };
    const auto ask = [&] {
      ++asked;
      return reason;
    };
    return rig.pools().allocate_by_driver(request, out, std::cref(call), std::cref(ask));
  }
  std::optional<CUresult> free(CUdeviceptr address) {
    const auto call = [&] { return cuMemFreeAsync(address, nullptr); };
    return rig.pools().free_by_driver(address, 7, std::cref(call));
  }
};
}  // namespace

TEST_CASE("what the driver serves in stream order is booked as a block, and to every query it is not ours") {
  Rig rig(under(config::Policy::platform));
  Program program{rig};
  CUdeviceptr block = 0;
  REQUIRE(program.allocate(&block, 1000) == CUDA_SUCCESS);
  CHECK(now(rig.counters().live_bytes) == 1024);
  CHECK(now(rig.counters().requested_bytes) == 1000);
  CHECK(now(rig.counters().reserved_bytes) == 1024);
  CHECK(now(rig.counters().allocations) == 1);
  CHECK_FALSE(rig.pools().owns(block));
  CHECK(rig.pools().find(block, nullptr) == Ownership::unknown);
  const observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
  REQUIRE(device.blocks.size() == 1);
  CHECK(device.blocks[0].address == block);
  CHECK(device.blocks[0].requested_bytes == 1000);
  CHECK(device.blocks[0].state == observe::BlockState::live);
  CHECK(rig.pools().check().empty());
  CHECK(program.free(block) == CUDA_SUCCESS);
  CHECK_FALSE(program.free(block));
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(now(rig.counters().reserved_bytes) == 0);
  CHECK(now(rig.counters().frees) == 1);
  CHECK(rig.pools().check().empty());
}

TEST_CASE("a free that the driver refuses leaves the block in the books") {
  Rig rig(under(config::Policy::platform));
  Program program{rig};
  CUdeviceptr block = 0;
  REQUIRE(program.allocate(&block, kMiB) == CUDA_SUCCESS);
  const auto refuse = [] { return CUDA_ERROR_INVALID_HANDLE; };
  CHECK(rig.pools().free_by_driver(block, 7, std::cref(refuse)) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(now(rig.counters().live_bytes) == kMiB);
  CHECK(now(rig.counters().frees) == 0);
  CHECK(rig.pools().check().empty());
  CHECK(program.free(block) == CUDA_SUCCESS);
}

TEST_CASE("while the driver frees a block, its address may come again") {
  Rig rig(under(config::Policy::platform));
  Program program{rig};
  CUdeviceptr block = 0;
  REQUIRE(program.allocate(&block, kMiB) == CUDA_SUCCESS);
  const auto free_and_take = [&] {
    REQUIRE(cuMemFreeAsync(block, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(nullptr) == CUDA_SUCCESS);
    CUdeviceptr next = 0;
    REQUIRE(program.allocate(&next, kMiB) == CUDA_SUCCESS);
    REQUIRE(next == block);
    return CUDA_SUCCESS;
  };
  CHECK(rig.pools().free_by_driver(block, 7, std::cref(free_and_take)) == CUDA_SUCCESS);
  CHECK(now(rig.counters().live_blocks) == 1);
  CHECK(rig.pools().check().empty());
  CHECK(program.free(block) == CUDA_SUCCESS);
  CHECK(now(rig.counters().live_blocks) == 0);
}

TEST_CASE("it goes with the context that it is said to go with, and no other") {
  Rig rig(under(config::Policy::platform));
  Program program{rig};
  CUdeviceptr gone = 0;
  CUdeviceptr stays = 0;
  REQUIRE(program.allocate(&gone, kMiB) == CUDA_SUCCESS);
  REQUIRE(program.allocate(&stays, 2 * kMiB, false) == CUDA_SUCCESS);
  rig.reset_device();
  CHECK(now(rig.counters().live_bytes) == 2 * kMiB);
  CHECK(now(rig.counters().frees) == 0);
  CHECK(rig.pools().check().empty());
  const auto nothing = [] { return CUDA_SUCCESS; };
  CHECK_FALSE(rig.pools().free_by_driver(gone, 0, std::cref(nothing)));
  CHECK(rig.pools().free_by_driver(stays, 0, std::cref(nothing)) == CUDA_SUCCESS);
}

TEST_CASE("it is held to the limit, by its rounded size, and a refusal by the driver costs nothing") {
  Rig rig(under(config::Policy::platform, "64MiB"));
  Program program{rig};
  CUdeviceptr block = 0;
  REQUIRE(program.allocate(&block, 63 * kMiB + 100) == CUDA_SUCCESS);
  CUdeviceptr other = 0;
  CHECK(program.allocate(&other, kMiB - 511) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(program.asked == 1);
  CHECK(rig.pools().take_untold_oom() != 0);
  program.reason = CUDA_ERROR_INVALID_HANDLE;  // that comes first
  CHECK(program.allocate(&other, kMiB) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(rig.pools().take_untold_oom() == 0);
  CHECK(program.allocate(&other, kMiB - 512) == CUDA_SUCCESS);
  CHECK(program.free(other) == CUDA_SUCCESS);
  const auto refuse = [] { return CUDA_ERROR_OUT_OF_MEMORY; };
  CHECK(rig.pools().allocate_by_driver({0, rig.context(), true, true, 7, kMiB - 512, "cuMemAllocAsync"}, &other, std::cref(refuse), {}) ==
        CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(rig.pools().take_untold_oom() != 0);
  CHECK(rig.snapshot().ooms.back().evidence.held_bytes == 63 * kMiB + 512);  // without what was refused
  CHECK(rig.pools().check().empty());
  CHECK(program.free(block) == CUDA_SUCCESS);
}

TEST_CASE("what the driver serves is none of what the default pool says that it uses, nor what a trim may keep") {
  Rig rig(under(config::Policy::grow));
  Program program{rig};
  rig.free(rig.allocate(16 * kMiB));
  const std::uint64_t before_bytes = now(rig.counters().reserved_bytes);
  CHECK(before_bytes >= 16 * kMiB);
  CUdeviceptr block = 0;
  REQUIRE(program.allocate(&block, 64 * kMiB) == CUDA_SUCCESS);
  CHECK(now(rig.counters().reserved_bytes) == before_bytes + 64 * kMiB);
  CHECK(rig.pools().mempool_figures(0, 1).used_bytes == 0);
  CHECK(rig.pools().mempool_figures(0, 1).used_high_bytes == 0);
  CHECK(rig.pools().trim(0, before_bytes) == 0);
  CHECK(program.free(block) == CUDA_SUCCESS);
  CHECK(now(rig.counters().reserved_bytes) == before_bytes);
  CHECK(rig.pools().check().empty());
}

TEST_CASE("async: what the program frees in stream order lies idle in the driver's pool, and is told as that") {
  Rig rig(under(config::Policy::async));
  Program program{rig};
  CUdeviceptr block = 0;
  REQUIRE(program.allocate(&block, 32 * kMiB) == CUDA_SUCCESS);
  REQUIRE(program.free(block) == CUDA_SUCCESS);
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(now(rig.counters().reserved_bytes) == 32 * kMiB);
  REQUIRE(program.allocate(&block, 32 * kMiB) == CUDA_SUCCESS);
  CHECK(now(rig.counters().live_bytes) == 32 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) == 32 * kMiB);
  CHECK(peak(rig.counters().reserved_bytes) == 32 * kMiB);
  CHECK(rig.pools().check().empty());
  REQUIRE(program.free(block) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(rig.pools().trim() == 32 * kMiB);  // nothing but these calls has used the pool
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("async: the driver is asked about its pool now and then, not at each call") {
  Rig rig(under(config::Policy::async));
  Program program{rig};
  const auto pair = [&] {
    CUdeviceptr block = 0;
    REQUIRE(program.allocate(&block, kMiB) == CUDA_SUCCESS);
    REQUIRE(program.free(block) == CUDA_SUCCESS);
  };
  pair();
  const std::uint64_t before = cusim_calls("cuMemPoolGetAttribute");
  for (int i = 0; i < 160; ++i) pair();
  CHECK(cusim_calls("cuMemPoolGetAttribute") - before == 160 * 2 / 32 * 2);
  CHECK(now(rig.counters().reserved_bytes) <= 2 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("async: a program whose first allocation is in stream order gets what is to be preallocated") {
  RigOptions options = under(config::Policy::async);
  options.pool.preallocate = config::parse_amount("256MiB");
  Rig rig(options);
  Program program{rig};
  CUdeviceptr block = 0;
  REQUIRE(program.allocate(&block, kMiB) == CUDA_SUCCESS);
  CHECK(now(rig.counters().reserved_bytes) >= 256 * kMiB);
  CHECK(cusim_used_bytes(0) <= 258 * kMiB);
  CHECK(rig.pools().check().empty());
  CHECK(program.free(block) == CUDA_SUCCESS);
}

namespace {
/// Blocks by the driver and plain ones, on a stream of its own.
void mix(Rig& rig, unsigned seed, std::atomic<std::uint64_t>& failures) {
  cuCtxSetCurrent(rig.context());
  CUstream stream = nullptr;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  std::mt19937 random(seed);
  std::vector<CUdeviceptr> served;
  std::vector<CUdeviceptr> plain;
  const auto take_last = [](std::vector<CUdeviceptr>& blocks) {
    const CUdeviceptr last = blocks.back();
    blocks.pop_back();
    return last;
  };
  for (int step = 0; step < 400; ++step) {
    const std::size_t bytes = 512 + random() % (2 * kMiB);
    const std::uint64_t what = random() % 6;
    if (what < 2 && served.size() < 20) {
      CUdeviceptr block = 0;
      const auto call = [&] { return cuMemAllocAsync(&block, bytes, stream); };
      const DriverServed request{0, rig.context(), true, true, seed * 2, bytes, "cuMemAllocAsync"};
      if (rig.pools().allocate_by_driver(request, &block, std::cref(call), {}) != CUDA_SUCCESS) failures.fetch_add(1);
      else served.push_back(block);
    } else if (what < 4 && !served.empty()) {
      const CUdeviceptr block = take_last(served);
      const auto call = [&] { return cuMemFreeAsync(block, stream); };
      if (rig.pools().free_by_driver(block, seed * 2, std::cref(call)) != CUDA_SUCCESS) failures.fetch_add(1);
    } else if (what == 4 && plain.size() < 20) {
      const Result<CUdeviceptr> block = rig.pools().allocate(rig.context(), bytes, "cuMemAlloc_v2");
      if (!block.ok()) failures.fetch_add(1);
      else plain.push_back(block.value());
    } else if (!plain.empty()) {
      if (rig.pools().free(take_last(plain)).outcome != FreeOutcome::freed) failures.fetch_add(1);
    }
    if (step % 50 == 0) rig.pools().snapshot(std::chrono::milliseconds(5));
    if (step % 100 == 50) rig.pools().trim();
  }
  cuStreamSynchronize(stream);
  for (const CUdeviceptr block : plain) rig.pools().free(block);
}
}  // namespace

TEST_CASE("threads: what the driver serves them is booked once, under every policy, and under a limit") {
  for (const config::Policy policy : {config::Policy::platform, config::Policy::async, config::Policy::grow}) {
    for (const char* limit : {static_cast<const char*>(nullptr), "512MiB"}) {
      Rig rig(under(policy, limit));
      std::atomic<std::uint64_t> failures{0};
      std::vector<std::thread> threads;
      for (unsigned seed = 1; seed <= 4; ++seed) threads.emplace_back([&rig, seed, &failures] { mix(rig, seed, failures); });
      for (std::thread& thread : threads) thread.join();
      CHECK(failures == 0);
      CHECK(rig.pools().check() == "");
      const observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
      std::uint64_t live_bytes = 0;
      for (const observe::BlockRow& block : device.blocks) live_bytes += block.state == observe::BlockState::live ? block.bytes : 0;
      CHECK(live_bytes == now(rig.counters().live_bytes));
      rig.reset_device();  // the driver's blocks that are left go with it
      CHECK(now(rig.counters().live_bytes) == 0);
      CHECK(now(rig.counters().live_blocks) == 0);
      CHECK(rig.pools().check() == "");
    }
  }
}

TEST_CASE("async: small blocks are held once, as much as the driver's pool has for them") {
  RigOptions options = under(config::Policy::async);
  Rig rig(options);
  Program program{rig};
  std::vector<CUdeviceptr> plain;
  std::vector<CUdeviceptr> ordered;
  const auto driver_holds = [] {
    CUmemoryPool pool = nullptr;
    cuuint64_t reserved_bytes = 0;
    REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
    REQUIRE(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved_bytes) == CUDA_SUCCESS);
    return reserved_bytes;
  };
  const auto check = [&] {
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
    rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);  // asks the driver
    CHECK(now(rig.counters().reserved_bytes) == driver_holds());
    CHECK(rig.pools().check() == "");
  };
  for (int i = 0; i < 6000; ++i) plain.push_back(rig.allocate(20));
  check();
  for (int i = 0; i < 6000; ++i) {
    ordered.emplace_back();
    REQUIRE(program.allocate(&ordered.back(), 100) == CUDA_SUCCESS);
  }
  check();
  for (std::size_t i = 0; i < 3000; ++i) REQUIRE(program.free(ordered[i]) == CUDA_SUCCESS);
  for (std::size_t i = 0; i < 3000; ++i) rig.free(plain[i]);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  check();
}

TEST_CASE("a free of nothing is nobody's, and not a foreign one") {
  Rig rig;
  rig.allocate(kMiB);
  CHECK(rig.pools().free(0).outcome == FreeOutcome::unknown);
  CHECK(now(rig.counters().foreign_frees) == 0);
  CHECK(rig.pools().free(1 << 20).outcome == FreeOutcome::unknown);
  CHECK(now(rig.counters().foreign_frees) == 1);
}
