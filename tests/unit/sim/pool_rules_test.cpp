// What memory pools refuse and keep: properties, sharing, access, sizes, places, their end.
#include <catch2/catch.hpp>

#include "pools.hpp"

using sim_test::allocate_async;
using sim_test::attribute;
using sim_test::default_pool;
using sim_test::kMiB;
using sim_test::Simulated;

namespace {

CUmemPoolProps plain_properties() {
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  return properties;
}

}  // namespace

TEST_CASE("properties that no pool can have are refused; what could be shared cannot be exported as something else") {
  const Simulated sim;
  CUmemPoolProps properties = plain_properties();
  CUmemoryPool pool = nullptr;
  SECTION("allocation type") { properties.allocType = CU_MEM_ALLOCATION_TYPE_INVALID; }
  SECTION("location type") { properties.location.type = CU_MEM_LOCATION_TYPE_INVALID; }
  SECTION("current NUMA node") { properties.location.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT; }
  SECTION("no location") { properties.location.type = CU_MEM_LOCATION_TYPE_NONE; }
  SECTION("device") { properties.location.id = 1; }
  SECTION("negative device") { properties.location.id = -1; }
  SECTION("shared host memory") {
    properties.location.type = CU_MEM_LOCATION_TYPE_HOST;
    properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  }
  SECTION("handle types") { properties.handleTypes = static_cast<CUmemAllocationHandleType>(0x40); }
  SECTION("handles of Windows") { properties.handleTypes = CU_MEM_HANDLE_TYPE_WIN32; }
  SECTION("usage") { properties.usage = 1; }
  SECTION("reserved") { properties.reserved[53] = 1; }
  SECTION("security attributes") { properties.win32SecurityAttributes = &pool; }
  CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_INVALID_VALUE);
  CHECK(pool == nullptr);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("only a pool that was created for it can be shared") {
  const Simulated sim;
  CUmemPoolProps properties = plain_properties();
  CUmemoryPool pool = nullptr;
  int descriptor = -1;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  constexpr auto kType = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CHECK(cuMemPoolExportToShareableHandle(&descriptor, pool, kType, 0) == CUDA_ERROR_INVALID_VALUE);
  CUmemPoolPtrExportData data{};
  CHECK(cuMemPoolExportPointer(&data, allocate_async(kMiB, nullptr)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPoolExportPointer(&data, Simulated::allocate(kMiB)) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 0);
  properties.handleTypes = CU_MEM_HANDLE_TYPE_FABRIC;
  CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  properties.handleTypes = kType;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CHECK(cuMemPoolExportToShareableHandle(&descriptor, pool, kType, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cusim_violation_count() == 1);  // loud: sharing is not modelled
}

TEST_CASE("access to a pool is set for all descriptors or for none, and never taken from its own device") {
  const Simulated sim{{"DEVICES", "2"}};
  CUmemAccessDesc wanted[2] = {};
  for (int i = 0; i < 2; ++i) {
    wanted[i].location = {CU_MEM_LOCATION_TYPE_DEVICE, 1 - i};
    wanted[i].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  }
  wanted[1].flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  CHECK(cuMemPoolSetAccess(default_pool(), wanted, 2) == CUDA_ERROR_INVALID_DEVICE);
  wanted[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  CHECK(cuMemPoolSetAccess(default_pool(), wanted, 2) == CUDA_ERROR_NOT_SUPPORTED);
  CUmemAccess_flags flags{};
  CUmemLocation host{CU_MEM_LOCATION_TYPE_HOST, 0};
  flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  REQUIRE(cuMemPoolGetAccess(&flags, default_pool(), &host) == CUDA_SUCCESS);
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  CUmemLocation other{CU_MEM_LOCATION_TYPE_DEVICE, 1};
  REQUIRE(cuMemPoolGetAccess(&flags, default_pool(), &other) == CUDA_SUCCESS);
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
  wanted[1].flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  wanted[0].flags = static_cast<CUmemAccess_flags>(2);
  CHECK(cuMemPoolSetAccess(default_pool(), wanted, 2) == CUDA_ERROR_INVALID_VALUE);
  wanted[0].flags = CU_MEM_ACCESS_FLAGS_PROT_READ;
  REQUIRE(cuMemPoolSetAccess(default_pool(), wanted, 2) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolGetAccess(&flags, default_pool(), &other) == CUDA_SUCCESS);
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READ);
  CHECK(cuMemPoolSetAccess(default_pool(), wanted, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemPoolSetAccess(default_pool(), nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
  other.id = 2;
  CHECK(cuMemPoolGetAccess(&flags, default_pool(), &other) == CUDA_ERROR_INVALID_DEVICE);
  other.type = CU_MEM_LOCATION_TYPE_INVALID;
  CHECK(cuMemPoolGetAccess(&flags, default_pool(), &other) == CUDA_ERROR_INVALID_VALUE);
  // What is granted for reading is not for writing.
  const CUdeviceptr address = allocate_async(kMiB, nullptr);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CUcontext second = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&second, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(nullptr, address, 1, 1, 1) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("a trim keeps at least what it was told to, and a full pool gives up what it does not use") {
  const Simulated sim;
  CUmemPoolProps properties = plain_properties();
  properties.maxSize = 8 * kMiB;
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  std::uint64_t threshold = UINT64_MAX;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
  const CUstream stream = Simulated::stream();
  CUdeviceptr one = 0;
  CUdeviceptr two = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&one, 2 * kMiB, pool, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocFromPoolAsync(&two, 6 * kMiB, pool, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(one, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(two, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolTrimTo(pool, 4 * kMiB) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 6 * kMiB);
  REQUIRE(cuMemPoolTrimTo(pool, 7 * kMiB) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 6 * kMiB);
  CHECK(cuMemAllocFromPoolAsync(&one, 8 * kMiB, pool, stream) == CUDA_SUCCESS);
  CHECK(cuMemAllocFromPoolAsync(&two, 1, pool, stream) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("the forms of CUDA 13 name a pool by its place") {
  const Simulated sim;
  CUmemLocation place{CU_MEM_LOCATION_TYPE_DEVICE, 0};
  constexpr auto kPinned = CU_MEM_ALLOCATION_TYPE_PINNED;
  CUmemoryPool found = nullptr;
  REQUIRE(cuMemGetDefaultMemPool(&found, &place, kPinned) == CUDA_SUCCESS);
  CHECK(found == default_pool());
  CUmemPoolProps properties = plain_properties();
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  REQUIRE(cuMemSetMemPool(&place, kPinned, pool) == CUDA_SUCCESS);
  CHECK(cuDeviceGetMemPool(&found, 0) == CUDA_SUCCESS);
  CHECK(found == pool);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  REQUIRE(cuMemGetMemPool(&found, &place, kPinned) == CUDA_SUCCESS);
  CHECK(found == default_pool());
  CHECK(cusim_violation_count() == 0);
  CHECK(cuMemSetMemPool(&place, kPinned, pool) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 1);
  CHECK(cuMemGetMemPool(&found, &place, CU_MEM_ALLOCATION_TYPE_INVALID) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemGetMemPool(&found, nullptr, kPinned) == CUDA_ERROR_INVALID_VALUE);
  place.id = 5;
  CHECK(cuMemGetMemPool(&found, &place, kPinned) == CUDA_ERROR_INVALID_DEVICE);
  place.type = CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  CHECK(cuMemGetMemPool(&found, &place, kPinned) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a destroyed pool lives on in its allocations, and no longer") {
  const Simulated sim;
  CUmemPoolProps properties = plain_properties();
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  std::uint64_t threshold = UINT64_MAX;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
  const CUstream stream = Simulated::stream();
  CUdeviceptr address = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&address, 3 * kMiB, pool, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(stream, address, 3 * kMiB, 1, 10) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);  // its threshold died with it
  CHECK(cusim_violation_count() == 0);
  CHECK(cuMemAllocFromPoolAsync(&address, 1, pool, stream) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a driver of CUDA 13.5 takes the one locality domain of a device for the device") {
  CUmemLocation domain{static_cast<CUmemLocationType>(6), 1};
  CUmemPoolProps properties = plain_properties();
  properties.location = domain;
  CUmemAllocationProp physical{};
  physical.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  physical.location = domain;
  CUmemoryPool pool = nullptr;
  CUmemGenericAllocationHandle handle = 0;
  {
    const Simulated sim{{"DEVICES", "2"}};
    CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemGetDefaultMemPool(&pool, &domain, CU_MEM_ALLOCATION_TYPE_PINNED) == CUDA_ERROR_INVALID_VALUE);
  }
  const Simulated sim{{"DEVICES", "2"}, {"DRIVER_VERSION", "13050"}};
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CUdeviceptr block = 0;
  const std::uint64_t before = cusim_used_bytes(1);
  REQUIRE(cuMemAllocFromPoolAsync(&block, 4 * kMiB, pool, nullptr) == CUDA_SUCCESS);
  REQUIRE(cuMemCreate(&handle, 2 * kMiB, &physical, 0) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(1) == before + 6 * kMiB);
  CHECK(cuMemGetDefaultMemPool(&pool, &domain, CU_MEM_ALLOCATION_TYPE_MANAGED) == CUDA_ERROR_INVALID_VALUE);
  properties.location.id = physical.location.id = 256;  // a second domain of device 0
  CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 0);
}
