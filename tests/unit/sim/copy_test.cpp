// Copies and sets move bytes, at the right moment, within live memory only.
#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "sim_fixture.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

namespace {

std::vector<unsigned char> pattern(std::size_t bytes, unsigned char start) {
  std::vector<unsigned char> data(bytes);
  std::iota(data.begin(), data.end(), start);
  return data;
}

}  // namespace

TEST_CASE("bytes go to the device, across it and back") {
  const Simulated sim;
  const auto data = pattern(3 * kMiB + 17, 5);
  const CUdeviceptr from = Simulated::allocate(data.size());
  const CUdeviceptr to = Simulated::allocate(data.size() + 100);
  REQUIRE(cuMemcpyHtoD_v2(from, data.data(), data.size()) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyDtoD_v2(to + 100, from, data.size()) == CUDA_SUCCESS);
  std::vector<unsigned char> back(data.size());
  REQUIRE(cuMemcpyDtoH_v2(back.data(), to + 100, back.size()) == CUDA_SUCCESS);
  CHECK(back == data);
  std::fill(back.begin(), back.end(), static_cast<unsigned char>(0));
  REQUIRE(cuMemcpy(reinterpret_cast<CUdeviceptr>(back.data()), from, back.size()) == CUDA_SUCCESS);
  CHECK(back == data);
}

TEST_CASE("an asynchronous copy happens at its completion, and stages unpinned host memory") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUdeviceptr device = Simulated::allocate(1000);
  void* pinned_pointer = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned_pointer, 1000, 0) == CUDA_SUCCESS);
  auto* pinned = static_cast<unsigned char*>(pinned_pointer);
  std::vector<unsigned char> pageable(1000, 1);
  std::memset(pinned, 1, 1000);
  SECTION("a pinned source is read late") {
    REQUIRE(cuMemcpyHtoDAsync_v2(device, pinned, 1000, stream) == CUDA_SUCCESS);
    std::memset(pinned, 2, 1000);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoH_v2(pageable.data(), device, 1000) == CUDA_SUCCESS);
    CHECK(pageable[999] == 2);
  }
  SECTION("a pageable source is read at the call") {
    REQUIRE(cuMemcpyHtoDAsync_v2(device, pageable.data(), 1000, stream) == CUDA_SUCCESS);
    std::fill(pageable.begin(), pageable.end(), static_cast<unsigned char>(2));
    REQUIRE(cuMemcpyDtoHAsync_v2(pageable.data(), device, 1000, stream) == CUDA_SUCCESS);
    CHECK(pageable[999] == 1);  // a pageable destination is complete when the call returns
  }
  SECTION("a pinned destination is written late") {
    REQUIRE(cuMemsetD8Async(device, 9, 1000, stream) == CUDA_SUCCESS);
    REQUIRE(cuMemcpyDtoHAsync_v2(pinned, device, 1000, stream) == CUDA_SUCCESS);
    CHECK(pinned[0] == 1);
    CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
    cusim_advance_ns(10'000);
    CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
    CHECK(pinned[999] == 9);
  }
}

TEST_CASE("rows are copied with their pitches") {
  const Simulated sim;
  std::size_t pitch = 0;
  CUdeviceptr device = 0;
  REQUIRE(cuMemAllocPitch_v2(&device, &pitch, 100, 10, 4) == CUDA_SUCCESS);
  const auto data = pattern(1000, 1);
  CUDA_MEMCPY2D_v2 copy{};
  copy.srcMemoryType = CU_MEMORYTYPE_HOST;
  copy.srcHost = data.data();
  copy.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  copy.dstDevice = device;
  copy.dstPitch = pitch;
  copy.WidthInBytes = 100;
  copy.Height = 10;
  REQUIRE(cuMemcpy2D_v2(&copy) == CUDA_SUCCESS);
  std::vector<unsigned char> row(100);
  REQUIRE(cuMemcpyDtoH_v2(row.data(), device + 9 * pitch, 100) == CUDA_SUCCESS);
  CHECK(std::memcmp(row.data(), data.data() + 900, 100) == 0);
  copy.dstPitch = 50;
  CHECK(cuMemcpy2D_v2(&copy) == CUDA_ERROR_INVALID_VALUE);
  copy.dstMemoryType = CU_MEMORYTYPE_ARRAY;
  CHECK(cuMemcpy2D_v2(&copy) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("sets write their elements, in one row or many") {
  const Simulated sim;
  const CUdeviceptr device = Simulated::allocate(4096);
  REQUIRE(cuMemsetD32_v2(device, 0x01020304, 1024) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD2D8_v2(device + 8, 512, 0xee, 4, 3) == CUDA_SUCCESS);
  std::vector<unsigned char> bytes(4096);
  REQUIRE(cuMemcpyDtoH_v2(bytes.data(), device, 4096) == CUDA_SUCCESS);
  CHECK(bytes[0] == 4);
  CHECK(bytes[3] == 1);
  CHECK(bytes[8] == 0xee);
  CHECK(bytes[12] == 4);
  CHECK(bytes[1024 + 11] == 0xee);
  CHECK(bytes[1536 + 8] == 4);
  CHECK(cuMemsetD32_v2(device + 2, 0, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemsetD8_v2(device, 0, 4097) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("copies outside of live memory are refused and are violations") {
  const Simulated sim;
  const CUdeviceptr device = Simulated::allocate(1000);
  const CUdeviceptr neighbour = Simulated::allocate(1000);
  std::vector<char> host(3000);
  CHECK(cuMemcpyHtoD_v2(device, host.data(), 1001) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyDtoH_v2(host.data(), device + 999, 2) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemFree_v2(neighbour) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoH_v2(host.data(), neighbour, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD_v2(device, reinterpret_cast<void*>(device), 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 4);
}

TEST_CASE("a copy between devices needs no peer access, a kernel does") {
  const Simulated sim{{"DEVICES", "2"}};
  const CUdeviceptr here = Simulated::allocate(100);
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  const CUdeviceptr there = Simulated::allocate(100);
  REQUIRE(cuMemsetD8_v2(there, 7, 100) == CUDA_SUCCESS);
  REQUIRE(cuMemcpyPeer(here, sim.context, there, other, 100) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(nullptr, there, 100, 7, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(sim.context) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(nullptr, here, 100, 7, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  REQUIRE(cuCtxEnablePeerAccess(other, 0) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(nullptr, there, 100, 7, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuCtxDisablePeerAccess(other) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(nullptr, there, 100, 7, 1) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK_THAT(Simulated::last_violation(), Catch::Contains("no access"));
}

TEST_CASE("a synchronous copy with pinned memory waits, by a unified address as well") {
  const Simulated sim;
  const CUdeviceptr device = Simulated::allocate(100);
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, 100, 0) == CUDA_SUCCESS);
  const std::uint64_t before_ns = cusim_now_ns();
  REQUIRE(cuMemcpy(reinterpret_cast<CUdeviceptr>(pinned), device, 100) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() > before_ns);
}

TEST_CASE("slices are copied with both sides' pitches and heights, between devices with each side's own rights") {
  const Simulated sim{{"DEVICES", "2"}};
  const auto data = pattern(4 * 3 * 2, 1);  // 2 slices of 3 rows of 4 bytes
  const CUdeviceptr near = Simulated::allocate(4096);
  CUDA_MEMCPY3D in{};
  in.srcMemoryType = CU_MEMORYTYPE_HOST;
  in.srcHost = data.data();
  in.srcPitch = 4;
  in.srcHeight = 3;
  in.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  in.dstDevice = near;
  in.dstPitch = 64;
  in.dstHeight = 5;
  in.dstXInBytes = 8;
  in.dstY = 1;
  in.dstZ = 1;
  in.WidthInBytes = 4;
  in.Height = 3;
  in.Depth = 2;
  REQUIRE(cuMemcpy3D_v2(&in) == CUDA_SUCCESS);
  std::vector<unsigned char> raw(4096);
  REQUIRE(cuMemcpyDtoH_v2(raw.data(), near, raw.size()) == CUDA_SUCCESS);
  CHECK(raw[(1 * 5 + 1) * 64 + 8] == data[0]);
  CHECK(raw[(2 * 5 + 3) * 64 + 11] == data[23]);
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  const CUdeviceptr far = Simulated::allocate(24);
  CUDA_MEMCPY3D_PEER across{};
  across.srcMemoryType = across.dstMemoryType = CU_MEMORYTYPE_DEVICE;
  across.srcDevice = near;
  across.srcPitch = 64;
  across.srcHeight = 5;
  across.srcXInBytes = 8;
  across.srcY = 1;
  across.srcZ = 1;
  across.srcContext = sim.context;
  across.dstDevice = far;
  across.dstPitch = 4;
  across.dstHeight = 3;
  across.dstContext = other;
  across.WidthInBytes = 4;
  across.Height = 3;
  across.Depth = 2;
  REQUIRE(cuMemcpy3DPeerAsync(&across, nullptr) == CUDA_SUCCESS);
  std::vector<unsigned char> back(24);
  REQUIRE(cuMemcpyDtoH_v2(back.data(), far, back.size()) == CUDA_SUCCESS);
  CHECK(back == data);
  across.srcContext = nullptr;
  CHECK(cuMemcpy3DPeerAsync(&across, nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  across.srcContext = sim.context;
  across.dstPitch = 3;
  CHECK(cuMemcpy3DPeer(&across) == CUDA_ERROR_INVALID_VALUE);
  in.reserved0 = &in;
  CHECK(cuMemcpy3D_v2(&in) == CUDA_ERROR_INVALID_VALUE);
}
