// Virtual memory management: strict mapping rules, rights, and bytes that follow their handle.
#include <catch2/catch.hpp>
#include <unistd.h>

#include "vmm_pages.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

using namespace sim_test::vmm;

TEST_CASE("the granularity is 2 MiB and everything must be a multiple of it") {
  const Simulated sim;
  const CUmemAllocationProp properties = on_device(0);
  std::size_t granularity = 0;
  CHECK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
  CHECK(granularity == kPage);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr base = 0;
  CHECK(cuMemCreate(&handle, kPage + 1, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemCreate(&handle, 0, &properties, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemCreate(&handle, kPage, &properties, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAddressReserve(&base, kPage / 2, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAddressReserve(&base, kPage, 3, 0, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a device without virtual memory management refuses all of it") {
  const Simulated sim{{"VMM", "0"}};
  const CUmemAllocationProp properties = on_device(0);
  CUmemGenericAllocationHandle handle = 0;
  CUdeviceptr base = 0;
  int supported = 1;
  CHECK(cuDeviceGetAttribute(&supported, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 0) == CUDA_SUCCESS);
  CHECK(supported == 0);
  CHECK(cuMemCreate(&handle, kPage, &properties, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuMemAddressReserve(&base, kPage, 0, 0, 0) == CUDA_ERROR_NOT_SUPPORTED);
}

TEST_CASE("physical memory is charged until handle and mappings are gone") {
  const Simulated sim{{"MEMORY", "16MiB"}};
  const CUmemGenericAllocationHandle handle = create(8 * kMiB);
  REQUIRE(handle != 0);
  CHECK(cusim_used_bytes(0) == 8 * kMiB);
  CHECK(create(10 * kMiB) == 0);
  const CUdeviceptr base = reserve(8 * kMiB);
  REQUIRE(cuMemMap(base, 8 * kMiB, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 8 * kMiB);
  CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 1);
  CHECK(cuMemUnmap(base, 8 * kMiB) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(cuMemAddressFree(base, 8 * kMiB) == CUDA_SUCCESS);
}

TEST_CASE("mappings are whole, at offset 0, once, inside a reservation") {
  const Simulated sim;
  const CUmemGenericAllocationHandle handle = create(2 * kPage);
  const CUdeviceptr base = reserve(8 * kPage);
  CHECK(cuMemMap(base, kPage, kPage, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuMemMap(base, kPage, 0, handle, 0) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuMemMap(base, 2 * kPage, kPage, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemMap(base + 512, 2 * kPage, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemMap(base + 7 * kPage, 2 * kPage, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemMap(base, 2 * kPage, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemMap(base + kPage, 2 * kPage, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemMap(base + 2 * kPage, 2 * kPage, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemUnmap(base, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemUnmap(base + kPage, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAddressFree(base, 8 * kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemUnmap(base, 4 * kPage) == CUDA_SUCCESS);
  CHECK(cuMemUnmap(base, 4 * kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAddressFree(base, 4 * kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAddressFree(base, 8 * kPage) == CUDA_SUCCESS);
}

TEST_CASE("nothing may touch a mapping before access is set, and each new mapping starts without") {
  const Simulated sim;
  const CUmemGenericAllocationHandle handle = create(kPage);
  const CUdeviceptr base = reserve(kPage);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemsetD8_v2(base, 1, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cusim_violation_count() == 1);
  REQUIRE(allow(base, kPage) == CUDA_SUCCESS);
  CHECK(cuMemsetD8_v2(base, 1, kPage) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemUnmap(base, kPage) == CUDA_SUCCESS);
  CHECK(allow(base, kPage) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(cuMemsetD8_v2(base, 1, kPage) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("read-only access lets kernels read and not write") {
  const Simulated sim;
  const CUmemGenericAllocationHandle handle = create(kPage);
  const CUdeviceptr base = reserve(kPage);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  REQUIRE(allow(base, kPage, 0, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(nullptr, base, kPage, 0, 1) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(nullptr, base, kPage, 1, 1) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
}

TEST_CASE("bytes belong to the handle: swapped mappings swap the data") {
  const Simulated sim;
  const CUmemGenericAllocationHandle one = create(kPage);
  const CUmemGenericAllocationHandle two = create(kPage);
  const CUdeviceptr base = reserve(2 * kPage);
  REQUIRE(cuMemMap(base, kPage, 0, one, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(base + kPage, kPage, 0, two, 0) == CUDA_SUCCESS);
  REQUIRE(allow(base, 2 * kPage) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(base, 1, kPage) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(base + kPage, 2, kPage) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(cuMemUnmap(base, 2 * kPage) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(base, kPage, 0, two, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(base + kPage, kPage, 0, one, 0) == CUDA_SUCCESS);
  REQUIRE(allow(base, 2 * kPage) == CUDA_SUCCESS);
  // One copy across both mappings.
  std::vector<unsigned char> bytes(2 * kPage);
  REQUIRE(cuMemcpyDtoH_v2(bytes.data(), base, bytes.size()) == CUDA_SUCCESS);
  CHECK(bytes[0] == 2);
  CHECK(bytes[kPage - 1] == 2);
  CHECK(bytes[kPage] == 1);
}

TEST_CASE("work that still touches a range when it is unmapped is found out") {
  const Simulated sim;
  const CUmemGenericAllocationHandle handle = create(kPage);
  const CUdeviceptr base = reserve(kPage);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  REQUIRE(allow(base, kPage) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(nullptr, base, kPage, 1, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemUnmap(base, kPage) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cusim_violation_count() == 1);
}

TEST_CASE("VMM memory is no cuMemAlloc memory") {
  const Simulated sim;
  const CUmemGenericAllocationHandle handle = create(kPage);
  const CUdeviceptr base = reserve(kPage);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  CUipcMemHandle ipc{};
  unsigned capable = 1;
  CUmemGenericAllocationHandle retained = 0;
  CHECK(cuIpcGetMemHandle(&ipc, base) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemFree_v2(base) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerGetAttribute(&capable, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, base) == CUDA_SUCCESS);
  CHECK(capable == 0);
  CHECK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(base + 5)) == CUDA_SUCCESS);
  CHECK(retained == handle);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  const CUdeviceptr plain = Simulated::allocate(kPage);
  CHECK(cuMemRetainAllocationHandle(&retained, reinterpret_cast<void*>(plain)) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("an exported descriptor brings the same bytes back, if the handle was made for it") {
  const Simulated sim;
  const unsigned kFd = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  int descriptor = -1;
  CHECK(cuMemExportToShareableHandle(&descriptor, create(kPage), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_ERROR_INVALID_VALUE);
  create(3 * kPage);  // so that the next one does not stand at the beginning of the file
  const CUmemGenericAllocationHandle handle = create(kPage, kFd);
  REQUIRE(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  CUmemGenericAllocationHandle imported = 0;
  REQUIRE(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(std::intptr_t{descriptor}), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
          CUDA_SUCCESS);
  close(descriptor);
  const std::uint64_t used = cusim_used_bytes(0);
  const CUdeviceptr base = reserve(2 * kPage);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(base + kPage, kPage, 0, imported, 0) == CUDA_SUCCESS);
  REQUIRE(allow(base, 2 * kPage) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == used);
  REQUIRE(cuMemsetD8_v2(base, 42, kPage) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(nullptr, base + kPage, kPage, 42, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(cuMemImportFromShareableHandle(&imported, nullptr, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("memory that was exported is held until every descriptor of it is closed and what was imported is released") {
  const Simulated sim;
  const std::uint64_t before = cusim_used_bytes(0);
  const CUmemGenericAllocationHandle handle = create(kPage, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  int descriptor = -1;
  REQUIRE(cuMemExportToShareableHandle(&descriptor, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == before + kPage);
  CUmemGenericAllocationHandle imported = 0;
  REQUIRE(cuMemImportFromShareableHandle(&imported, reinterpret_cast<void*>(std::intptr_t{descriptor}), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) ==
          CUDA_SUCCESS);
  close(descriptor);
  CHECK(cusim_used_bytes(0) == before + kPage);
  const CUdeviceptr base = reserve(kPage);
  REQUIRE(cuMemMap(base, kPage, 0, imported, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemRelease(imported) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == before + kPage);
  REQUIRE(cuMemUnmap(base, kPage) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == before);
  CHECK(cusim_violation_count() == 0);
  CHECK(cuMemRelease(handle) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("copies between devices fail on VMM memory without access, unlike on cuMemAlloc memory") {
  const Simulated sim{{"DEVICES", "2"}};
  const CUmemGenericAllocationHandle handle = create(kPage);
  const CUdeviceptr base = reserve(kPage);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  REQUIRE(allow(base, kPage) == CUDA_SUCCESS);
  CUcontext other = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&other, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  const CUdeviceptr there = Simulated::allocate(kPage);
  CHECK(cuMemcpyDtoD_v2(there, base, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyPeer(there, other, base, sim.context, kPage) == CUDA_SUCCESS);
  REQUIRE(allow(base, kPage, 1) == CUDA_SUCCESS);
  CHECK(cuMemcpyDtoD_v2(there, base, kPage) == CUDA_SUCCESS);
}

TEST_CASE("a reservation can be asked for at an address") {
  const Simulated sim;
  const CUdeviceptr base = reserve(4 * kPage);
  REQUIRE(cuMemAddressFree(base, 4 * kPage) == CUDA_SUCCESS);
  CUdeviceptr wanted = 0;
  REQUIRE(cuMemAddressReserve(&wanted, kPage, 0, base + kPage, 0) == CUDA_SUCCESS);
  CHECK(wanted == base + kPage);
  CUdeviceptr other = 0;
  REQUIRE(cuMemAddressReserve(&other, kPage, 0, base + kPage, 0) == CUDA_SUCCESS);
  CHECK(other != wanted);
  CHECK(reserve(1128ULL << 30) != 0);  // 8 times 141 GiB
}
