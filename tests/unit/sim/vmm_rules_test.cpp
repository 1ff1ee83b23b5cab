// Virtual memory management, the finer rules: whose rights count, ranges of several mappings, work that is pending, calls that wait,
// other granularities, what a device does not offer, and calls that fail.
#include <catch2/catch.hpp>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "vmm_pages.hpp"

using namespace sim_test::vmm;
using sim_test::kMiB;
using sim_test::Simulated;

namespace {

CUcontext enter(int device) {
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  return context;
}

unsigned access_of(CUdeviceptr address) {
  unsigned flags = 99;
  REQUIRE(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address) == CUDA_SUCCESS);
  return flags;
}

}  // namespace

TEST_CASE("access is each device's own, for kernels, copies and memsets") {
  const Simulated sim{{"DEVICES", "2"}};
  const CUdeviceptr base = map_fresh(kPage);
  CHECK(access_of(base) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE);
  const CUcontext other = enter(1);
  CHECK(access_of(base) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
  CHECK(cuMemsetD8_v2(base, 1, kPage) == CUDA_ERROR_INVALID_VALUE);
  std::vector<unsigned char> bytes(kPage);
  CHECK(cuMemcpyDtoH_v2(bytes.data(), base, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemcpyHtoD_v2(base, bytes.data(), kPage) == CUDA_ERROR_INVALID_VALUE);
  SECTION("read-only access is for reading") {
    REQUIRE(allow(base, kPage, 1, CU_MEM_ACCESS_FLAGS_PROT_READ) == CUDA_SUCCESS);
    CHECK(access_of(base) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ);
    CHECK(cuMemcpyDtoH_v2(bytes.data(), base, kPage) == CUDA_SUCCESS);
    CHECK(cuMemcpyHtoD_v2(base, bytes.data(), kPage) == CUDA_ERROR_INVALID_VALUE);
    CHECK(cuMemsetD8_v2(base, 1, kPage) == CUDA_ERROR_INVALID_VALUE);
    const CUdeviceptr own = Simulated::allocate(kPage);
    CHECK(cuMemcpyDtoD_v2(own, base, kPage) == CUDA_SUCCESS);
    CHECK(cuMemcpyDtoD_v2(base, own, kPage) == CUDA_ERROR_INVALID_VALUE);
    REQUIRE(cusim_launch_check(nullptr, base, kPage, 0, 1) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  }
  SECTION("a kernel without access breaks its context, peer access of contexts or not") {
    REQUIRE(cuCtxEnablePeerAccess(sim.context, 0) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_check(nullptr, base, kPage, 0, 1) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  SECTION("access that is taken away is gone") {
    REQUIRE(allow(base, kPage, 1) == CUDA_SUCCESS);
    CHECK(cuMemsetD8_v2(base, 1, kPage) == CUDA_SUCCESS);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(allow(base, kPage, 1, CU_MEM_ACCESS_FLAGS_PROT_NONE) == CUDA_SUCCESS);
    CHECK(cuMemsetD8_v2(base, 1, kPage) == CUDA_ERROR_INVALID_VALUE);
  }
  SECTION("devices without a link get no access, and copy through the host") {
    const Simulated apart{{"DEVICES", "2"}, {"PEERS", "0"}};
    const CUdeviceptr there = map_fresh(kPage);
    int can = 1;
    CHECK(cuDeviceCanAccessPeer(&can, 0, 1) == CUDA_SUCCESS);
    CHECK(can == 0);
    CHECK(allow(there, kPage, 1) == CUDA_ERROR_INVALID_DEVICE);
    const CUcontext far = enter(1);
    CHECK(cuCtxEnablePeerAccess(apart.context, 0) == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
    const CUdeviceptr here = Simulated::allocate(kPage);
    CHECK(cuMemcpyPeer(here, far, there, apart.context, kPage) == CUDA_SUCCESS);
  }
  static_cast<void>(other);
}

TEST_CASE("access is set for runs of whole mappings, all of them or none") {
  const Simulated sim;
  const CUdeviceptr base = reserve(6 * kPage);
  for (const int at : {0, 1, 2, 4}) REQUIRE(cuMemMap(base + static_cast<CUdeviceptr>(at) * kPage, kPage, 0, create(kPage), 0) == CUDA_SUCCESS);
  CHECK(allow(base, 5 * kPage) == CUDA_ERROR_INVALID_VALUE);  // a hole
  CHECK(allow(base, 3 * kPage / 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(allow(base + 4096, kPage) == CUDA_ERROR_INVALID_VALUE);
  CHECK(allow(base, kPage, 7) == CUDA_ERROR_INVALID_DEVICE);
  CUmemAccessDesc two[2] = {};
  for (CUmemAccessDesc& access : two) access = {{CU_MEM_LOCATION_TYPE_DEVICE, 0}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  two[1].flags = static_cast<CUmemAccess_flags>(2);
  CHECK(cuMemSetAccess(base, kPage, two, 2) == CUDA_ERROR_INVALID_VALUE);
  CHECK(access_of(base) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);  // nothing of the refused calls stayed
  REQUIRE(allow(base, 3 * kPage) == CUDA_SUCCESS);
  CHECK(cuMemsetD8_v2(base, 1, 3 * kPage) == CUDA_SUCCESS);
  CHECK(cuMemsetD8_v2(base, 1, 4 * kPage) == CUDA_ERROR_INVALID_VALUE);
  unsigned long long flags = 0;
  const CUmemLocation device{CU_MEM_LOCATION_TYPE_DEVICE, 0}, host{CU_MEM_LOCATION_TYPE_HOST, 0}, none{CU_MEM_LOCATION_TYPE_DEVICE, 7};
  CHECK(cuMemGetAccess(&flags, &device, base + kPage + 5) == CUDA_SUCCESS);
  CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  CHECK(cuMemGetAccess(&flags, &host, base) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemGetAccess(&flags, &none, base) == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuMemGetAccess(&flags, &device, Simulated::allocate(100)) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("work that was submitted before its pages were exchanged is found out, however live the new ones are") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUdeviceptr base = map_fresh(2 * kPage);
  const CUmemGenericAllocationHandle other = create(2 * kPage);
  const auto exchange = [&] {
    REQUIRE(cuMemUnmap(base, 2 * kPage) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(base, 2 * kPage, 0, other, 0) == CUDA_SUCCESS);
    REQUIRE(allow(base, 2 * kPage) == CUDA_SUCCESS);
  };
  std::size_t found = 1;
  SECTION("a kernel") { REQUIRE(cusim_launch_fill(stream, base + kPage, kPage, 1, 1000) == CUDA_SUCCESS); }
  SECTION("a memset") { REQUIRE(cuMemsetD8Async(base, 1, 100, stream) == CUDA_SUCCESS); }
  SECTION("a copy") { REQUIRE(cuMemcpyDtoDAsync_v2(Simulated::allocate(kPage), base, kPage, stream) == CUDA_SUCCESS); }
  SECTION("not work that ran before") {
    REQUIRE(cusim_launch_fill(stream, base, kPage, 1, 1000) == CUDA_SUCCESS);
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    found = 0;
  }
  exchange();
  SECTION("not work that is submitted to the new ones") {
    REQUIRE(cusim_launch_fill(stream, base, kPage, 1, 1000) == CUDA_SUCCESS);
    found = 0;
  }
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == found);
}

TEST_CASE("a graph's work counts from its launch, not from its capture") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUdeviceptr base = map_fresh(kPage);
  const CUmemGenericAllocationHandle other = create(kPage);
  CUgraph graph = nullptr;
  CUgraphExec executable = nullptr;
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(stream, base, kPage, 1, 1000) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  REQUIRE(cuGraphInstantiateWithFlags(&executable, graph, 0) == CUDA_SUCCESS);
  const auto exchange = [&] {
    REQUIRE(cuMemUnmap(base, kPage) == CUDA_SUCCESS);
    REQUIRE(cuMemMap(base, kPage, 0, other, 0) == CUDA_SUCCESS);
    REQUIRE(allow(base, kPage) == CUDA_SUCCESS);
  };
  exchange();
  REQUIRE(cuGraphLaunch(executable, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
  REQUIRE(cuGraphLaunch(executable, stream) == CUDA_SUCCESS);
  exchange();
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 1);
}

TEST_CASE("unmapping and setting access wait for nothing, or with NOTE_SYNC for all work of all contexts") {
  const bool waits = GENERATE(false, true);
  const Simulated sim{{"DEVICES", "2"}, {"NOTE_SYNC", waits ? "1" : "0"}};
  const CUdeviceptr base = map_fresh(kPage);
  enter(1);
  const CUstream elsewhere = Simulated::stream();
  REQUIRE(cusim_launch_spin(elsewhere, 1000) == CUDA_SUCCESS);
  SECTION("unmap") { CHECK(cuMemUnmap(base, kPage) == CUDA_SUCCESS); }
  SECTION("set access") { CHECK(allow(base, kPage, 1) == CUDA_SUCCESS); }
  CHECK(cuStreamQuery(elsewhere) == (waits ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY));
}

TEST_CASE("with NOTE_SYNC an unmap waits in earnest for work that the host holds up") {
  const Simulated sim{{"NOTE_SYNC", "1"}};
  const CUdeviceptr base = map_fresh(kPage);
  volatile std::uint32_t flag = 0;
  REQUIRE(cusim_launch_wait_host(nullptr, &flag) == CUDA_SUCCESS);
  std::atomic<bool> is_over{false};
  std::thread other([&] {
    cuCtxSetCurrent(sim.context);
    CHECK(cuMemUnmap(base, kPage) == CUDA_SUCCESS);
    is_over = true;
  });
  while (cusim_calls("cuMemUnmap") == 0) std::this_thread::yield();
  for (int i = 0; i < 100; ++i) CHECK(cusim_used_bytes(0) == kPage);  // the lock is free meanwhile
  CHECK_FALSE(is_over);
  __atomic_store_n(&flag, 1, __ATOMIC_RELEASE);
  other.join();
  CHECK(is_over);
}

TEST_CASE("a device may want larger pages than 2 MiB") {
  const Simulated sim{{"GRANULARITY", "4MiB,32MiB"}};
  const CUmemAllocationProp properties = on_device(0);
  std::size_t minimum = 0, recommended = 0;
  CHECK(cuMemGetAllocationGranularity(&minimum, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_SUCCESS);
  CHECK(cuMemGetAllocationGranularity(&recommended, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED) == CUDA_SUCCESS);
  CHECK(minimum == 4 * kMiB);
  CHECK(recommended == 32 * kMiB);
  CHECK(create(2 * kMiB) == 0);
  CHECK(reserve(6 * kMiB) == 0);
  const CUdeviceptr base = reserve(16 * kMiB);
  CHECK(base % (4 * kMiB) == 0);
  const CUmemGenericAllocationHandle handle = create(4 * kMiB);
  REQUIRE(handle != 0);
  CHECK(cuMemMap(base + 2 * kMiB, 4 * kMiB, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemMap(base + 4 * kMiB, 4 * kMiB, 0, handle, 0) == CUDA_SUCCESS);
}

TEST_CASE("what a device does not offer is refused by cuMemCreate, also where the attribute promised it") {
  const char* offer = GENERATE("1", "0", "refused");
  const std::string said = offer;
  const Simulated sim{{"VMM_FD", offer}, {"VMM_RDMA", offer}, {"DECOMPRESSION", offer}};
  int descriptors = -1, rdma = -1, algorithms = -1;
  CHECK(cuDeviceGetAttribute(&algorithms, CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK, 0) == CUDA_SUCCESS);
  CHECK((algorithms != 0) == (said != "0"));
  CHECK(cuDeviceGetAttribute(&descriptors, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED, 0) == CUDA_SUCCESS);
  CHECK(cuDeviceGetAttribute(&rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0) == CUDA_SUCCESS);
  CHECK(descriptors == (said == "0" ? 0 : 1));
  CHECK(rdma == (said == "0" ? 0 : 1));
  CUmemGenericAllocationHandle handle = 0;
  const CUresult wanted = said == "1" ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
  const CUmemAllocationProp with_descriptor = on_device(0, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK(cuMemCreate(&handle, kPage, &with_descriptor, 0) == wanted);
  CUmemAllocationProp with_rdma = on_device(0);
  with_rdma.allocFlags.gpuDirectRDMACapable = 1;
  CHECK(cuMemCreate(&handle, kPage, &with_rdma, 0) == wanted);
  CUmemAllocationProp with_decompression = on_device(0);
  with_decompression.allocFlags.usage = CU_MEM_CREATE_USAGE_HW_DECOMPRESS;
  CHECK(cuMemCreate(&handle, kPage, &with_decompression, 0) == wanted);
  CHECK(create(kPage) != 0);
  CHECK(create(kPage, CU_MEM_HANDLE_TYPE_FABRIC) == 0);
}

TEST_CASE("each call of virtual memory management can be made to fail, and then does nothing") {
  const Simulated sim;
  const CUmemGenericAllocationHandle handle = create(kPage);
  const CUdeviceptr base = reserve(2 * kPage);
  const std::uint64_t used = cusim_used_bytes(0);
  for (const char* name : {"cuMemCreate", "cuMemAddressReserve", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree",
                           "cuMemGetAllocationGranularity"}) {
    cusim_fail(name, 1, CUDA_ERROR_UNKNOWN, 1);
  }
  const CUmemAllocationProp properties = on_device(0);
  CUmemGenericAllocationHandle none = 0;
  CUdeviceptr nowhere = 0;
  std::size_t granularity = 0;
  CHECK(cuMemCreate(&none, kPage, &properties, 0) == CUDA_ERROR_UNKNOWN);
  CHECK(cuMemAddressReserve(&nowhere, kPage, 0, 0, 0) == CUDA_ERROR_UNKNOWN);
  CHECK(cuMemGetAllocationGranularity(&granularity, &properties, CU_MEM_ALLOC_GRANULARITY_MINIMUM) == CUDA_ERROR_UNKNOWN);
  CHECK((none == 0 && nowhere == 0 && granularity == 0));
  CHECK(cuMemMap(base, kPage, 0, handle, 0) == CUDA_ERROR_UNKNOWN);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(allow(base, kPage) == CUDA_ERROR_UNKNOWN);
  CHECK(access_of(base) == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE);
  CHECK(cuMemUnmap(base, kPage) == CUDA_ERROR_UNKNOWN);
  CHECK(cuMemRelease(handle) == CUDA_ERROR_UNKNOWN);
  CHECK(cusim_used_bytes(0) == used);
  REQUIRE(cuMemUnmap(base, kPage) == CUDA_SUCCESS);
  CHECK(cuMemAddressFree(base, 2 * kPage) == CUDA_ERROR_UNKNOWN);
  CHECK(cuMemAddressFree(base, 2 * kPage) == CUDA_SUCCESS);
  CHECK(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("SYNC_MEMOPS cannot be set on mapped memory, whose identity is each mapping's own and no context's") {
  const Simulated sim;
  const CUdeviceptr base = reserve(2 * kPage);
  for (const int at : {0, 1}) REQUIRE(cuMemMap(base + static_cast<CUdeviceptr>(at) * kPage, kPage, 0, create(kPage), 0) == CUDA_SUCCESS);
  REQUIRE(allow(base, 2 * kPage) == CUDA_SUCCESS);
  const unsigned on = 1;
  unsigned marked = 9;
  CHECK(cuPointerSetAttribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, base + 100) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(cuPointerGetAttribute(&marked, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, base) == CUDA_SUCCESS);
  CHECK(marked == 0);
  CUdeviceptr start = 0;
  std::size_t bytes = 0;
  CHECK(cuMemGetAddressRange_v2(&start, &bytes, base + kPage + 7) == CUDA_SUCCESS);
  CHECK((start == base + kPage && bytes == kPage));
  CUcontext owner = sim.context;
  CHECK(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, base) == CUDA_SUCCESS);
  CHECK(owner == nullptr);
  unsigned rights = 9;
  CHECK(cuPointerGetAttribute(&rights, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, base) == CUDA_SUCCESS);
  CHECK(rights == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(cuPointerGetAttribute(&rights, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, base) == CUDA_SUCCESS);
  CHECK(rights == CU_MEM_ACCESS_FLAGS_PROT_NONE);
}

TEST_CASE("a driver may know no address range of mapped memory") {
  const Simulated sim{{"VMM_RANGE", "0"}};
  CUdeviceptr start = 0;
  std::size_t bytes = 0;
  CHECK(cuMemGetAddressRange_v2(&start, &bytes, map_fresh(kPage)) == CUDA_ERROR_NOT_FOUND);
  CHECK(cuMemGetAddressRange_v2(&start, &bytes, Simulated::allocate(100)) == CUDA_SUCCESS);
}

TEST_CASE("a dma-buf descriptor covers cuMemAlloc or pool memory, or mappings without a hole") {
  const Simulated sim;
  constexpr auto kDmaBuf = CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
  const CUdeviceptr base = reserve(4 * kPage);
  for (const int at : {0, 1, 3}) REQUIRE(cuMemMap(base + static_cast<CUdeviceptr>(at) * kPage, kPage, 0, create(kPage), 0) == CUDA_SUCCESS);
  REQUIRE(allow(base, 2 * kPage) == CUDA_SUCCESS);
  const CUdeviceptr plain = Simulated::allocate(5000);
  int descriptor = -1;
  CHECK(cuMemGetHandleForAddressRange(&descriptor, base, 3 * kPage, kDmaBuf, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemGetHandleForAddressRange(&descriptor, base + 100, kPage, kDmaBuf, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemGetHandleForAddressRange(&descriptor, base, 100, kDmaBuf, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemGetHandleForAddressRange(&descriptor, plain, 3 * 4096, kDmaBuf, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemGetHandleForAddressRange(nullptr, base, kPage, kDmaBuf, 0) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr pooled = 0;
  REQUIRE(cuMemAllocAsync(&pooled, 8192, nullptr) == CUDA_SUCCESS);
  for (const CUdeviceptr whole : {plain, pooled}) {
    REQUIRE(cuMemGetHandleForAddressRange(&descriptor, whole, 2 * 4096, kDmaBuf, 0) == CUDA_SUCCESS);
    close(descriptor);
  }
  REQUIRE(cuMemGetHandleForAddressRange(&descriptor, base + kPage, kPage, kDmaBuf, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(base + kPage, 77, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  unsigned char byte = 0;
  CHECK(read(descriptor, &byte, 1) == 1);
  CHECK(byte == 77);
  close(descriptor);
}

TEST_CASE("memory for GPUDirect RDMA may be given, mapped, and then not opened") {
  const Simulated sim{{"VMM_RDMA", "unopened"}};
  int promised = 0;
  CHECK(cuDeviceGetAttribute(&promised, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 0) == CUDA_SUCCESS);
  CHECK(promised == 1);
  CUmemAllocationProp with_rdma = on_device(0);
  with_rdma.allocFlags.gpuDirectRDMACapable = 1;
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemCreate(&handle, kPage, &with_rdma, 0) == CUDA_SUCCESS);
  const CUdeviceptr base = reserve(2 * kPage);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemMap(base + kPage, kPage, 0, create(kPage), 0) == CUDA_SUCCESS);
  const CUmemAccessDesc access{on_device(0).location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
  CHECK(cuMemSetAccess(base, kPage, &access, 1) == CUDA_ERROR_UNKNOWN);
  CHECK(cuMemSetAccess(base, 2 * kPage, &access, 1) == CUDA_ERROR_UNKNOWN);
  CHECK(cuMemSetAccess(base + kPage, kPage, &access, 1) == CUDA_SUCCESS);
}
