// What the driver refuses to tell or to do for the pool itself: nothing stays held, nothing is reused early, no capture ends.
#include <string>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
constexpr std::uint64_t kForEver = 1'000'000'000;
constexpr CUresult kCurious = CUDA_ERROR_UNKNOWN;

RigOptions small(config::Policy policy = config::Policy::grow) {
  RigOptions options;
  options.memory = "128MiB";
  options.pool.policy = policy;
  return options;
}

struct Green {
  CUgreenCtx handle = nullptr;
  CUcontext view = nullptr;
};

/// A green context of device 0, which is current.
Green enter_green() {
  CUdevResource all;
  CUdevResource part;
  unsigned count = 1;
  CUdevResourceDesc description = nullptr;
  Green green;
  REQUIRE(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  REQUIRE(cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, 16) == CUDA_SUCCESS);
  REQUIRE(cuDevResourceGenerateDesc(&description, &part, 1) == CUDA_SUCCESS);
  REQUIRE(cuGreenCtxCreate(&green.handle, description, 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  REQUIRE(cuCtxFromGreenCtx(&green.view, green.handle) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(green.view) == CUDA_SUCCESS);
  return green;
}

/// A block of a second context, freed while a kernel of the primary one still looks at it; then that context ends.
void free_elsewhere_and_end(Rig& rig) {
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  rig.pools().context_seen(second, 0);
  const Result<CUdeviceptr> block = rig.pools().allocate(second, kMiB, "cuMemAlloc_v2");
  REQUIRE(block.ok());
  REQUIRE(cusim_launch_fill(nullptr, block.value(), 4096, 7, 0) == CUDA_SUCCESS);
  rig.use(0);
  REQUIRE(cusim_launch_check(nullptr, block.value(), 4096, 7, 5 * kMs) == CUDA_SUCCESS);
  rig.free(block.value());
  CHECK(rig.pools().end_context(
            second, [&] { return cuCtxDestroy_v2(second); }, [] { return true; }) == CUDA_SUCCESS);
  rig.use(0);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);  // a kernel whose memory has gone breaks its context
}

/// The program frees everything and wants the memory for something that is not the pool's.
std::uint64_t bytes_after_make_room(Rig& rig) {
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  rig.free(block);
  for (int attempt = 0; attempt < 20 && rig.pools().make_room(); ++attempt) {}
  return cusim_used_bytes(0);
}
}  // namespace

TEST_CASE("the pool's own streams are the context's, not of a green context that is current, and outlive that") {
  const auto policy = GENERATE(config::Policy::grow, config::Policy::async);
  Rig rig(small(policy));
  const Green green = enter_green();
  const Result<CUdeviceptr> block = rig.pools().allocate(rig.context(), kMiB, "cuMemAlloc_v2");
  REQUIRE(block.ok());
  rig.use(0);
  REQUIRE(cuGreenCtxDestroy(green.handle) == CUDA_SUCCESS);
  rig.free(block.value());
  rig.pools().make_room();
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("the end of a context waits for what another does with a block that was freed, as the free natively had") {
  SECTION("deferred") {
    Rig rig(small());
    free_elsewhere_and_end(rig);
  }
  SECTION("on a driver that says that it cannot record") {
    Rig rig(small());
    cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_NOT_SUPPORTED, kForEver);
    free_elsewhere_and_end(rig);
  }
  SECTION("sync, when the driver does not know our event") {
    RigOptions options = small();
    options.pool.free = config::FreeMode::sync;
    Rig rig(options);
    cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_INVALID_HANDLE, 1);
    free_elsewhere_and_end(rig);
  }
  SECTION("when no context can be made current for us") {
    Rig rig(small());
    cusim_fail("cuCtxPushCurrent_v2", 1, CUDA_ERROR_INVALID_CONTEXT, kForEver);
    free_elsewhere_and_end(rig);
  }
  SECTION("async, on a driver that says that it cannot record") {
    Rig rig(small(config::Policy::async));
    cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_NOT_SUPPORTED, kForEver);
    free_elsewhere_and_end(rig);
  }
  SECTION("async, on a driver that makes no streams for us") {
    Rig rig(small(config::Policy::async));
    cusim_fail("cuStreamCreate", 1, kCurious, kForEver);
    free_elsewhere_and_end(rig);
  }
}

TEST_CASE("an end does not wait for ever for work that another context goes on with") {
  Rig rig(small());
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  rig.pools().context_seen(second, 0);
  const Result<CUdeviceptr> block = rig.pools().allocate(second, kMiB, "cuMemAlloc_v2");
  REQUIRE(block.ok());
  rig.free(block.value());
  rig.use(0);
  volatile std::uint32_t is_released = 0;
  REQUIRE(cusim_launch_wait_host(nullptr, &is_released) == CUDA_SUCCESS);
  const std::uint64_t begin_ns = cusim_now_ns();
  CHECK(rig.pools().end_context(
            second, [&] { return cuCtxDestroy_v2(second); }, [] { return true; }) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() - begin_ns < 200 * kMs);
  is_released = 1;
  rig.use(0);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("a driver that goes on refusing to take regions in order gets them by cuMemFree, and one that refused once is asked again") {
  Rig rig(small());
  cusim_fail("cuMemFreeAsync", 1, kCurious, kForEver);
  CHECK(bytes_after_make_room(rig) == 0);
  Rig other(small());
  cusim_fail("cuMemFreeAsync", 1, kCurious, 1);
  CHECK(bytes_after_make_room(other) == 0);
  const std::uint64_t plain = cusim_calls("cuMemFree_v2");
  CHECK(bytes_after_make_room(other) == 0);
  CHECK(cusim_calls("cuMemFree_v2") == plain);
}

TEST_CASE("the free that learns that the driver cannot record is the first that synchronises, for those before it too") {
  Rig rig(small());
  cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_NOT_SUPPORTED, kForEver);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(rig.allocate(4 * kKiB));  // the last free is the first that is due
  for (const CUdeviceptr block : blocks) rig.free(block);
  CHECK(now(rig.counters().deferred_bytes) == 0);
}

TEST_CASE("async: whatever one question or call of ours is answered, idle memory goes back when others need it") {
  const auto symbol = GENERATE(as<std::string>{}, "cuMemPoolGetAttribute", "cuMemPoolTrimTo", "cuDeviceGetDefaultMemPool", "cuStreamSynchronize",
                               "cuMemFreeAsync", "cuMemPoolSetAttribute", "cuStreamCreate");
  const auto times = GENERATE(std::uint64_t{1}, kForEver);
  for (std::uint64_t nth = 1; nth <= 6; ++nth) {
    INFO(symbol << " from call " << nth << ", " << times << " times");
    Rig rig(small(config::Policy::async));
    cusim_fail(symbol.c_str(), nth, kCurious, times);
    CHECK(bytes_after_make_room(rig) == 0);
    CHECK(bytes_after_make_room(rig) == 0);
  }
}

TEST_CASE("async: a stream that the driver will not wait for is waited for by an event, and captures live on") {
  Rig rig(small(config::Policy::async));
  rig.free(rig.allocate(kMiB));
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED); }) == CUDA_SUCCESS);
  cusim_fail("cuStreamSynchronize", 1, kCurious, kForEver);
  const CUdeviceptr block = rig.allocate(kMiB);
  CUgraph graph = nullptr;
  CHECK(rig.pools().end_capture(
            stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  CHECK(cuGraphDestroy(graph) == CUDA_SUCCESS);
  rig.free(block);
}

TEST_CASE("async: a free that was put off is given back by a trim") {
  Rig rig(small(config::Policy::async));
  const CUdeviceptr block = rig.allocate(kMiB);
  cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
  rig.free(block);
  REQUIRE(now(rig.counters().deferred_bytes) == kMiB);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().trim();
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("a limit is not said to be passed because the driver did not take a region at the first attempt") {
  const auto symbol = GENERATE(as<std::string>{}, "cuMemFreeAsync", "cuCtxPushCurrent_v2");
  RigOptions options = small();
  options.pool.limit.all = config::parse_amount("64MiB");
  Rig rig(options);
  rig.free(rig.allocate(48 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  cusim_fail(symbol.c_str(), symbol == "cuMemFreeAsync" ? 1 : 2, kCurious, 1);  // the first push may record an event
  CHECK(rig.pools().reserve_outside(0, OutsideKind::array, 32 * kMiB, "cuArrayCreate_v2").ok());
  rig.pools().cancel_outside(0, OutsideKind::array, 32 * kMiB);
}
