// Device memory: capacity, addresses, misuse, what the driver says about a pointer, host memory, arrays.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstring>
#include <random>
#include <set>

#include "sim_fixture.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

TEST_CASE("bases are aligned, blocks do not overlap, small ones share a granule") {
  const Simulated sim;
  std::mt19937_64 random(7);
  std::vector<std::pair<CUdeviceptr, std::size_t>> blocks;
  for (int i = 0; i < 3000; ++i) {
    const std::size_t bytes = 1 + random() % (i % 10 == 0 ? 5 * kMiB : 20000);
    const CUdeviceptr address = Simulated::allocate(bytes);
    REQUIRE(address != 0);
    REQUIRE(address % 512 == 0);
    blocks.emplace_back(address, bytes);
  }
  std::sort(blocks.begin(), blocks.end());
  for (std::size_t i = 1; i < blocks.size(); ++i) {
    REQUIRE(blocks[i - 1].first + blocks[i - 1].second <= blocks[i].first);
  }
  CHECK(cusim_allocation_count(0) == 3000);
  for (const auto& [address, bytes] : blocks) REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(cusim_allocation_count(0) == 0);
  const CUdeviceptr one = Simulated::allocate(512);
  const CUdeviceptr two = Simulated::allocate(512);
  CHECK(cusim_used_bytes(0) == 2 * kMiB);
  CHECK(one != two);
}

TEST_CASE("a granule is filled to its last slot") {
  const Simulated sim{{"MEMORY", "2MiB"}};
  for (int i = 0; i < 4096; ++i) REQUIRE(Simulated::allocate(512) != 0);
  CHECK(Simulated::allocate(1) == 0);
}

TEST_CASE("the capacity holds what it says, wherever the holes are") {
  const Simulated sim{{"MEMORY", "64MiB"}};
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 32; ++i) blocks.push_back(Simulated::allocate(2 * kMiB));
  CUdeviceptr address = 0;
  CHECK(cuMemAlloc_v2(&address, 1) == CUDA_ERROR_OUT_OF_MEMORY);
  for (std::size_t i = 0; i < blocks.size(); i += 2) REQUIRE(cuMemFree_v2(blocks[i]) == CUDA_SUCCESS);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  CHECK(free_bytes == 32 * kMiB);
  CHECK(total_bytes == 64 * kMiB);
  // Pages need not be contiguous: half of the device is free in holes, and one allocation gets it.
  CHECK(cuMemAlloc_v2(&address, 32 * kMiB) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&address, SIZE_MAX) == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("bad arguments are refused") {
  const Simulated sim;
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
  CHECK(cuMemAlloc_v2(nullptr, 1) == CUDA_ERROR_INVALID_VALUE);
  for (const std::size_t impossible : {std::size_t{0}, ~std::size_t{0}}) {
    address = 0x1234;
    CHECK(cuMemAlloc_v2(&address, impossible) == (impossible == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_OUT_OF_MEMORY));
    CHECK(address == 0);
  }
  CHECK(cuMemGetInfo_v2(nullptr, &bytes) == CUDA_SUCCESS);
  CHECK(bytes > kMiB);
  CHECK(cuMemGetInfo_v2(&bytes, nullptr) == CUDA_SUCCESS);
  CHECK(cuMemAllocPitch_v2(&address, nullptr, 1, 1, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocPitch_v2(&address, &bytes, 1, 1, 5) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocPitch_v2(&address, &bytes, 1, 0, 4) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocPitch_v2(&address, &bytes, 1000, 3, 16) == CUDA_SUCCESS);
  CHECK(bytes == 1024);
  CHECK(cuMemFree_v2(0) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("freeing what is not an allocation is an error and a violation") {
  const Simulated sim;
  const CUdeviceptr address = Simulated::allocate(4096);
  CHECK(cuMemFree_v2(address + 512) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree_v2(0x1234500) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 2);
  CHECK(cuMemFree_v2(address) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
  CHECK_THAT(Simulated::last_violation(), Catch::Contains("double free"));
}

TEST_CASE("an address range is the allocation, from any address inside") {
  const Simulated sim;
  for (const std::size_t bytes : {std::size_t{1000}, std::size_t{3} * kMiB + 5}) {
    const CUdeviceptr address = Simulated::allocate(bytes);
    for (const std::size_t offset : {std::size_t{0}, bytes / 2, bytes - 1}) {
      CUdeviceptr base = 0;
      std::size_t size = 0;
      REQUIRE(cuMemGetAddressRange_v2(&base, &size, address + offset) == CUDA_SUCCESS);
      CHECK(base == address);
      CHECK(size == bytes);
    }
    CHECK(cuMemGetAddressRange_v2(nullptr, nullptr, address + bytes) == CUDA_ERROR_NOT_FOUND);
    REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
    CHECK(cuMemGetAddressRange_v2(nullptr, nullptr, address) == CUDA_ERROR_NOT_FOUND);
  }
}

TEST_CASE("pointer attributes describe live memory and refuse the rest") {
  const Simulated sim;
  const CUdeviceptr address = Simulated::allocate(1000);
  const CUdeviceptr other = Simulated::allocate(1000);
  unsigned type = 0;
  CUcontext context = nullptr;
  unsigned long long id = 0;
  unsigned long long other_id = 0;
  unsigned capable = 0;
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 7) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CHECK(cuPointerGetAttribute(&context, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS);
  CHECK(context == sim.context);
  CHECK(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&other_id, CU_POINTER_ATTRIBUTE_BUFFER_ID, other) == CUDA_SUCCESS);
  CHECK(id != other_id);
  CHECK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, address) == CUDA_SUCCESS);
  CHECK(capable == 1);
  void* host = nullptr;
  CHECK(cuPointerGetAttribute(&host, CU_POINTER_ATTRIBUTE_HOST_POINTER, address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 1000) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerGetAttribute(nullptr, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a mapping is the granules that hold a block, and blocks that share one share its id") {
  const Simulated sim;
  const CUdeviceptr first = Simulated::allocate(1000), second = Simulated::allocate(1000), large = Simulated::allocate(2 * kMiB + 1);
  const auto tell = [](CUpointer_attribute attribute, CUdeviceptr address) {
    unsigned long long value = 0;
    CHECK(cuPointerGetAttribute(&value, attribute, address) == CUDA_SUCCESS);
    return value;
  };
  REQUIRE(second != first);
  CHECK(tell(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, second) == 2 * kMiB);
  CHECK(tell(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, second) == first / (2 * kMiB) * (2 * kMiB));
  CHECK(tell(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, second + 10) == second);
  CHECK(tell(CU_POINTER_ATTRIBUTE_MAPPING_SIZE, large) == 4 * kMiB);
  CHECK(tell(CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR, large + 3 * kMiB / 2) == large);
  CHECK(tell(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, first) == tell(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, second));
  CHECK(tell(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, first) != tell(CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID, large));
}

TEST_CASE("without a context memory is freed and its rights are told, but nothing is allocated") {
  const Simulated sim;
  const CUdeviceptr address = Simulated::allocate(kMiB);
  REQUIRE(cusim_launch_fill(nullptr, address, kMiB, 1, 1000) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  unsigned rights = 0;
  CHECK(cuPointerGetAttribute(&rights, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address) == CUDA_SUCCESS);
  CHECK(rights == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(Simulated::allocate(1) == 0);
  CHECK(cuMemFree_v2(0) == CUDA_SUCCESS);
  CHECK(cuMemFree_v2(address) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 1000);  // it waited for the owner's work
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(cusim_violation_count() == 0);
  CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the plural form succeeds for unknown pointers with default values") {
  const Simulated sim;
  CUpointer_attribute attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_RANGE_SIZE};
  unsigned type = 5;
  int ordinal = 5;
  std::size_t size = 5;
  void* out[] = {&type, &ordinal, &size};
  int local = 0;
  CHECK(cuPointerGetAttributes(3, attributes, out, reinterpret_cast<CUdeviceptr>(&local)) == CUDA_SUCCESS);
  CHECK(type == 0);
  CHECK(ordinal == -2);
  CHECK(size == 0);
  const CUdeviceptr address = Simulated::allocate(1000);
  CHECK(cuPointerGetAttributes(3, attributes, out, address) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_DEVICE);
  CHECK(ordinal == 0);
  CHECK(size == 1000);
  CHECK(cuPointerGetAttributes(0, attributes, out, address) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("SYNC_MEMOPS is the only attribute that can be set") {
  const Simulated sim;
  const CUdeviceptr address = Simulated::allocate(1000);
  unsigned value = 1;
  CHECK(cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address) == CUDA_SUCCESS);
  value = 0;
  CHECK(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, address) == CUDA_SUCCESS);
  CHECK(value == 1);
  CHECK(cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_BUFFER_ID, address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerSetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, 4096) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("host memory is pinned, found by address, and freed by its own call") {
  const Simulated sim;
  void* pinned = nullptr;
  REQUIRE(cuMemHostAlloc(&pinned, 10000, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS);
  std::memset(pinned, 1, 10000);
  unsigned type = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(pinned);
  CHECK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, address + 9) == CUDA_SUCCESS);
  CHECK(type == CU_MEMORYTYPE_HOST);
  CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFreeHost(static_cast<char*>(pinned) + 1) == CUDA_ERROR_INVALID_VALUE);
  unsigned flags = 0;
  CHECK(cuMemHostGetFlags(&flags, pinned) == CUDA_SUCCESS);
  CHECK(flags == (CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
  REQUIRE(cusim_launch_spin(nullptr, 1000) == CUDA_SUCCESS);
  CHECK(cuMemFreeHost(pinned) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 1000);  // as with memory of the device
  CHECK(cuMemFreeHost(pinned) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemHostAlloc(&pinned, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemHostAlloc(&pinned, 1, 64) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("registered host memory may not overlap and is unregistered by its base") {
  const Simulated sim;
  std::vector<char> memory(8192);
  CHECK(cuMemHostRegister_v2(memory.data(), 4096, 0) == CUDA_SUCCESS);
  CHECK(cuMemHostRegister_v2(memory.data() + 4095, 100, 0) == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
  CHECK(cuMemHostRegister_v2(memory.data() + 4096, 100, 0) == CUDA_SUCCESS);
  CHECK(cuMemHostUnregister(memory.data() + 1) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
  CHECK(cuMemHostUnregister(memory.data()) == CUDA_SUCCESS);
  CHECK(cuMemHostUnregister(memory.data()) == CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_CASE("managed memory is reached from the host and freed with cuMemFree") {
  const Simulated sim;
  CUdeviceptr address = 0;
  REQUIRE(cuMemAllocManaged(&address, 100000, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  std::memset(reinterpret_cast<void*>(address), 3, 100000);
  REQUIRE(cusim_launch_check(nullptr, address, 100000, 3, 10) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  unsigned managed = 0;
  CHECK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, address) == CUDA_SUCCESS);
  CHECK(managed == 1);
  CHECK(cuMemFree_v2(address) == CUDA_SUCCESS);
  CHECK(cuMemAllocManaged(&address, 1, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("arrays cost device memory until they are destroyed") {
  const Simulated sim{{"MEMORY", "64MiB"}};
  CUDA_ARRAY_DESCRIPTOR_v2 descriptor{};
  descriptor.Width = 1024;
  descriptor.Height = 1024;
  descriptor.Format = CU_AD_FORMAT_FLOAT;
  descriptor.NumChannels = 4;
  CUarray array = nullptr;
  REQUIRE(cuArrayCreate_v2(&array, &descriptor) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 16 * kMiB);
  CHECK(cuArrayDestroy(array) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(cuArrayDestroy(array) == CUDA_ERROR_INVALID_HANDLE);
  descriptor.Height = 1 << 20;
  CHECK(cuArrayCreate_v2(&array, &descriptor) == CUDA_ERROR_OUT_OF_MEMORY);
  descriptor.NumChannels = 3;
  CHECK(cuArrayCreate_v2(&array, &descriptor) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a million blocks on a 141 GB device stay cheap") {
  const Simulated sim{{"MEMORY", "141GiB"}};
  std::vector<CUdeviceptr> blocks;
  blocks.reserve(1'000'000);
  for (std::size_t i = 0; i < 1'000'000; ++i) blocks.push_back(Simulated::allocate(512 + i % 40 * 512));
  REQUIRE(blocks.back() != 0);
  CHECK(cusim_allocation_count(0) == 1'000'000);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < 100'000; ++i) cuMemFree_v2(Simulated::allocate(4096));
  const auto elapsed = std::chrono::steady_clock::now() - start;
  // 0.2 to 0.4 us per pair as released; the bound leaves room for sanitizers.
  CHECK(std::chrono::duration<double, std::micro>(elapsed).count() / 100'000 < 20);
  for (const CUdeviceptr block : blocks) cuMemFree_v2(block);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("the first 1000 violations are kept, the rest are counted") {
  const Simulated sim;
  for (int i = 0; i < 1003; ++i) CHECK(cuMemFree_v2(0x1000 + 512 * static_cast<CUdeviceptr>(i)) != CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 1003);
  CHECK(std::string(cusim_violation(999)).find("cuMemFree_v2") == 0);
  CHECK(std::string(cusim_violation(1000)).find("first 1000") != std::string::npos);
  CHECK(std::string(cusim_violation(1002)).find("first 1000") != std::string::npos);
  CHECK(cusim_violation(1003) == nullptr);
}
