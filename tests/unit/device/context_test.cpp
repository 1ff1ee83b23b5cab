// Contexts that come, die with memory in them, and come back under the same handle.
#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/device/churn.hpp"
#include "tests/unit/device/ending.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
CUresult destroy(Rig& rig, CUcontext context) {
  return rig.pools().end_context(
      context, [&] { return cuCtxDestroy_v2(context); }, [] { return true; });
}
}  // namespace

TEST_CASE("the memory of one context does not serve another, and dies with its own") {
  Rig rig;
  const CUdeviceptr primary = rig.allocate(10 * kMiB);
  const CUcontext second = create(rig, 0);
  const CUdeviceptr other = rig.allocate(10 * kMiB);
  BlockView view;
  REQUIRE(rig.pools().find(other, &view) == Ownership::live);
  CHECK(view.context == second);
  const std::uint64_t frees = cusim_calls("cuMemFree_v2");
  CHECK(destroy(rig, second) == CUDA_SUCCESS);
  rig.use(0);
  CHECK(cusim_calls("cuMemFree_v2") == frees);
  CHECK(rig.pools().find(other, nullptr) == Ownership::unknown);
  CHECK(rig.pools().find(primary, nullptr) == Ownership::live);
  CHECK(now(rig.counters().live_bytes) == 10 * kMiB);
  CHECK(now(rig.counters().ended_blocks) == 1);
  CHECK(now(rig.counters().allocations) - now(rig.counters().frees) - now(rig.counters().ended_blocks) == now(rig.counters().live_blocks));
  CHECK(cusim_used_bytes(0) == now(rig.counters().reserved_bytes));
}

TEST_CASE("deferred frees that wait for a context that dies are done") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  const CUcontext second = create(rig, 0);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(stream, 1'000'000) == CUDA_SUCCESS);
  rig.free(block);
  REQUIRE(now(rig.counters().deferred_bytes) == 64 * kMiB);
  CHECK(destroy(rig, second) == CUDA_SUCCESS);
  rig.use(0);
  CHECK(rig.allocate(64 * kMiB) == block);
}

TEST_CASE("the pool outlives a hundred resets of its device") {
  Rig rig;
  for (int round = 0; round < 100; ++round) {
    std::vector<CUdeviceptr> blocks;
    for (std::size_t i = 1; i < 80; ++i) blocks.push_back(rig.allocate(i * 30 * kKiB));
    for (std::size_t i = 0; i < blocks.size(); i += 2) rig.free(blocks[i]);
    rig.reset_device(0);
    REQUIRE(rig.pools().check().empty());
    CHECK(rig.pools().free(blocks[1]).outcome == FreeOutcome::unknown);
    CUcontext again = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(again) == CUDA_SUCCESS);
    if (round % 2 == 0) rig.pools().context_seen(again, 0);  // else: met at the next allocation
  }
}

TEST_CASE("what was preallocated dies with its context, and is taken again for the next; another context's end takes nothing away") {
  RigOptions options;
  options.pool.preallocate = config::parse_amount("256MiB");
  Rig rig(options);
  rig.allocate(4096);
  const CUcontext second = create(rig, 0);
  rig.allocate(4096);
  CHECK(destroy(rig, second) == CUDA_SUCCESS);
  rig.use(0);
  rig.allocate(4096);
  CHECK(now(rig.counters().reserved_bytes) == 256 * kMiB);
  for (int round = 0; round < 3; ++round) {
    rig.reset_device(0);
    CHECK(now(rig.counters().reserved_bytes) == 0);
    CUcontext again = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(again) == CUDA_SUCCESS);
    rig.allocate(4096);
    CHECK(now(rig.counters().reserved_bytes) == 256 * kMiB);
  }
}

TEST_CASE("memory outside the pool is held until its context ends, and what belongs to no context longer") {
  RigOptions options;
  options.pool.limit.all = config::parse_amount("100MiB");
  Rig rig(options);
  for (std::uint64_t round = 0; round < 3; ++round) {
    const CUcontext second = create(rig, 0);
    REQUIRE(rig.pools().reserve_outside(0, OutsideKind::array, 60 * kMiB, "cuArrayCreate_v2").ok());
    rig.pools().commit_outside(0, OutsideKind::array, 1000 + round, 60 * kMiB, second);
    CHECK_FALSE(rig.pools().reserve_outside(0, OutsideKind::array, 60 * kMiB, "cuArrayCreate_v2").ok());
    CHECK(destroy(rig, second) == CUDA_SUCCESS);
    rig.use(0);
    CHECK_FALSE(rig.pools().release_outside(OutsideKind::array, 1000 + round));
  }
  REQUIRE(rig.pools().reserve_outside(0, OutsideKind::program_vmm, 60 * kMiB, "cuMemCreate").ok());
  rig.pools().commit_outside(0, OutsideKind::program_vmm, 1, 60 * kMiB);
  rig.reset_device(0);
  CHECK(rig.pools().release_outside(OutsideKind::program_vmm, 1));
}

TEST_CASE("a context that survives its release keeps everything") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(kMiB);
  CHECK(rig.pools().end_context(
            rig.context(), [] { return CUDA_SUCCESS; }, [] { return false; }) == CUDA_SUCCESS);
  CHECK(rig.pools().find(block, nullptr) == Ownership::live);
  rig.free(block);
  const CUdeviceptr next = rig.allocate(kMiB);
  const observe::Snapshot snapshot = rig.snapshot();
  CHECK(snapshot.complete);  // a context that is being ended is not told
  const std::vector<observe::BlockRow>& blocks = snapshot.devices.at(0).blocks;
  CHECK(std::any_of(blocks.begin(), blocks.end(), [next](const observe::BlockRow& row) { return row.address == next; }));
}

namespace {
CUresult slow_alloc(CUdeviceptr* address, std::size_t bytes) {
  g_inside.store(true);
  while (!g_may_leave.load()) std::this_thread::yield();
  const CUresult code = cuMemAlloc_v2(address, bytes);
  g_inside.store(false);
  return code;
}
}  // namespace

TEST_CASE("ending a context waits for the thread that is in the driver with it") {
  g_inside.store(false);
  g_may_leave.store(false);
  ReleasingClock clock;
  RigOptions options;
  options.clock = &clock;
  options.patch = [](DriverApi& api) { api.cuMemAlloc_v2 = &slow_alloc; };
  Rig rig(options);
  std::thread other([&] {
    cuCtxSetCurrent(rig.context());
    static_cast<void>(rig.pools().allocate(rig.context(), 4096, "cuMemAlloc_v2"));
  });
  while (!g_inside.load()) std::this_thread::yield();
  bool inside_at_end = true;
  rig.pools().end_context(
      rig.context(),
      [&] {
        inside_at_end = g_inside.load();
        g_may_leave.store(true);
        return cuDevicePrimaryCtxReset_v2(0);
      },
      [] { return true; });
  other.join();
  CHECK_FALSE(inside_at_end);
  CHECK(now(rig.counters().reserved_bytes) == 0);
}

TEST_CASE("nobody is in the driver with a context while it is being ended") {
  Rig rig;
  rig.expect_violations();
  std::atomic<bool> stop{false};
  std::atomic<bool> ending{false};
  std::atomic<std::uint64_t> served{0};
  const CUcontext context = rig.context();
  std::thread other([&] {
    cuCtxSetCurrent(context);
    while (!stop.load()) {
      const Result<CUdeviceptr> block = rig.pools().allocate(context, 3 * kMiB, "cuMemAlloc_v2");
      if (!block.ok()) continue;
      served.fetch_add(1);
      rig.pools().free(block.value());
    }
  });
  while (served.load() < 100) std::this_thread::yield();
  std::uint64_t in_driver_before = 0;
  std::uint64_t in_driver_after = 0;
  rig.pools().end_context(
      context,
      [&] {
        ending.store(true);
        in_driver_before = cusim_calls("cuMemAlloc_v2") + cusim_calls("cuMemFree_v2") + cusim_calls("cuCtxRecordEvent");
        for (int i = 0; i < 2000; ++i) std::this_thread::yield();
        in_driver_after = cusim_calls("cuMemAlloc_v2") + cusim_calls("cuMemFree_v2") + cusim_calls("cuCtxRecordEvent");
        return cuDevicePrimaryCtxReset_v2(0);
      },
      [] { return true; });
  stop.store(true);
  other.join();
  CHECK(ending.load());
  CHECK(in_driver_before == in_driver_after);
  CHECK(rig.pools().check().empty());
}

TEST_CASE("who comes late has nothing of a primary context that has ended, and nothing is preallocated for it") {
  RigOptions options = on_pages(device_of("256MiB"));
  if (GENERATE(false, true)) options.pool.preallocate = config::parse_amount("75%");
  Rig rig(options);
  rig.expect_violations();
  const CUcontext context = rig.context();
  rig.allocate(kMiB);
  rig.reset_device(0);
  CHECK(rig.pools().allocate(context, kMiB, "cuMemAlloc_v2").code() != CUDA_SUCCESS);  // the driver's answer
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(now(rig.counters().live_blocks) == 0);
  CUcontext again = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(again) == CUDA_SUCCESS);
  rig.pools().context_seen(again, 0);
  CHECK(rig.pools().allocate(again, kMiB, "cuMemAlloc_v2").ok());
  CHECK(rig.pools().check() == "");
}
