// CUPOOL_LIMIT: charged before the driver is asked, under every policy and for every kind of memory that counts.
#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
RigOptions limited(const char* limit, config::Policy policy = config::Policy::grow) {
  RigOptions options = limited_to(limit);
  options.pool.policy = policy;
  return options;
}
}  // namespace

TEST_CASE("threads that race for the last bytes never pass the limit together") {
  for (const config::Policy policy : {config::Policy::grow, config::Policy::platform}) {
    Rig rig(limited("64MiB", policy));
    std::atomic<bool> over{false};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        cuCtxSetCurrent(rig.context());
        for (unsigned i = 0; i < 60; ++i) {
          const std::size_t bytes = (1 + (i * 7 + t) % 10) * 2 * kMiB;  // what the driver rounds to
          const Result<CUdeviceptr> block = rig.pools().allocate(rig.context(), bytes, "cuMemAlloc_v2");
          if (cusim_used_bytes(0) > 64 * kMiB) over.store(true);
          if (block.ok()) rig.pools().free(block.value());
        }
      });
    for (std::thread& thread : threads) thread.join();
    CHECK_FALSE(over.load());
    CHECK(rig.pools().check().empty());
  }
}

TEST_CASE("what a limit leaves is halved between growth and everything else, as what the device leaves is") {
  RigOptions options = limited("900MiB");
  options.memory = "80GiB";  // a region is at most a 32nd of it
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 300; ++i) blocks.push_back(rig.allocate(2 * kMiB));  // 600 MiB; regions double
  const std::uint64_t held_bytes = now(rig.counters().reserved_bytes);
  CHECK(held_bytes <= 766 * kMiB);
  // An array or memory of the program's own.
  CHECK(rig.pools().reserve_outside(0, OutsideKind::program_vmm, 128 * kMiB, "cuMemCreate").ok());
  rig.pools().cancel_outside(0, OutsideKind::program_vmm, 128 * kMiB);
  // And all of it is the pool's where nothing else takes it.
  for (Result<CUdeviceptr> block = rig.try_allocate(2 * kMiB); block.ok(); block = rig.try_allocate(2 * kMiB)) blocks.push_back(block.value());
  CHECK(now(rig.counters().live_bytes) == 900 * kMiB);
  for (const CUdeviceptr block : blocks) rig.free(block);
}

TEST_CASE("a refusal by the limit asks the driver for nothing and leaves the account as it was") {
  Rig rig(limited("64MiB"));
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  const std::uint64_t calls = cusim_calls("cuMemAlloc_v2");
  CHECK(rig.try_allocate(100 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_calls("cuMemAlloc_v2") == calls);
  rig.free(block);
  rig.free(rig.allocate(64 * kMiB));
}

TEST_CASE("what the driver has against the other arguments comes before a breach of the limit") {
  Rig rig(limited("64MiB"));
  PoolSet& pools = rig.pools();
  int asked = 0;
  CUresult answer = CUDA_ERROR_INVALID_HANDLE;
  const auto ask = [&] {
    ++asked;
    return answer;
  };
  REQUIRE(pools.reserve_outside(0, OutsideKind::program_vmm, 10 * kMiB, "cuMemCreate", std::cref(ask)).ok());
  CHECK(asked == 0);  // it fits
  CHECK(pools.reserve_outside(0, OutsideKind::program_vmm, 60 * kMiB, "cuMemCreate", std::cref(ask)).code() == CUDA_ERROR_INVALID_HANDLE);
  CHECK(asked == 1);
  CHECK(pools.take_untold_oom() == 0);
  for (const CUresult other : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE, CUDA_SUCCESS}) {  // none of them a reason of its own
    answer = other;
    CHECK(pools.reserve_outside(0, OutsideKind::program_vmm, 60 * kMiB, "cuMemCreate", std::cref(ask)).code() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(pools.take_untold_oom() != 0);
  }
  pools.cancel_outside(0, OutsideKind::program_vmm, 10 * kMiB);
}

TEST_CASE("a broken context is no lack of memory, whatever the size") {
  Rig rig(limited("64MiB"));
  rig.free(rig.allocate(kMiB));
  cusim_break_context(rig.context(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.try_allocate(~std::size_t{0}).code() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.try_allocate(100 * kMiB).code() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.pools().take_untold_oom() == 0);
}

TEST_CASE("in a broken context nobody waits for memory that the driver does not take back: the limit's refusal comes at once") {
  Rig rig(limited("64MiB"));
  rig.free(rig.allocate(48 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  cusim_break_context(rig.context(), CUDA_ERROR_ILLEGAL_ADDRESS);
  const auto ask = [] { return CUDA_ERROR_ILLEGAL_ADDRESS; };
  CHECK(rig.pools().reserve_outside(0, OutsideKind::array, 40 * kMiB, "cuArrayCreate_v2", ask).code() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cusim_now_ns() < 100'000'000);
}

TEST_CASE("a driver that does not tell what it has free is no lost device: a limit's refusal is out of memory") {
  Rig rig(limited("64MiB"));
  rig.free(rig.allocate(kMiB));
  cusim_fail("cuMemGetInfo_v2", 1, CUDA_ERROR_UNKNOWN, 1'000'000);
  CHECK(rig.try_allocate(100 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("memory that the driver refuses to free is still held") {
  Rig rig(limited("100MiB"));
  PoolSet& pools = rig.pools();
  REQUIRE(pools.reserve_outside(0, OutsideKind::array, 60 * kMiB, "cuArrayCreate_v2").ok());
  pools.commit_outside(0, OutsideKind::array, 7, 60 * kMiB);
  const auto refused = pools.take_outside(OutsideKind::array, 7);
  REQUIRE(refused);
  pools.end_take(*refused, false);
  CHECK(now(rig.counters().outside_bytes) == 60 * kMiB);
  CHECK_FALSE(rig.try_allocate(50 * kMiB).ok());
  const auto freed = pools.take_outside(OutsideKind::array, 7);
  REQUIRE(freed);
  pools.end_take(*freed, true);
  CHECK(now(rig.counters().outside_bytes) == 0);
  CHECK(rig.try_allocate(50 * kMiB).ok());
}

TEST_CASE("arrays and the program's own cuMemCreate count, managed and host memory do not") {
  Rig rig(limited("100MiB"));
  PoolSet& pools = rig.pools();
  std::uint64_t key = 1;
  for (const OutsideKind kind : {OutsideKind::array, OutsideKind::program_vmm}) {
    REQUIRE(pools.reserve_outside(0, kind, 60 * kMiB, "cuMemCreate").ok());
    CHECK(rig.try_allocate(50 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(pools.reserve_outside(0, kind, 60 * kMiB, "cuMemCreate").code() == CUDA_ERROR_OUT_OF_MEMORY);
    pools.commit_outside(0, kind, ++key, 60 * kMiB);
    CHECK(now(rig.counters().outside_bytes) == 60 * kMiB);
    CHECK(pools.release_outside(kind, key));
    CHECK_FALSE(pools.release_outside(kind, key));
    CHECK(now(rig.counters().outside_bytes) == 0);
  }
  for (const OutsideKind kind : {OutsideKind::managed, OutsideKind::host}) {
    REQUIRE(pools.reserve_outside(0, kind, kGiB, "cuMemAllocManaged").ok());
    pools.commit_outside(0, kind, ++key, kGiB);
  }
  CHECK(now(rig.counters().outside_bytes) == 0);
  const observe::OutsideBytes outside = rig.snapshot().devices.at(0).outside;
  CHECK(outside.managed == kGiB);
  CHECK(outside.host == kGiB);
  CHECK(outside.arrays == 0);
  rig.free(rig.allocate(100 * kMiB));
}

TEST_CASE("managed memory that the device has no room for is not named where memory is short") {
  RigOptions options;
  options.memory = "64MiB";
  Rig rig(options);
  rig.free(rig.allocate(kMiB));
  REQUIRE(rig.pools().reserve_outside(0, OutsideKind::managed, 40 * kMiB, "cuMemAllocManaged").ok());
  rig.pools().commit_outside(0, OutsideKind::managed, 1, 40 * kMiB);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  CHECK(rig.try_allocate(40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  const observe::OomEvidence evidence = rig.snapshot().ooms.at(0).evidence;
  REQUIRE(evidence.driver_free_bytes.has_value());
  const std::uint64_t left_bytes = evidence.device_total_bytes - *evidence.driver_free_bytes - evidence.held_bytes;
  CHECK(left_bytes < 40 * kMiB);
  CHECK(evidence.own_outside_bytes == left_bytes);
  CHECK(evidence.unattributed_bytes == 0);
  rig.free(block);
  CHECK(rig.pools().release_outside(OutsideKind::managed, 1));
}

TEST_CASE("a reservation that is cancelled leaves nothing behind") {
  Rig rig(limited("100MiB"));
  REQUIRE(rig.pools().reserve_outside(0, OutsideKind::array, 100 * kMiB, "cuArrayCreate_v2").ok());
  rig.pools().cancel_outside(0, OutsideKind::array, 100 * kMiB);
  rig.free(rig.allocate(100 * kMiB));
}

TEST_CASE("empty pool memory makes room for the program's arrays") {
  Rig rig(limited("100MiB"));
  rig.free(rig.allocate(90 * kMiB));
  CHECK(rig.pools().reserve_outside(0, OutsideKind::array, 60 * kMiB, "cuArrayCreate_v2").ok());
  CHECK(now(rig.counters().reserved_bytes) == 0);
  rig.pools().cancel_outside(0, OutsideKind::array, 60 * kMiB);
}

TEST_CASE("each device has its own limit") {
  RigOptions options;
  options.devices = 2;
  options.pool.limit.by_ordinal = {{0, *config::parse_amount("50MiB")}, {1, *config::parse_amount("50%")}};
  Rig rig(options);
  CHECK(rig.try_allocate(60 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  rig.use(1);
  rig.free(rig.allocate(500 * kMiB));
  CHECK(rig.try_allocate(600 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("cuMemGetInfo: free is what a new allocation could get, total respects the limit") {
  Rig rig(limited("400MiB"));
  const auto asked = [&] {
    std::size_t free_bytes = 0, total_bytes = 0;
    REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
    rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);
    return std::pair{free_bytes, total_bytes};
  };
  CHECK(asked() == std::pair{400 * kMiB, 400 * kMiB});
  const CUdeviceptr block = rig.allocate(100 * kMiB);
  CHECK(asked() == std::pair{300 * kMiB, 400 * kMiB});
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(stream, 1'000'000) == CUDA_SUCCESS);
  rig.free(block);
  REQUIRE(now(rig.counters().deferred_bytes) == 100 * kMiB);
  CHECK(asked().first == 400 * kMiB);
  const CUdeviceptr all = rig.allocate(asked().first);
  CHECK(asked().first == 0);
  rig.free(all);
}

TEST_CASE("cuMemGetInfo: under a limit that is no whole number of pages one allocation gets all that is free") {
  RigOptions options = limited("400.7MiB");
  options.pool.backing = config::Backing::pages;
  Rig rig(options);
  const auto asked = [&] {
    std::size_t free_bytes = 0, total_bytes = 0;
    REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
    rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);
    return free_bytes;
  };
  const std::size_t small_bytes = GENERATE(0, 5000, kMiB, 3 * kMiB);
  const CUdeviceptr small = small_bytes != 0 ? rig.allocate(small_bytes) : 0;
  CHECK(asked() > 396 * kMiB - small_bytes);
  rig.free(rig.allocate(asked()));
  if (small != 0) rig.free(small);
}

TEST_CASE("cuMemGetInfo without a limit never answers more than the device has") {
  Rig rig;
  rig.free(rig.allocate(700 * kMiB));
  std::size_t free_bytes = 0, total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);
  CHECK(free_bytes == kGiB);
  CHECK(total_bytes == kGiB);
}

TEST_CASE("other memory is not refused for the limit while a free of the pool's waits for work, as natively the free had waited") {
  RigOptions options = limited("96MiB");
  options.pool.policy = GENERATE(config::Policy::grow, config::Policy::async);
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(stream, 5'000'000) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(rig.pools().reserve_outside(0, OutsideKind::array, 80 * kMiB, "cuArrayCreate_v2").ok());
  rig.pools().cancel_outside(0, OutsideKind::array, 80 * kMiB);
}

TEST_CASE("preallocated segments: one small block does not keep the preallocated memory from whoever needs more than that") {
  RigOptions options;
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("768MiB");
  const bool is_limited = GENERATE(false, true);
  if (is_limited) options.pool.limit.all = config::parse_amount("768MiB");
  Rig rig(options);
  rig.allocate(4096);
  CHECK(now(rig.counters().reserved_bytes) == 768 * kMiB);
  CHECK(now(rig.counters().regions_created) == (is_limited ? 1 : 2));
  if (is_limited) {  // nothing is left outside: one region serves the largest request
    rig.allocate(767 * kMiB);
    return;
  }
  for (const std::uint64_t bytes : {700 * kMiB, 760 * kMiB, 800 * kMiB, 900 * kMiB, 1000 * kMiB}) {
    rig.free(rig.allocate(bytes));
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  }
}

namespace {
thread_local bool t_stays_inside = false;
std::atomic<bool> g_has_memory{false};
std::atomic<bool> g_may_leave{false};

CUresult stay_after(CUdeviceptr* address, std::size_t bytes, CUmemoryPool pool, CUstream stream) {
  const CUresult code = cuMemAllocFromPoolAsync(address, bytes, pool, stream);
  if (t_stays_inside) g_has_memory = true;
  while (t_stays_inside && !g_may_leave) std::this_thread::yield();
  return code;
}
}  // namespace

TEST_CASE("async: idle memory that a thread is being served from counts once for the others, and serves none of them") {
  g_has_memory = false;
  g_may_leave = false;
  RigOptions options = limited("64MiB", config::Policy::async);
  options.patch = [](DriverApi& api) { api.cuMemAllocFromPoolAsync = &stay_after; };
  Rig rig(options);
  rig.free(rig.allocate(40 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.free(rig.allocate(512));  // both lie idle with the driver
  Result<CUdeviceptr> first = Error{CUDA_ERROR_UNKNOWN, ""};
  std::thread other([&] {
    cuCtxSetCurrent(rig.context());
    t_stays_inside = true;
    first = rig.pools().allocate(rig.context(), 40 * kMiB, "cuMemAlloc_v2");
  });
  while (!g_has_memory) std::this_thread::yield();
  CHECK(rig.try_allocate(16 * kMiB).ok());
  g_may_leave = true;
  other.join();
  CHECK(first.ok());
  CHECK(rig.try_allocate(16 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_used_bytes(0) <= 64 * kMiB);
}
