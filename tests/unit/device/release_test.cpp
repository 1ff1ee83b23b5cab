// Regions on their way back to the driver, and what a fence makes of another context's errors.
#include <catch2/catch.hpp>

#include <vector>

#include "pool/observe/report.hpp"
#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// A device that gets to a free in stream order 20 ms after the one before, or never.
volatile std::uint32_t g_may_free = 0;
CUresult CUDAAPI free_late(CUdeviceptr address, CUstream stream) {
  REQUIRE(cusim_launch_spin(stream, 20 * kMs) == CUDA_SUCCESS);
  return cuMemFreeAsync(address, stream);
}
CUresult CUDAAPI free_when_told(CUdeviceptr address, CUstream stream) {
  REQUIRE(cusim_launch_wait_host(stream, &g_may_free) == CUDA_SUCCESS);
  return cuMemFreeAsync(address, stream);
}

template <auto kFree> RigOptions late() {
  RigOptions options;
  options.memory = "512MiB";
  options.patch = [](DriverApi& api) { api.cuMemFreeAsync = kFree; };
  return options;
}

StreamName name_of(CUstream stream) { return {stream, reinterpret_cast<std::uintptr_t>(stream)}; }

}  // namespace

TEST_CASE("a driver that takes no cuMemAlloc memory in cuMemFreeAsync: the region stays, and goes by cuMemFree while nothing runs") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  rig.free(block);
  cusim_fail("cuMemFreeAsync", 1, CUDA_ERROR_INVALID_VALUE, 1);
  volatile std::uint32_t released = 0;
  const CUstream stream = new_stream();
  REQUIRE(cusim_launch_wait_host(stream, &released) == CUDA_SUCCESS);
  CHECK_FALSE(rig.pools().make_room());  // nothing was given back, and nobody waited for the kernel
  CHECK(cusim_calls("cuMemFree_v2") == 0);
  CHECK(now(rig.counters().reserved_bytes) == 64 * kMiB);
  CHECK(rig.pools().check() == "");
  released = 1;
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(rig.pools().make_room());
  CHECK(cusim_calls("cuMemFreeAsync") == 1);
  CHECK(cusim_calls("cuMemFree_v2") == 1);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("a context that gets no stream to release by gives regions back by cuMemFree while nothing runs") {
  Rig rig;
  cusim_fail("cuStreamCreate", 1, CUDA_ERROR_OUT_OF_MEMORY, 100);
  rig.free(rig.allocate(64 * kMiB));
  CHECK(rig.pools().make_room());
  CHECK(cusim_calls("cuMemFreeAsync") == 0);
  CHECK(cusim_calls("cuMemFree_v2") == 1);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("a stream to release by that was refused once is there the next time, and nobody waits for the GPU") {
  for (const CUresult code : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_UNKNOWN}) {
    Rig rig;
    cusim_fail("cuStreamCreate", 1, code, 1);
    rig.free(rig.allocate(64 * kMiB));
    volatile std::uint32_t released = 0;
    REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
    CHECK(rig.pools().make_room());
    CHECK(cusim_calls("cuMemFreeAsync") == 1);
    CHECK(cusim_calls("cuMemFree_v2") == 0);
    CHECK(cusim_used_bytes(0) == 0);
    released = 1;
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  }
}

TEST_CASE("an error of another context that does not end it proves nothing: the block stays deferred") {
  RigOptions options;
  options.devices = 2;
  Rig rig(options);
  rig.use(1);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.use(0);
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  rig.free(block);  // a full batch: closed, with an event in each context
  REQUIRE(now(rig.counters().deferred_bytes) == 64 * kMiB);
  cusim_advance_ns(1 * kMs);  // device 0 was done at the free, device 1 is not
  cusim_fail("cuEventQuery", 1, CUDA_ERROR_UNKNOWN, 1);
  CHECK(rig.pools().trim() == 0);
  CHECK(now(rig.counters().deferred_bytes) == 64 * kMiB);
  cusim_advance_ns(6 * kMs);
  CHECK(rig.pools().trim() == 64 * kMiB);
}

TEST_CASE(
    "a driver without events for a context: a stream-ordered allocation waits a second at most for other streams, and only for those it needs") {
  RigOptions options = limited_to("64MiB");
  options.driver_version = "12040";
  Rig rig(options);
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  const Result<CUdeviceptr> block = rig.pools().allocate_on(rig.context(), 40 * kMiB, name_of(first), 1, "cuMemAllocAsync");
  REQUIRE(block.ok());
  volatile std::uint32_t released = 0;
  bool needed = false;
  SECTION("they wait for the host") {
    needed = true;
    REQUIRE(cusim_launch_wait_host(first, &released) == CUDA_SUCCESS);
  }
  SECTION("another one does") { REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS); }
  REQUIRE(rig.pools().free_on(block.value(), rig.context(), name_of(first)).outcome == FreeOutcome::freed);
  const Result<CUdeviceptr> other = rig.pools().allocate_on(rig.context(), 50 * kMiB, name_of(second), 1, "cuMemAllocAsync");
  CHECK(other.code() == (needed ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS));
  CHECK(cusim_now_ns() <= 2000 * kMs);
  CHECK(cusim_calls("cuCtxSynchronize") == 0);
  released = 1;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a stream is not made to wait for others when what they freed is not enough") {
  Rig rig(limited_to("64MiB"));
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  const Result<CUdeviceptr> block = rig.pools().allocate_on(rig.context(), 4 * kMiB, name_of(first), 1, "cuMemAllocAsync");
  REQUIRE(block.ok());
  const CUdeviceptr kept = rig.allocate(56 * kMiB);
  CHECK_FALSE(rig.try_allocate(40 * kMiB).ok());  // from now on frees are stamped
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(first, &released) == CUDA_SUCCESS);
  REQUIRE(rig.pools().free_on(block.value(), rig.context(), name_of(first)).outcome == FreeOutcome::freed);
  CHECK(rig.pools().allocate_on(rig.context(), 30 * kMiB, name_of(second), 1, "cuMemAllocAsync").code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_calls("cuStreamWaitEvent") == 0);
  released = 1;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.free(kept);
}

TEST_CASE("async: two contexts of a device tell the idle bytes of its one pool once") {
  RigOptions options = limited_to("128MiB");
  options.pool.policy = config::Policy::async;
  Rig rig(options);
  rig.free(rig.allocate(60 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  rig.pools().context_seen(second, 0);
  for (int i = 0; i < 3; ++i) {
    REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
    rig.free(rig.allocate(60 * kMiB));
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    rig.use(0);
    rig.free(rig.allocate(60 * kMiB));
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(now(rig.counters().reserved_bytes) <= 128 * kMiB);
    CHECK(rig.pools().check() == "");
  }
}

TEST_CASE("pages: they go back by their own calls, whatever runs or captures, on a driver without cuMemFreeAsync too") {
  const bool captures = GENERATE(false, true);
  RigOptions options = limited_to("96MiB");
  options.pool.backing = config::Backing::pages;
  options.patch = [](DriverApi& api) { api.cuMemFreeAsync = nullptr; };
  Rig rig(options);
  rig.free(rig.allocate(64 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.free(rig.allocate(64 * kMiB));  // finds the first one over
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.allocate(4096);
  const CUstream stream = new_stream();
  volatile std::uint32_t released = 0;
  if (captures) {
    const auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    REQUIRE(rig.pools().begin_capture(
                stream, [&] { return cuStreamBeginCapture_v2(stream, mode); }, mode) == CUDA_SUCCESS);
  } else {
    REQUIRE(cusim_launch_wait_host(stream, &released) == CUDA_SUCCESS);
  }
  const std::uint64_t before_ns = cusim_now_ns();
  CHECK(rig.pools().reserve_outside(0, OutsideKind::array, 80 * kMiB, "cuArrayCreate_v2").ok());  // the pool makes room within the limit
  CHECK(now(rig.counters().handles_released) != 0);
  CHECK(cusim_now_ns() - before_ns < kMs);
  rig.pools().cancel_outside(0, OutsideKind::array, 80 * kMiB);
  released = 1;
  CUgraph graph = nullptr;
  if (captures)
    CHECK(rig.pools().end_capture(
              stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
}

TEST_CASE("regions that the device is slow to take back are waited for before memory is out") {
  Rig rig(late<&free_late>());
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 7; ++i) blocks.push_back(rig.allocate(64 * kMiB));
  for (const CUdeviceptr block : blocks) rig.free(block);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const CUdeviceptr large = rig.allocate(400 * kMiB);
  CHECK(cusim_now_ns() >= 100 * kMs);
  CHECK(rig.pools().check() == "");
  rig.free(large);
}

TEST_CASE("regions that the device is slow to take back are waited for also where the driver gives no event for that") {
  Rig rig(late<&free_late>());
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 7; ++i) blocks.push_back(rig.allocate(64 * kMiB));
  for (const CUdeviceptr block : blocks) rig.free(block);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  cusim_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, GENERATE(1u, 1000u));
  const CUdeviceptr large = rig.allocate(400 * kMiB);
  CHECK(cusim_now_ns() >= 100 * kMs);
  CHECK(rig.pools().check() == "");
  rig.free(large);
}

TEST_CASE("regions that the device is slow to take back are free memory to cuMemGetInfo, once") {
  Rig rig(late<&free_late>());
  std::size_t before_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&before_bytes, &total_bytes) == CUDA_SUCCESS);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 7; ++i) blocks.push_back(rig.allocate(64 * kMiB));
  for (const CUdeviceptr block : blocks) rig.free(block);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(rig.pools().trim() != 0);
  const auto told_bytes = [&] {
    std::size_t free_bytes = 0;
    REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
    rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);
    return free_bytes;
  };
  CHECK(told_bytes() == before_bytes);  // 448 MiB in 140 ms
  const CUdeviceptr large = rig.allocate(128 * kMiB);
  CHECK(told_bytes() == before_bytes - 128 * kMiB);
  rig.free(large);
}

TEST_CASE("memory outside the pool gets regions that the device is slow to take back") {
  Rig rig(late<&free_late>());
  rig.free(rig.allocate(400 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CUdeviceptr own = 0;
  while (cuMemAlloc_v2(&own, 400 * kMiB) != CUDA_SUCCESS) REQUIRE(rig.pools().make_room());
  CHECK(cuMemFree_v2(own) == CUDA_SUCCESS);
}

TEST_CASE("regions that the device does not take back for seconds are told as what waits, and not as somebody else's") {
  Rig rig(late<&free_when_told>());
  g_may_free = 0;
  rig.free(rig.allocate(400 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(rig.try_allocate(450 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_now_ns() >= 1000 * kMs);
  const observe::Snapshot seen = rig.snapshot();
  REQUIRE(seen.ooms.size() == 1);
  CHECK(seen.ooms[0].evidence.deferred_bytes == 400 * kMiB);
  CHECK(observe::classify(seen.ooms[0].evidence, {}).cause == observe::OomCause::deferred_free);
  g_may_free = 1;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(rig.allocate(450 * kMiB) != 0);
}

TEST_CASE("on pages a call outside the pool that lacks a little gets a little of what was preallocated") {
  RigOptions options;
  options.memory = "1GiB";
  options.pool.preallocate = config::parse_amount("75%");
  options.pool.backing = config::Backing::pages;
  Rig rig(options);
  rig.allocate(kMiB);
  const std::uint64_t before_bytes = cusim_used_bytes(0);
  REQUIRE(before_bytes >= 700 * kMiB);
  REQUIRE(rig.pools().make_room_for(0, kGiB - before_bytes + 40 * kMiB));
  CHECK(cusim_used_bytes(0) <= before_bytes - 40 * kMiB);
  CHECK(cusim_used_bytes(0) >= before_bytes - 100 * kMiB);
  CHECK_FALSE(rig.pools().make_room_for(7, kMiB));  // no such device
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: a trim that is to keep so much keeps no less, whatever handles there are") {
  RigOptions options;
  options.pool.backing = config::Backing::pages;
  Rig rig(options);
  for (const std::uint64_t keep_bytes : {99 * kMiB, 70 * kMiB, 33 * kMiB, 3 * kMiB}) {
    rig.free(rig.allocate(100 * kMiB));
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    rig.pools().trim(0, keep_bytes);
    CHECK(now(rig.counters().deferred_bytes) == 0);
    CHECK(now(rig.counters().reserved_bytes) >= keep_bytes);
  }
}
