// Errors that the driver tells us on the way are the program's, as themselves; never out of memory.
#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("a sticky error met by an event query is returned as itself from the allocation that met it") {
  Rig rig;
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 1'000'000) == CUDA_SUCCESS);
  rig.free(block);
  cusim_break_context(rig.context(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.try_allocate(64 * kMiB).code() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.pools().take_untold_oom() == 0);
  CHECK(now(rig.counters().failed_allocations) == 1);
}

TEST_CASE("a sticky error that only the event query tells is returned as itself, although the pool could grow") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 1'000'000) == CUDA_SUCCESS);
  rig.free(block);
  cusim_fail("cuEventQuery", 1, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
  CHECK(rig.try_allocate(64 * kMiB).code() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.pools().take_untold_oom() == 0);
  CHECK(rig.try_allocate(64 * kMiB).ok());
}

TEST_CASE("a sticky error met by growth is returned as itself") {
  Rig rig;
  rig.allocate(4096);
  cusim_break_context(rig.context(), CUDA_ERROR_LAUNCH_FAILED);
  CHECK(rig.try_allocate(200 * kMiB).code() == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(rig.pools().take_untold_oom() == 0);
}

TEST_CASE("every error after which cuda.h says that a process cannot go on is one of earlier work, also in another context") {
  for (const CUresult code : {CUDA_ERROR_CONTAINED, CUDA_ERROR_TENSOR_MEMORY_LEAK, CUDA_ERROR_MPS_CLIENT_TERMINATED, CUDA_ERROR_EXTERNAL_DEVICE,
                              CUDA_ERROR_HARDWARE_STACK_ERROR, CUDA_ERROR_ASSERT, CUDA_ERROR_ECC_UNCORRECTABLE}) {
    INFO("code " << static_cast<int>(code));
    RigOptions options;
    options.devices = 2;
    Rig rig(options);
    const CUdeviceptr block = rig.allocate(64 * kMiB);
    cusim_break_context(rig.context(1), code);
    rig.free(block);
    CHECK(rig.allocate(64 * kMiB) == block);  // nothing of the broken context runs: not waited for
    rig.free(block);
    cusim_break_context(rig.context(), code);
    CHECK(rig.try_allocate(900 * kMiB).code() == code);
    CHECK(rig.pools().take_untold_oom() == 0);
  }
}

TEST_CASE("sync: a synchronise that fails is the free's answer, and the block stays live") {
  RigOptions options;
  options.pool.free = config::FreeMode::sync;
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(4096);
  cusim_break_context(rig.context(), CUDA_ERROR_ILLEGAL_ADDRESS);
  const FreeResult result = rig.pools().free(block);
  CHECK(result.outcome == FreeOutcome::failed);
  CHECK(result.error.code == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.pools().find(block, nullptr) == Ownership::live);
}

TEST_CASE("sync: a sticky error that a free meets says nothing of another context's work: what was freed before waits for that") {
  RigOptions options;
  options.pool.free = config::FreeMode::sync;
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(4096);
  const CUstream stream = new_stream();
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  const CUdeviceptr of_other = rig.pools().allocate(other, 4096, "cuMemAlloc_v2").value();
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.use(0);
  constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;  // this thread may wait for nothing then
  REQUIRE(rig.pools().begin_capture(
              stream, [&] { return cuStreamBeginCapture_v2(stream, kGlobal); }, kGlobal) == CUDA_SUCCESS);
  rig.free(of_other);
  CUgraph graph = nullptr;
  REQUIRE(rig.pools().end_capture(
              stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  cusim_break_context(rig.context(), CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.pools().free(block).error.code == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(now(rig.counters().deferred_bytes) == 4096);
  released = 1;
}

TEST_CASE("a due free meets the sticky error and returns it") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  cusim_break_context(rig.context(), CUDA_ERROR_ILLEGAL_ADDRESS);
  const FreeResult result = rig.pools().free(block);
  CHECK(result.outcome == FreeOutcome::failed);
  CHECK(result.error.code == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("another context's sticky error is not this one's") {
  RigOptions options;
  options.devices = 2;
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  cusim_break_context(rig.context(1), CUDA_ERROR_ILLEGAL_ADDRESS);
  rig.free(block);
  CHECK(rig.allocate(64 * kMiB) == block);
}

TEST_CASE("a driver that is going down is not called again") {
  Rig rig;
  rig.expect_violations();
  const CUdeviceptr big = rig.allocate(64 * kMiB);
  const CUdeviceptr small = rig.allocate(4096);
  cusim_deinitialize();
  CHECK(rig.pools().free(big).outcome == FreeOutcome::freed);
  const std::uint64_t calls = cusim_total_calls();
  CHECK(rig.pools().free(small).outcome == FreeOutcome::freed);
  CHECK(rig.pools().allocate(rig.context(), 500 * kMiB, "cuMemAlloc_v2").code() == CUDA_ERROR_DEINITIALIZED);
  CHECK(rig.pools().trim() == 0);
  CHECK(cusim_total_calls() == calls);
}

TEST_CASE("a free that meets a driver which is going down: a pooled block's is a success, the driver's own block gets the driver's answer") {
  RigOptions options;
  options.pool.policy = GENERATE(config::Policy::grow, config::Policy::async, config::Policy::platform);
  options.pool.free = GENERATE(config::FreeMode::deferred, config::FreeMode::sync, config::FreeMode::immediate);
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  Rig rig(options);
  rig.expect_violations();
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  const CUdeviceptr other = rig.allocate(64 * kMiB);
  cusim_deinitialize();
  const bool is_native = options.pool.policy == config::Policy::platform;
  INFO(static_cast<int>(options.pool.policy) << static_cast<int>(options.pool.free) << static_cast<int>(options.pool.backing));
  for (const CUdeviceptr one : {block, other}) {
    const FreeResult result = rig.pools().free(one);
    CHECK(result.outcome == (is_native ? FreeOutcome::failed : FreeOutcome::freed));
    if (is_native) CHECK(result.error.code == CUDA_ERROR_DEINITIALIZED);
  }
}

TEST_CASE("after exit has begun a free is bookkeeping, and a report can still be made") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(4096);
  rig.pools().stop_calling_driver();
  const std::uint64_t calls = cusim_total_calls();
  CHECK(rig.pools().free_while_exiting(block));
  CHECK_FALSE(rig.pools().free_while_exiting(0x1234));
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(rig.snapshot().devices.size() == 1);
  CHECK(cusim_total_calls() == calls);
}
