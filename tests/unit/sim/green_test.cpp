// Green contexts, modules and external memory: whose the memory is, what covers whose work, what is charged.
#include <catch2/catch.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include "sim_fixture.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

namespace {

CUdevResourceDesc part_of_device(int device) {
  CUdevResource all{};
  CUdevResource part{};
  unsigned count = 1;
  CUdevResourceDesc descriptor = nullptr;
  REQUIRE(cuDeviceGetDevResource(device, &all, CU_DEV_RESOURCE_TYPE_SM) == CUDA_SUCCESS);
  REQUIRE(cuDevSmResourceSplitByCount(&part, &count, &all, nullptr, 0, 16) == CUDA_SUCCESS);
  REQUIRE(count == 1);
  CHECK(part.sm.smCount == 16);
  REQUIRE(cuDevResourceGenerateDesc(&descriptor, &part, 1) == CUDA_SUCCESS);
  return descriptor;
}

struct Green : Simulated {
  Green() {
    REQUIRE(cuGreenCtxCreate(&green, part_of_device(0), 0, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
    REQUIRE(cuCtxFromGreenCtx(&view, green) == CUDA_SUCCESS);
    REQUIRE(cuGreenCtxStreamCreate(&line, green, CU_STREAM_NON_BLOCKING, 0) == CUDA_SUCCESS);
  }

  CUgreenCtx green = nullptr;
  CUcontext view = nullptr;
  CUstream line = nullptr;
};

}  // namespace

TEST_CASE("memory of a green context is the primary's: it outlives the green context") {
  Green sim;
  REQUIRE(cuCtxSetCurrent(sim.view) == CUDA_SUCCESS);
  const CUdeviceptr address = Simulated::allocate(kMiB);
  REQUIRE(address != 0);
  CUcontext owner = nullptr;
  REQUIRE(cuPointerGetAttribute(&owner, CU_POINTER_ATTRIBUTE_CONTEXT, address) == CUDA_SUCCESS);
  CHECK(owner == sim.context);
  REQUIRE(cusim_launch_fill(sim.line, address, kMiB, 3, 100) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(sim.context) == CUDA_SUCCESS);
  REQUIRE(cuStreamDestroy_v2(sim.line) == CUDA_SUCCESS);
  REQUIRE(cuGreenCtxDestroy(sim.green) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(nullptr, address, kMiB, 3, 1) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(cusim_violation_count() == 0);
  CHECK(cuGreenCtxDestroy(sim.green) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cuCtxSetCurrent(sim.view) != CUDA_SUCCESS);
}

TEST_CASE("what waits for the primary waits for its green contexts, not the other way round") {
  Green sim;
  const CUevent event = Simulated::event();
  REQUIRE(cusim_launch_spin(sim.line, 1000) == CUDA_SUCCESS);
  SECTION("an event of the whole context") {
    REQUIRE(cuCtxRecordEvent(sim.context, event) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    cusim_advance_ns(1000);
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  }
  SECTION("a free") {
    REQUIRE(cuMemFree_v2(Simulated::allocate(kMiB)) == CUDA_SUCCESS);
    CHECK(cusim_now_ns() == 1000);
  }
  SECTION("an event of the green context") {
    REQUIRE(cusim_launch_spin(Simulated::stream(), 5000) == CUDA_SUCCESS);
    REQUIRE(cuGreenCtxRecordEvent(sim.green, event) == CUDA_SUCCESS);
    REQUIRE(cuEventSynchronize(event) == CUDA_SUCCESS);
    CHECK(cusim_now_ns() == 1000);
  }
}

TEST_CASE("recording for the primary kills a capture in a green context") {
  Green sim;
  const CUevent event = Simulated::event();
  REQUIRE(cuStreamBeginCapture_v2(sim.line, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  CHECK(cuCtxRecordEvent(sim.context, event) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CUgraph graph = nullptr;
  CHECK(cuStreamEndCapture(sim.line, &graph) == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("a green context holds the primary context; its streams die with it") {
  Green sim;
  const CUdeviceptr address = Simulated::allocate(kMiB);
  REQUIRE(cuDevicePrimaryCtxRelease_v2(0) == CUDA_SUCCESS);
  CHECK(cusim_allocation_count(0) == 1);
  REQUIRE(cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  REQUIRE(cuGreenCtxDestroy(sim.green) == CUDA_SUCCESS);
  CHECK(cusim_allocation_count(0) == 0);
  CHECK(address != 0);
  CHECK(cuStreamSynchronize(sim.line) == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  CHECK(cusim_violation_count() == 1);
}

TEST_CASE("destroying a green context returns while its work runs, and the primary waits for it") {
  const Green sim;
  const CUdeviceptr address = Simulated::allocate(kMiB);
  REQUIRE(cusim_launch_fill(sim.line, address, kMiB, 1, 1000) == CUDA_SUCCESS);
  REQUIRE(cuGreenCtxDestroy(sim.green) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 0);
  SECTION("a synchronisation") { CHECK(cuCtxSynchronize() == CUDA_SUCCESS); }
  SECTION("a free") { CHECK(cuMemFree_v2(address) == CUDA_SUCCESS); }
  CHECK(cusim_now_ns() == 1000);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("green contexts are refused what the documentation refuses") {
  const Simulated sim{{"DEVICES", "2"}};
  CUgreenCtx green = nullptr;
  CUstream stream = nullptr;
  CHECK(cuGreenCtxCreate(&green, part_of_device(0), 0, 0) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGreenCtxCreate(&green, part_of_device(0), 1, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuGreenCtxCreate(&green, part_of_device(1), 2, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_ERROR_INVALID_DEVICE);
  REQUIRE(cuGreenCtxCreate(&green, part_of_device(1), 1, CU_GREEN_CTX_DEFAULT_STREAM) == CUDA_SUCCESS);
  CHECK(cuGreenCtxStreamCreate(&stream, green, CU_STREAM_DEFAULT, 0) == CUDA_ERROR_INVALID_VALUE);
  CUcontext view = nullptr;
  REQUIRE(cuCtxFromGreenCtx(&view, green) == CUDA_SUCCESS);
  CHECK(cuCtxDestroy_v2(view) == CUDA_ERROR_INVALID_CONTEXT);
}

TEST_CASE("an external buffer is freed as device memory, after its work and once; it costs the device nothing") {
  const Simulated sim;
  const int file = memfd_create("external", MFD_CLOEXEC);
  REQUIRE(file >= 0);
  REQUIRE(ftruncate(file, 4 * kMiB) == 0);
  const int view = dup(file);
  CUDA_EXTERNAL_MEMORY_HANDLE_DESC wanted{};
  wanted.type = CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
  wanted.handle.fd = file;
  wanted.size = 8 * kMiB;
  CUexternalMemory memory = nullptr;
  CHECK(cuImportExternalMemory(&memory, &wanted) == CUDA_ERROR_INVALID_VALUE);
  wanted.size = 4 * kMiB;
  REQUIRE(cuImportExternalMemory(&memory, &wanted) == CUDA_SUCCESS);
  CUDA_EXTERNAL_MEMORY_BUFFER_DESC buffer{};
  buffer.offset = kMiB;
  buffer.size = 4 * kMiB;
  CUdeviceptr address = 0;
  CHECK(cuExternalMemoryGetMappedBuffer(&address, memory, &buffer) == CUDA_ERROR_INVALID_VALUE);
  buffer.size = 2 * kMiB;
  REQUIRE(cuExternalMemoryGetMappedBuffer(&address, memory, &buffer) == CUDA_SUCCESS);
  REQUIRE(cuDestroyExternalMemory(memory) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(nullptr, address, 2 * kMiB, 9, 100) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
  REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  char back = 0;
  CHECK(pread(view, &back, 1, kMiB) == 1);
  CHECK(back == 9);
  CHECK(cusim_violation_count() == 0);
  CHECK(cuMemFree_v2(address) == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuDestroyExternalMemory(memory) == CUDA_ERROR_INVALID_HANDLE);
  close(view);
}

TEST_CASE("a module costs device memory until it is unloaded, or its context ends") {
  const Simulated sim{{"MEMORY", "2MiB"}};
  CUmodule module = nullptr;
  CUmodule second = nullptr;
  REQUIRE(cuModuleLoadData(&module, "image") == CUDA_SUCCESS);
  CHECK(cuModuleLoadData(&second, "image") == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuModuleLoad(&second, "/nowhere/at/all") == CUDA_ERROR_FILE_NOT_FOUND);
  CHECK(cuModuleUnload(module) == CUDA_SUCCESS);
  CHECK(cuModuleUnload(module) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuModuleLoadData(&second, "image") == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == 0);
}
