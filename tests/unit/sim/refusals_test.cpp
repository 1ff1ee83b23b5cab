// What a driver refuses whoever asks: nowhere to write the answer to, flags that do not exist, memory and contexts that are gone. A simulator
// that takes such calls would let a program, or the library, get away with them.
#include <catch2/catch.hpp>
#include <sys/mman.h>
#include <unistd.h>

#include "vmm_pages.hpp"

using namespace sim_test::vmm;
using sim_test::kMiB;
using sim_test::Simulated;

TEST_CASE("questions without a place for the answer are refused") {
  const Simulated sim;
  CUdeviceptr block = Simulated::allocate(kMiB);
  const CUstream stream = Simulated::stream();
  CHECK(cuCtxGetFlags(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuCtxGetApiVersion(sim.context, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemAllocManaged(nullptr, kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemHostGetFlags(nullptr, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuPointerSetAttribute(nullptr, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, block) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceGetDefaultMemPool(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceGetMemPool(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGetErrorName(CUDA_SUCCESS, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGetErrorString(CUDA_SUCCESS, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDeviceGetExecAffinitySupport(nullptr, CU_EXEC_AFFINITY_TYPE_SM_COUNT, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuModuleGetLoadingMode(nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuStreamAddCallback(stream, nullptr, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGraphCreate(nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  void* entry = nullptr;
  CHECK(cuGetProcAddress_v2(nullptr, &entry, 12000, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGetProcAddress_v2("cuInit", nullptr, 12000, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a handle that nothing has is refused") {
  const Simulated sim{{"DEVICES", "2"}};
  unsigned version = 0;
  const auto nobody = reinterpret_cast<CUcontext>(0x51000000ffc0);
  CHECK(cuCtxGetApiVersion(nobody, &version) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxEnablePeerAccess(nullptr, 0) == CUDA_ERROR_INVALID_CONTEXT);
  CHECK(cuCtxDisablePeerAccess(nullptr) == CUDA_ERROR_INVALID_CONTEXT);
  CUgraphNodeType type{};
  CHECK(cuGraphNodeGetType(nullptr, &type) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr mapped = 0;
  int unknown = 0;
  CHECK(cuMemHostGetDevicePointer_v2(&mapped, &unknown, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemHostGetDevicePointer_v2(&mapped, reinterpret_cast<void*>(Simulated::allocate(kMiB)), 0) == CUDA_ERROR_INVALID_VALUE);
  unsigned flags = 0;
  CHECK(cuMemHostGetFlags(&flags, &unknown) == CUDA_ERROR_INVALID_VALUE);
  CUmemAllocationProp properties{};
  CHECK(cuMemGetAllocationPropertiesFromHandle(&properties, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("flags, types and sizes that do not exist are refused") {
  const Simulated sim;
  CHECK(cuDevicePrimaryCtxSetFlags_v2(0, 0x8000) == CUDA_ERROR_INVALID_VALUE);
  int affinity = 0;
  CHECK(cuDeviceGetExecAffinitySupport(&affinity, CU_EXEC_AFFINITY_TYPE_MAX, 0) == CUDA_ERROR_INVALID_VALUE);
  CUDA_ARRAY_DESCRIPTOR_v2 nothing{};
  nothing.Format = CU_AD_FORMAT_FLOAT;
  nothing.NumChannels = 4;
  CUarray array = nullptr;
  CHECK(cuArrayCreate_v2(&array, &nothing) == CUDA_ERROR_INVALID_VALUE);
  CUdeviceptr managed = 0;
  REQUIRE(cuMemAllocManaged(&managed, kMiB, CU_MEM_ATTACH_GLOBAL) == CUDA_SUCCESS);
  CHECK(cuMemAdvise(managed, 0, CU_MEM_ADVISE_SET_READ_MOSTLY, 0) == CUDA_ERROR_INVALID_VALUE);
  CUdevResource all{};
  CUdevResource part{};
  unsigned count = 1;
  CHECK(cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, 16) == CUDA_ERROR_INVALID_RESOURCE_TYPE);
  CUdevice found = 0;
  CHECK(cuDeviceGetByPCIBusId(&found, "0000:10:01.0") == CUDA_ERROR_INVALID_DEVICE);
}

TEST_CASE("virtual memory management refuses what it was not asked for properly") {
  const Simulated sim;
  const CUmemGenericAllocationHandle handle = create(kPage);
  const CUdeviceptr base = reserve(kPage);
  REQUIRE((handle != 0 && base != 0));
  CUmemGenericAllocationHandle out = 0;
  CHECK(cuMemCreate(&out, kPage, nullptr, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemMap(base, kPage, 0, handle, 1) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuMemMap(base, kPage, 0, 0, 0) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemMap(base, kPage, 0, handle, 0) == CUDA_SUCCESS);
  CHECK(allow(base, 0) == CUDA_ERROR_INVALID_VALUE);
  CUmemAccessDesc of_host{};
  of_host.location.type = CU_MEM_LOCATION_TYPE_HOST;
  of_host.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  CHECK(cuMemSetAccess(base, kPage, &of_host, 1) == CUDA_ERROR_INVALID_VALUE);
  REQUIRE(cuMemUnmap(base, kPage) == CUDA_SUCCESS);
  REQUIRE(cuMemAddressFree(base, kPage) == CUDA_SUCCESS);
  CHECK(cuMemAddressFree(base, kPage) == CUDA_ERROR_INVALID_VALUE);  // what is free is nobody's
  CHECK(cuMemMap(base, kPage, 0, handle, 0) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("a file that no memory was exported to is not imported") {
  const Simulated sim;
  const int file = memfd_create("foreign", MFD_CLOEXEC);
  REQUIRE(ftruncate(file, (off_t{1} << 47) + (1 << 20)) == 0);
  REQUIRE(lseek(file, 2 << 20, SEEK_SET) == 2 << 20);
  CUmemGenericAllocationHandle imported = 0;
  void* const descriptor = reinterpret_cast<void*>(static_cast<std::intptr_t>(file));
  CHECK(cuMemImportFromShareableHandle(&imported, descriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != CUDA_SUCCESS);
  close(file);
}

TEST_CASE("an external buffer needs a description") {
  const Simulated sim;
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC wanted{};
  wanted.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  wanted.handle.fd = memfd_create("external", MFD_CLOEXEC);
  wanted.size = kMiB;
  REQUIRE(ftruncate(wanted.handle.fd, kMiB) == 0);
  CUexternalMemory external = nullptr;
  REQUIRE(cuImportExternalMemory(&external, &wanted) == CUDA_SUCCESS);
  CUdeviceptr buffer = 0;
  CHECK(cuExternalMemoryGetMappedBuffer(&buffer, external, nullptr) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDestroyExternalMemory(external) == CUDA_SUCCESS);
}

TEST_CASE("of a destroyed context that is still current only a primary one tells its device") {
  const Simulated sim;
  CUcontext created = nullptr;
  REQUIRE(cuCtxCreate_v2(&created, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxPushCurrent_v2(created) == CUDA_SUCCESS);  // twice on the stack: one is popped
  const CUevent event = Simulated::event();
  REQUIRE(cuCtxDestroy_v2(created) == CUDA_SUCCESS);
  CUdevice device = -1;
  unsigned version = 0;
  CHECK(cuCtxGetDevice(&device) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuCtxGetApiVersion(created, &version) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuStreamSynchronize(nullptr) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuEventQuery(event) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuCtxSetCurrent(sim.context) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(cuCtxGetDevice(&device) == CUDA_SUCCESS);
  CHECK(device == 0);
}

TEST_CASE("no event is recorded for a context that is broken") {
  const Simulated sim;
  const CUevent event = Simulated::event();
  const CUdeviceptr block = Simulated::allocate(kMiB);
  REQUIRE(cuMemFree_v2(block) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(nullptr, block, kMiB, 1, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxRecordEvent(sim.context, event) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxWaitEvent(sim.context, event) == CUDA_ERROR_ILLEGAL_ADDRESS);
}
