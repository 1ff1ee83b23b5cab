// Stream-ordered memory for which only the driver's own call was left (rung `native`): its plain free waits for nothing, as natively (CUDA Driver API 13.0,
// cuMemFree), be it for work that waits for this very thread.
#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kMinute = 60'000'000'000;

/// A block of the driver's own for a stream.
CUdeviceptr native_for_stream(Rig& rig) {
  cusim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);  // no region is left, only less
  const CUstream stream = new_stream();
  const Result<CUdeviceptr> block =
      rig.pools().allocate_on(rig.context(), 100 * kKiB, {stream, reinterpret_cast<std::uintptr_t>(stream)}, 1, "cuMemAllocAsync");
  REQUIRE(block.ok());
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  return block.value();
}

std::uint64_t given_back() { return cusim_calls("cuMemFree_v2") + cusim_calls("cuMemFreeAsync"); }

}  // namespace

TEST_CASE("a plain free of stream-ordered memory that is the driver's own waits for nothing") {
  Rig rig;
  const CUdeviceptr block = native_for_stream(rig);
  REQUIRE(cusim_launch_spin(new_stream(), kMinute) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() < kMinute);
  CHECK(given_back() == 1);
  CHECK(now(rig.counters().reserved_bytes) == 0);
}

TEST_CASE("a plain free of plain memory that is the driver's own waits for its work") {
  Rig rig;
  cusim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
  const CUdeviceptr block = rig.allocate(100 * kKiB);
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  REQUIRE(cusim_launch_spin(new_stream(), kMinute) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() >= kMinute);
}

TEST_CASE("a plain free of stream-ordered memory that is the driver's own waits for nothing while something captures, and is made up for later") {
  Rig rig;
  const CUdeviceptr block = native_for_stream(rig);
  const CUstream stream = new_stream();
  REQUIRE(rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED); }) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(new_stream(), kMinute) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() < kMinute);
  CHECK(given_back() == 0);
  CUgraph graph = nullptr;
  CHECK(rig.pools().end_capture(
            stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  cusim_advance_ns(kMinute);
  for (int i = 0; i < 64; ++i) rig.free(rig.allocate(4 * kKiB));
  CHECK(given_back() == 1);
}

TEST_CASE("a plain free of stream-ordered memory that is the driver's own lets nobody wait without end for work that was launched before it") {
  Rig rig(device_of("64MiB"));
  const CUdeviceptr block = native_for_stream(rig);
  const CUdeviceptr large = rig.allocate(24 * kMiB);
  const CUstream stream = new_stream();
  REQUIRE(rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED); }) == CUDA_SUCCESS);
  rig.free(large);  // has no event yet
  CUgraph graph = nullptr;
  CHECK(rig.pools().end_capture(
            stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(new_stream(), kMinute) == CUDA_SUCCESS);
  rig.free(block);
  static_cast<void>(rig.try_allocate(56 * kMiB));  // wants the large one's memory, whose event came with this free
  CHECK(cusim_now_ns() < kMinute);
}

TEST_CASE("where the driver frees nothing in order, a plain free of stream-ordered memory of its own is its plain free") {
  Rig rig;
  const CUdeviceptr block = native_for_stream(rig);
  cusim_fail("cuMemFreeAsync", 1, CUDA_ERROR_INVALID_VALUE, 1000);
  rig.free(block);
  CHECK(cusim_calls("cuMemFree_v2") == 1);
  CHECK(now(rig.counters().reserved_bytes) == 0);
}
