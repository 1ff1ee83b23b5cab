// Stream-ordered memory: stream order, reuse, pools and their attributes.
#include <catch2/catch.hpp>

#include <algorithm>
#include <vector>

#include "pools.hpp"

using sim_test::allocate_async;
using sim_test::attribute;
using sim_test::default_pool;
using sim_test::kMiB;
using sim_test::Simulated;

TEST_CASE("stream-ordered memory serves its stream in order, without a wait of the host") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUdeviceptr first = allocate_async(kMiB, stream);
  REQUIRE(first != 0);
  REQUIRE(cusim_launch_fill(stream, first, kMiB, 1, 100) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(stream, first, kMiB, 1, 100) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, stream) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 0);
  // The same stream gets the bytes again at once; its earlier work is not disturbed.
  const CUdeviceptr second = allocate_async(kMiB, stream);
  CHECK(second == first);
  REQUIRE(cusim_launch_fill(stream, second, kMiB, 2, 100) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(stream, second, kMiB, 2, 100) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("another stream does not get bytes that are still in use, while there are others") {
  const Simulated sim;
  const CUstream one = Simulated::stream();
  const CUstream two = Simulated::stream();
  const CUdeviceptr first = allocate_async(kMiB, one);
  REQUIRE(cusim_launch_spin(one, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, one) == CUDA_SUCCESS);
  if (GENERATE(false, true)) REQUIRE(cusim_launch_spin(two, 1000) == CUDA_SUCCESS);  // work that waits for nothing of the other
  const CUdeviceptr second = allocate_async(kMiB, two);
  CHECK(second != first);
  REQUIRE(cuMemFreeAsync(second, two) == CUDA_SUCCESS);
}

TEST_CASE("a stream that waits for a free by an event gets its bytes at once, unless the pool is told not to look") {
  const Simulated sim;
  const CUstream one = Simulated::stream();
  const CUstream two = Simulated::stream();
  const CUevent event = Simulated::event();
  int follows = GENERATE(1, 0);
  REQUIRE(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, &follows) == CUDA_SUCCESS);
  const CUdeviceptr first = allocate_async(3 * kMiB, one);
  REQUIRE(cusim_launch_fill(one, first, 3 * kMiB, 1, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, one) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, one) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(two, event, 0) == CUDA_SUCCESS);
  const CUdeviceptr second = allocate_async(3 * kMiB, two);
  CHECK((second == first) == (follows == 1));
  REQUIRE(cusim_launch_check(two, second, 3 * kMiB, follows == 1 ? 1 : 0, 10) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(two) == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("when the device is full, another stream waits for the free inside the device") {
  const Simulated sim{{"MEMORY", "4MiB"}};
  const CUstream one = Simulated::stream();
  const CUstream two = Simulated::stream();
  const CUdeviceptr first = allocate_async(4 * kMiB, one);
  REQUIRE(cusim_launch_fill(one, first, 4 * kMiB, 1, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, one) == CUDA_SUCCESS);
  const CUdeviceptr second = allocate_async(4 * kMiB, two);
  REQUIRE(second == first);
  REQUIRE(cusim_launch_fill(two, second, 4 * kMiB, 2, 10) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(two) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 1010);
  CHECK(cusim_violation_count() == 0);
  CHECK(allocate_async(1, one) == 0);
}

TEST_CASE("use before the allocation or after the free, out of stream order, is found out") {
  const Simulated sim;
  const CUstream one = Simulated::stream();
  const CUstream two = Simulated::stream();
  SECTION("before") {
    REQUIRE(cusim_launch_spin(one, 1000) == CUDA_SUCCESS);
    const CUdeviceptr address = allocate_async(kMiB, one);
    REQUIRE(cusim_launch_fill(two, address, 1, 1, 10) == CUDA_SUCCESS);
  }
  SECTION("after") {
    const CUdeviceptr address = allocate_async(kMiB, one);
    REQUIRE(cuMemFreeAsync(address, one) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_fill(two, address, 1, 1, 10) == CUDA_SUCCESS);
  }
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cusim_violation_count() == 1);
}

TEST_CASE("any free takes any kind of allocation, once") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUdeviceptr async = allocate_async(kMiB, stream);
  CHECK(cuMemFree_v2(async) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(async) == CUDA_ERROR_INVALID_VALUE);
  const CUdeviceptr plain = Simulated::allocate(kMiB);
  REQUIRE(cusim_launch_spin(stream, 10) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(plain, stream) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(plain, stream) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree_v2(plain) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_allocation_count(0) == 2);  // the pool's range, and the plain one until its turn
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(cuMemFreeAsync(0, stream) == CUDA_SUCCESS);
}

TEST_CASE("a pool keeps what its threshold says, and counts") {
  const Simulated sim;
  const CUmemoryPool pool = default_pool();
  const CUstream stream = Simulated::stream();
  std::uint64_t threshold = UINT64_MAX;
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold) == CUDA_SUCCESS);
  const CUdeviceptr address = allocate_async(3 * kMiB, stream);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 3 * kMiB);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 4 * kMiB);
  REQUIRE(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 3 * kMiB);
  CHECK(cusim_used_bytes(0) == 4 * kMiB);
  CHECK(cuMemPoolTrimTo(pool, 0) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  threshold = 1;
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &threshold) == CUDA_ERROR_INVALID_VALUE);
  threshold = 0;
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &threshold) == CUDA_SUCCESS);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
  CHECK(attribute(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) == 4 * kMiB);
  CHECK(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &threshold) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("without a threshold a synchronisation gives everything unused back") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  REQUIRE(cuMemFreeAsync(allocate_async(3 * kMiB, stream), stream) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 4 * kMiB);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("pools give way to a plain allocation") {
  const Simulated sim{{"MEMORY", "8MiB"}};
  const CUstream stream = Simulated::stream();
  REQUIRE(cuMemFreeAsync(allocate_async(8 * kMiB, stream), stream) == CUDA_SUCCESS);
  SECTION("of cuMemAlloc") { CHECK(Simulated::allocate(8 * kMiB) != 0); }
  SECTION("of virtual memory") {
    CUmemAllocationProp wanted{};
    wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    wanted.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
    CUmemGenericAllocationHandle handle = 0;
    CHECK(cuMemCreate(&handle, 8 * kMiB, &wanted, 0) == CUDA_SUCCESS);
    CHECK(cuMemCreate(&handle, 2 * kMiB, &wanted, 0) == CUDA_ERROR_OUT_OF_MEMORY);
  }
}

TEST_CASE("created pools have a size, belong to a device, and are found in the pointer") {
  const Simulated sim{{"DEVICES", "2"}};
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.maxSize = 4 * kMiB;
  CUmemoryPool pool = nullptr;
  REQUIRE(cuMemPoolCreate(&pool, &properties) == CUDA_SUCCESS);
  CHECK(cuDeviceSetMemPool(1, pool) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuDeviceSetMemPool(0, pool) == CUDA_SUCCESS);
  const CUstream stream = Simulated::stream();
  const CUdeviceptr address = allocate_async(kMiB, stream);
  CUmemoryPool owner = nullptr;
  CHECK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, address) == CUDA_SUCCESS);
  CHECK(owner == pool);
  CHECK(allocate_async(4 * kMiB, stream) == 0);
  CUmemoryPool current = nullptr;
  CUmemoryPool beside = nullptr;
  REQUIRE(cuMemPoolCreate(&beside, &properties) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolDestroy(beside) == CUDA_SUCCESS);
  CHECK(cuDeviceGetMemPool(&current, 0) == CUDA_SUCCESS);
  CHECK(current == pool);
  REQUIRE(cuMemPoolDestroy(pool) == CUDA_SUCCESS);
  CHECK(cuMemPoolDestroy(pool) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceGetMemPool(&current, 0) == CUDA_SUCCESS);
  CHECK(current == default_pool());
  CHECK(cuMemPoolDestroy(current) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("another device reaches pool memory only with access") {
  const Simulated sim{{"DEVICES", "2"}};
  const CUdeviceptr address = allocate_async(kMiB, nullptr);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = 1;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  REQUIRE(cuMemPoolSetAccess(default_pool(), &access, 1) == CUDA_SUCCESS);
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(nullptr, address, kMiB, 1, 1) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_NONE;
  REQUIRE(cuMemPoolSetAccess(default_pool(), &access, 1) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(nullptr, address, kMiB, 1, 1) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("a copy or a set may be asked for before its stream-ordered memory is there") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  REQUIRE(cusim_launch_spin(stream, 1000) == CUDA_SUCCESS);
  const CUdeviceptr address = allocate_async(kMiB, stream);
  REQUIRE(cuMemsetD8Async(address, 5, kMiB, stream) == CUDA_SUCCESS);
  std::uint8_t back = 0;
  REQUIRE(cuMemcpyDtoHAsync_v2(&back, address + 7, 1, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(back == 5);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("stream-ordered memory follows the stream it names, whatever context is current") {
  const Simulated sim{{"DEVICES", "2"}};
  const CUstream stream = Simulated::stream();
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  const CUdeviceptr address = allocate_async(kMiB, stream);
  int device = -1;
  REQUIRE(cuPointerGetAttribute(&device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, address) == CUDA_SUCCESS);
  CHECK(device == 0);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
  CHECK(allocate_async(kMiB, nullptr) == 0);
  CUdeviceptr none = 0;
  CHECK(cuMemAllocAsync(&none, 1, nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  REQUIRE(cuCtxSetCurrent(sim.context) == CUDA_SUCCESS);
  REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
  CHECK(cuMemAllocAsync(&none, 1, stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cusim_violation_count() == 1);
}

TEST_CASE("work of the previous holder reaches as far as that one did, also when the new one is smaller") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUdeviceptr first = allocate_async(3 * kMiB, stream);
  REQUIRE(cusim_launch_spin(stream, 1000) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(stream, first, 3 * kMiB, 1, 100) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(stream, first + 2 * kMiB, kMiB, 1, 100) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, stream) == CUDA_SUCCESS);
  const CUdeviceptr second = allocate_async(2 * kMiB, stream);
  REQUIRE(second == first);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
  CHECK(cusim_mismatched_bytes() == 0);
  REQUIRE(cusim_launch_fill(stream, second, 3 * kMiB, 1, 100) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("small stream-ordered memory shares what the device gives in granules, and goes back only with the last of a granule") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const auto reserved_bytes = [] { return attribute(default_pool(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT); };
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 4096; ++i) blocks.push_back(allocate_async(500, stream));
  CHECK(reserved_bytes() == 2 * kMiB);
  CHECK(cusim_used_bytes(0) == 2 * kMiB);
  std::sort(blocks.begin(), blocks.end());
  for (std::size_t i = 1; i < blocks.size(); ++i) REQUIRE(blocks[i] - blocks[i - 1] == 512);
  for (std::size_t i = 1; i < blocks.size(); ++i) REQUIRE(cuMemFreeAsync(blocks[i], stream) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(allocate_async(4 * kMiB, stream), stream) == CUDA_SUCCESS);  // idle as a whole
  CHECK(reserved_bytes() == 6 * kMiB);
  REQUIRE(cuMemPoolTrimTo(default_pool(), 0) == CUDA_SUCCESS);
  CHECK(reserved_bytes() == 2 * kMiB);
  REQUIRE(cuMemFreeAsync(blocks[0], stream) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolTrimTo(default_pool(), 0) == CUDA_SUCCESS);
  CHECK(reserved_bytes() == 0);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("memory of pools outlives the context that cuCtxDestroy ends, plain memory does not") {
  const Simulated sim;
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  const CUstream stream = Simulated::stream();
  const CUdeviceptr plain = Simulated::allocate(kMiB);
  const CUdeviceptr first = allocate_async(kMiB, stream);
  const CUdeviceptr second = allocate_async(kMiB, stream);
  REQUIRE(cuMemsetD8Async(first, 7, kMiB, stream) == CUDA_SUCCESS);
  CUcontext owner = nullptr;
  REQUIRE(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, first) == CUDA_SUCCESS);
  CHECK(owner == nullptr);
  owner = other;
  REQUIRE(cuCtxDestroy_v2(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(sim.context) == CUDA_SUCCESS);
  unsigned char byte = 0;
  CHECK(cuMemcpyDtoH_v2(&byte, first + 1000, 1) == CUDA_SUCCESS);
  CHECK(byte == 7);
  REQUIRE(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, first) == CUDA_SUCCESS);
  CHECK(owner == nullptr);
  CHECK(attribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 2 * kMiB);
  CHECK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, plain) == CUDA_ERROR_INVALID_VALUE);
  const CUstream mine = Simulated::stream();
  CHECK(allocate_async(kMiB, mine) != first);
  CHECK(cuMemFreeAsync(first, mine) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(second) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(mine) == CUDA_SUCCESS);
  CHECK(attribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == kMiB);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("memory of pools goes with the reset of its primary context") {  // an H100 leaves it (driver 580): README.md
  const Simulated sim;
  const CUdeviceptr block = allocate_async(kMiB, Simulated::stream());
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CUcontext again = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&again, 0) == CUDA_SUCCESS);
  CHECK(attribute(default_pool(), CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
  CHECK(cuMemGetAddressRange_v2(nullptr, nullptr, block) == CUDA_ERROR_NOT_FOUND);
}

TEST_CASE("no bytes are an allocation of nothing") {
  const Simulated sim;
  CUdeviceptr address = 0x1234;
  CHECK(cuMemAllocAsync(&address, 0, Simulated::stream()) == CUDA_SUCCESS);
  CHECK(address == 0);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("a pool that grows by steps divides them, joins what is free again, and gives back whole steps") {
  const Simulated sim({{"POOL_STEP", "32MiB"}, {"MEMORY", "80MiB"}});
  const CUstream stream = Simulated::stream();
  std::uint64_t kept_bytes = ~std::uint64_t{0};
  REQUIRE(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &kept_bytes) == CUDA_SUCCESS);
  const auto reserved = [] { return attribute(default_pool(), CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) / kMiB; };
  std::vector<CUdeviceptr> blocks;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{513}, 3 * kMiB, 20 * kMiB}) blocks.push_back(allocate_async(bytes, stream));
  CHECK(blocks[1] == blocks[0] + 512);
  CHECK(blocks[2] == blocks[1] + 1024);
  CHECK(reserved() == 32);
  blocks.push_back(allocate_async(20 * kMiB, stream));
  CHECK(reserved() == 64);
  const CUdeviceptr beside = allocate_async(15 * kMiB, stream);  // no room for a step: what it needs
  CHECK(beside != 0);
  CHECK(reserved() == 80);
  CHECK(allocate_async(20 * kMiB, stream) == 0);
  for (std::size_t i = 0; i < 4; ++i) REQUIRE(cuMemFreeAsync(blocks[i], stream) == CUDA_SUCCESS);
  const CUdeviceptr whole = allocate_async(32 * kMiB, stream);
  CHECK(whole == blocks[0]);
  REQUIRE(cuMemFreeAsync(whole, stream) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolTrimTo(default_pool(), 0) == CUDA_SUCCESS);
  CHECK(reserved() == 48);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("of a pool that divides steps a stream gets at once what it has freed, and another not before that is over") {
  const Simulated sim({{"POOL_STEP", "32MiB"}, {"MEMORY", "32MiB"}});
  const CUstream one = Simulated::stream();
  const CUstream two = Simulated::stream();
  int never = 0;
  REQUIRE(cuMemPoolSetAttribute(default_pool(), CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES, &never) == CUDA_SUCCESS);
  const CUdeviceptr first = allocate_async(32 * kMiB, one);
  REQUIRE(cusim_launch_fill(one, first, 32 * kMiB, 1, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, one) == CUDA_SUCCESS);
  CHECK(allocate_async(32 * kMiB, two) == 0);
  REQUIRE(allocate_async(32 * kMiB, one) == first);
  REQUIRE(cusim_launch_fill(one, first, 32 * kMiB, 2, 1000) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(one, first, 32 * kMiB, 2, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(first, one) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(one) == CUDA_SUCCESS);
  CHECK(allocate_async(5 * kMiB, two) == first);
  CHECK(allocate_async(27 * kMiB, two) == first + 5 * kMiB);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(cusim_violation_count() == 0);
}
