// What frameworks ask and set at their start: kept, told back, refused where the documentation refuses.
#include <catch2/catch.hpp>

#include "sim_fixture.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

TEST_CASE("limits and preferences of a context are kept per context") {
  const Simulated sim;
  std::size_t value = 0;
  REQUIRE(cuCtxSetLimit(CU_LIMIT_STACK_SIZE, 4096) == CUDA_SUCCESS);
  CHECK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
  CHECK(value == 4096);
  CHECK(cuCtxGetLimit(&value, CU_LIMIT_PRINTF_FIFO_SIZE) == CUDA_SUCCESS);
  CHECK(value == 8650752);
  CHECK(cuCtxGetLimit(&value, CU_LIMIT_PERSISTING_L2_CACHE_SIZE) == CUDA_SUCCESS);
  CHECK(value == 9830400);
  CHECK(cuCtxGetLimit(&value, CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH) == CUDA_ERROR_UNSUPPORTED_LIMIT);
  CHECK(cuCtxSetLimit(CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH, 2) == CUDA_ERROR_UNSUPPORTED_LIMIT);
  CHECK(cuCtxSetLimit(CU_LIMIT_MAX, 1) == CUDA_ERROR_UNSUPPORTED_LIMIT);
  CHECK(cuCtxSetLimit(CU_LIMIT_MAX_L2_FETCH_GRANULARITY, 129) == CUDA_ERROR_INVALID_VALUE);
  CUfunc_cache cache{};
  REQUIRE(cuCtxSetCacheConfig(CU_FUNC_CACHE_PREFER_L1) == CUDA_SUCCESS);
  CHECK(cuCtxGetCacheConfig(&cache) == CUDA_SUCCESS);
  CHECK(cache == CU_FUNC_CACHE_PREFER_L1);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  CHECK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_SUCCESS);
  CHECK(value == 1024);
  CHECK(cuCtxGetCacheConfig(&cache) == CUDA_SUCCESS);
  CHECK(cache == CU_FUNC_CACHE_PREFER_NONE);
  CHECK(cuCtxSetFlags(CU_CTX_SCHED_YIELD) == CUDA_SUCCESS);
  unsigned flags = 0;
  CHECK(cuCtxGetFlags(&flags) == CUDA_SUCCESS);
  CHECK(flags == CU_CTX_SCHED_YIELD);
  CHECK(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);  // the one below
  CHECK(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(cuCtxGetLimit(&value, CU_LIMIT_STACK_SIZE) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("devices are found by their bus, and linked to each other") {
  const Simulated sim{{"DEVICES", "3"}, {"CUDA_VISIBLE_DEVICES", "2,0"}};
  CUdevice device = -1;
  char bus[32];
  REQUIRE(cuDeviceGetPCIBusId(bus, sizeof bus, 0) == CUDA_SUCCESS);
  CHECK(cuDeviceGetByPCIBusId(&device, bus) == CUDA_SUCCESS);
  CHECK(device == 0);
  CHECK(cuDeviceGetByPCIBusId(&device, "10:00") == CUDA_SUCCESS);
  CHECK(device == 1);
  CHECK(cuDeviceGetByPCIBusId(&device, "0000:11:00.0") == CUDA_ERROR_INVALID_DEVICE);  // not visible
  CHECK(cuDeviceGetByPCIBusId(&device, "nonsense") == CUDA_ERROR_INVALID_VALUE);
  int value = 0;
  CHECK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 1) == CUDA_SUCCESS);
  CHECK(value == 1);
  CHECK(cuDeviceGetP2PAttribute(&value, CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED, 0, 0) == CUDA_ERROR_INVALID_DEVICE);
  CUdevice of_context = -1;
  CHECK(cuCtxGetDevice_v2(&of_context, nullptr) == CUDA_SUCCESS);
  CHECK(of_context == 0);
}

TEST_CASE("hints are for managed memory; a prefetch is work of its stream") {
  const Simulated sim;
  CUdeviceptr managed = 0;
  REQUIRE(cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  const CUdeviceptr plain = Simulated::allocate(kMiB);
  CHECK(cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, 99) == CUDA_SUCCESS);
  CHECK(cuMemAdvise(managed, kMiB, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, 99) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuMemAdvise(plain, kMiB, CU_MEM_ADVISE_SET_READ_MOSTLY, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchAsync(plain, kMiB, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchAsync(managed, kMiB + 1, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchAsync_v2(managed, kMiB, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, 1, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPrefetchAsync_v2(managed, kMiB, {CU_MEM_LOCATION_TYPE_DEVICE, 0}, 0, nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY);
  CHECK(cuCtxSynchronize_v2(nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(nullptr) == CUDA_SUCCESS);
}

TEST_CASE("the dependencies of a capture can be replaced and added to") {
  const Simulated sim;
  const CUstream line = Simulated::stream();
  REQUIRE(cuStreamBeginCapture_v2(line, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(line, 1) == CUDA_SUCCESS);
  CUstreamCaptureStatus status{};
  CUgraph graph = nullptr;
  const CUgraphNode* told = nullptr;
  std::size_t count = 0;
  REQUIRE(cuStreamGetCaptureInfo_v2(line, &status, nullptr, &graph, &told, &count) == CUDA_SUCCESS);
  REQUIRE(count == 1);
  CUgraphNode first = told[0];
  CUgraphNode empty = nullptr;
  REQUIRE(cuGraphAddEmptyNode(&empty, graph, &first, 1) == CUDA_SUCCESS);
  REQUIRE(cuStreamUpdateCaptureDependencies(line, &empty, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES) == CUDA_SUCCESS);
  REQUIRE(cuStreamGetCaptureInfo_v2(line, &status, nullptr, &graph, &told, &count) == CUDA_SUCCESS);
  REQUIRE(count == 1);
  CHECK(told[0] == empty);
  REQUIRE(cuStreamUpdateCaptureDependencies(line, &first, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES) == CUDA_SUCCESS);
  REQUIRE(cuStreamGetCaptureInfo_v2(line, &status, nullptr, &graph, &told, &count) == CUDA_SUCCESS);
  CHECK(count == 2);
  CUgraphNode unknown = reinterpret_cast<CUgraphNode>(0x40);
  CHECK(cuStreamUpdateCaptureDependencies(line, &unknown, 1, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamUpdateCaptureDependencies(Simulated::stream(), &first, 1, 0) == CUDA_ERROR_ILLEGAL_STATE);
  CHECK(cuStreamEndCapture(line, &graph) == CUDA_SUCCESS);
}

TEST_CASE("a variable is found in its module or library, takes its memory once, and goes with it") {
  const Simulated sim{{"VARIABLE_BYTES", "3MiB"}};
  CUmodule module = nullptr;
  CUlibrary library = nullptr;
  REQUIRE(cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
  REQUIRE(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0) == CUDA_SUCCESS);
  const std::uint64_t loaded_bytes = cusim_used_bytes(0);
  CUdeviceptr one = 0, again = 0, other = 0;
  std::size_t bytes = 0;
  REQUIRE(cuModuleGetGlobal_v2(&one, &bytes, module, "x") == CUDA_SUCCESS);
  CHECK(bytes == 3 * kMiB);
  REQUIRE(cuModuleGetGlobal_v2(&again, nullptr, module, "x") == CUDA_SUCCESS);
  CHECK(again == one);
  REQUIRE(cuLibraryGetGlobal(&other, nullptr, library, "x") == CUDA_SUCCESS);
  CHECK(other != one);
  CHECK(cusim_used_bytes(0) == loaded_bytes + 8 * kMiB);
  REQUIRE(cuMemsetD8_v2(one, 1, 3 * kMiB) == CUDA_SUCCESS);
  CHECK(cuLibraryGetManaged(&other, nullptr, library, "x") == CUDA_ERROR_NOT_FOUND);
  CHECK(cuLibraryGetGlobal(&other, nullptr, library, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 0);
  CHECK(cuMemFree_v2(one) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuModuleGetGlobal_v2(&one, nullptr, nullptr, "x") == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cusim_violation_count() == 2);
  REQUIRE(cuModuleUnload(module) == CUDA_SUCCESS);
  REQUIRE(cuLibraryUnload(library) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) + 2 * 2 * kMiB == loaded_bytes);
}

TEST_CASE("a variable that the device has no room for is out of memory until there is") {
  const Simulated sim{{"MEMORY", "16MiB"}, {"VARIABLE_BYTES", "12MiB"}};
  CUmodule module = nullptr;
  CUdeviceptr address = 0;
  REQUIRE(cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
  const CUdeviceptr block = Simulated::allocate(4 * kMiB);
  CHECK(cuModuleGetGlobal_v2(&address, nullptr, module, "x") == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
  CHECK(cuModuleGetGlobal_v2(&address, nullptr, module, "x") == CUDA_SUCCESS);
}
