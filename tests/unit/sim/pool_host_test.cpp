// Memory pools on the host and of managed memory: found by their place, charged to no device, reached by devices that were given access.
#include <catch2/catch.hpp>
#include <set>
#include <utility>

#include "pools.hpp"

using sim_test::allocate_async;
using sim_test::attribute;
using sim_test::kMiB;
using sim_test::Simulated;

namespace {

constexpr auto kPinned = CU_MEM_ALLOCATION_TYPE_PINNED;
constexpr auto kManaged = CU_MEM_ALLOCATION_TYPE_MANAGED;

CUmemoryPool default_of(CUmemLocationType where, CUmemAllocationType type, int id = 0) {
  CUmemLocation place{where, id};
  CUmemoryPool pool = nullptr;
  return cuMemGetDefaultMemPool(&pool, &place, type) == CUDA_SUCCESS ? pool : nullptr;
}

CUmemPoolProps properties_of(CUmemLocationType where, CUmemAllocationType type) {
  CUmemPoolProps properties{};
  properties.allocType = type;
  properties.location.type = where;
  return properties;
}

CUdeviceptr allocate_from(CUmemoryPool pool, std::size_t bytes, CUstream stream) {
  CUdeviceptr address = 0;
  REQUIRE(cuMemAllocFromPoolAsync(&address, bytes, pool, stream) == CUDA_SUCCESS);
  return address;
}

template <class T> T told(CUdeviceptr address, CUpointer_attribute which) {
  T value{};
  REQUIRE(cuPointerGetAttribute(&value, which, address) == CUDA_SUCCESS);
  return value;
}

}  // namespace

TEST_CASE("each place has a default pool of its own, which is current until another of the same place is, and cannot be destroyed") {
  const Simulated sim;
  const CUmemoryPool host = default_of(CU_MEM_LOCATION_TYPE_HOST, kPinned);
  const CUmemoryPool node = default_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, kPinned);
  const CUmemoryPool managed = default_of(CU_MEM_LOCATION_TYPE_DEVICE, kManaged);
  const CUmemoryPool managed_anywhere = default_of(CU_MEM_LOCATION_TYPE_NONE, kManaged);
  const std::set<CUmemoryPool> all{nullptr, host, node, managed, managed_anywhere, sim_test::default_pool()};
  CHECK(all.size() == 6);
  CHECK(default_of(CU_MEM_LOCATION_TYPE_HOST, kPinned, 7) == host);  // its number says nothing
  CHECK(default_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, kPinned, 7) == nullptr);
  CHECK(default_of(CU_MEM_LOCATION_TYPE_NONE, kPinned) == nullptr);
  CHECK(default_of(CU_MEM_LOCATION_TYPE_DEVICE, kManaged, 7) == nullptr);
  CHECK(cuMemPoolDestroy(host) == CUDA_ERROR_INVALID_VALUE);
  CUmemPoolProps properties = properties_of(CU_MEM_LOCATION_TYPE_HOST, kPinned);
  CUmemoryPool pool = nullptr, found = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CUmemLocation place{CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
  CHECK(cuMemSetMemPool(&place, kPinned, pool) == CUDA_ERROR_INVALID_VALUE);
  place.type = CU_MEM_LOCATION_TYPE_HOST;
  CHECK(cuMemSetMemPool(&place, kManaged, pool) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceSetMemPool(0, pool) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemSetMemPool(&place, kPinned, pool) == CUDA_SUCCESS);
  REQUIRE(cuMemGetMemPool(&found, &place, kPinned) == CUDA_SUCCESS);
  CHECK(found == pool);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  REQUIRE(cuMemGetMemPool(&found, &place, kPinned) == CUDA_SUCCESS);
  CHECK(found == host);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("a managed pool has no size, no usage and is never shared; one of a node of the host can be") {
  const Simulated sim;
  CUmemPoolProps properties = properties_of(CU_MEM_LOCATION_TYPE_DEVICE, kManaged);
  CUmemoryPool pool = nullptr;
  SECTION("size") { properties.maxSize = kMiB; }
  SECTION("usage") { properties.usage = CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS; }
  SECTION("handles") { properties.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR; }
  SECTION("a device that is not there") { properties.location.id = 3; }
  CHECK(cuMemPoolCreate(&pool, &properties) == CUDA_ERROR_INVALID_VALUE);
  CUmemPoolProps shared = properties_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, kPinned);
  shared.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  CHECK(cuMemPoolCreate(&pool, &shared) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("memory of the host is charged to no device, counted by its pool, and gone when the device has got to its free") {
  const Simulated sim;
  const auto [where, type] = GENERATE(std::pair{CU_MEM_LOCATION_TYPE_HOST, kPinned}, std::pair{CU_MEM_LOCATION_TYPE_NONE, kManaged});
  const CUmemoryPool pool = default_of(where, type);
  const CUstream stream = Simulated::stream();
  const std::uint64_t before = cusim_used_bytes(0);
  const CUdeviceptr one = allocate_from(pool, 3 * kMiB, stream), two = allocate_from(pool, kMiB, stream);
  CHECK(cusim_used_bytes(0) == before);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 4 * kMiB);
  CHECK(told<unsigned>(one, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == (type == kManaged ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST));
  CHECK(told<unsigned>(one, CU_POINTER_ATTRIBUTE_IS_MANAGED) == (type == kManaged ? 1 : 0));
  CHECK(told<CUmemoryPool>(one, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE) == pool);
  CHECK(told<CUcontext>(one, CU_POINTER_ATTRIBUTE_CONTEXT) == nullptr);
  REQUIRE(cuMemsetD8Async(one, 7, 3 * kMiB, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(one, stream) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == kMiB);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 4 * kMiB);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == kMiB);
  CHECK(cuMemFreeAsync(one, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 1);
  REQUIRE(cuMemFree_v2(two) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 4 * kMiB);
}

TEST_CASE("a pool on the host has the size that it was made with, and lives as long as its memory") {
  const Simulated sim;
  CUmemPoolProps properties = properties_of(CU_MEM_LOCATION_TYPE_HOST, kPinned);
  properties.maxSize = 4 * kMiB;
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  const CUstream stream = Simulated::stream();
  const CUdeviceptr address = allocate_from(pool, 3 * kMiB, stream);
  CUdeviceptr more = 1;
  CHECK(cuMemAllocFromPoolAsync(&more, 2 * kMiB, pool, stream) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(more == 0);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8Async(address, 1, 3 * kMiB, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("a kernel reaches a pool on the host only with access, managed memory always") {
  const Simulated sim;
  const bool is_managed = GENERATE(false, true);
  const CUmemoryPool pool = is_managed ? default_of(CU_MEM_LOCATION_TYPE_DEVICE, kManaged) : default_of(CU_MEM_LOCATION_TYPE_HOST, kPinned);
  CUmemAccess_flags flags{};
  CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, 0}, host{CU_MEM_LOCATION_TYPE_HOST, 0};
  REQUIRE(cuMemPoolGetAccess(&flags, pool, &host) == CUDA_SUCCESS);
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  REQUIRE(cuMemPoolGetAccess(&flags, pool, &device) == CUDA_SUCCESS);
  CHECK(flags == (is_managed ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE));
  const CUdeviceptr address = allocate_from(pool, kMiB, nullptr);
  if (!is_managed) {
    const CUmemAccessDesc access{device, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    REQUIRE(cuMemPoolSetAccess(pool, &access, 1) == CUDA_SUCCESS);
  }
  REQUIRE(cusim_launch_fill(nullptr, address, kMiB, 1, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  if (is_managed) return;
  const CUdeviceptr closed = allocate_from(default_of(CU_MEM_LOCATION_TYPE_HOST_NUMA, kPinned), kMiB, nullptr);
  REQUIRE(cusim_launch_fill(nullptr, closed, kMiB, 1, 1) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("memory of a pool on the host outlives its primary context, and a captured allocation of it is not modelled") {
  const Simulated sim;
  const CUmemoryPool pool = default_of(CU_MEM_LOCATION_TYPE_HOST, kPinned);
  const CUdeviceptr address = allocate_from(pool, kMiB, nullptr);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(told<unsigned>(address, CU_POINTER_ATTRIBUTE_MEMORY_TYPE) == CU_MEMORYTYPE_HOST);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  const CUstream stream = Simulated::stream();
  REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CUdeviceptr captured = 0;
  CHECK(cuMemAllocFromPoolAsync(&captured, kMiB, pool, stream) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cusim_violation_count() == 1);
}
