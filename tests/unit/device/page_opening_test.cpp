// What the driver maps and does not open: handles ask for less, and where nothing is ever opened the driver's own calls serve.
#include <catch2/catch.hpp>

#include <string>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// Read by the Rig's reset.
struct RdmaSetting {
  explicit RdmaSetting(const char* value) { cusim_configure("VMM_RDMA", value); }
  ~RdmaSetting() { cusim_configure("VMM_RDMA", nullptr); }
};

RigOptions pages() {
  RigOptions options;
  options.pool.backing = config::Backing::pages;
  return options;
}

unsigned attribute(CUpointer_attribute name, CUdeviceptr address) {
  unsigned value = 9;
  CHECK(cuPointerGetAttribute(&value, name, address) == CUDA_SUCCESS);
  return value;
}

}  // namespace

TEST_CASE("opening: a device whose memory for GPUDirect RDMA is never opened is served on pages without it, and keeps descriptors") {
  const RdmaSetting never_opened("unopened");
  Rig rig(pages());
  const std::uint64_t before_bytes = cusim_used_bytes(0);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(rig.allocate(5 * kMiB));
  CHECK(std::string(rig.live().backing) == "pages");
  CHECK(now(rig.counters().native_fallbacks) == 0);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, blocks[0]) == 0);
  unsigned long long types = 0;
  CHECK(cuPointerGetAttribute(&types, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES, blocks[0]) == CUDA_SUCCESS);
  CHECK(types == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
  CHECK(cusim_calls("cuMemCreate") - cusim_calls("cuMemRelease") == now(rig.counters().handles_created));  // what was not opened is gone
  CHECK(cusim_used_bytes(0) - before_bytes == now(rig.counters().reserved_bytes));
  CHECK(rig.pools().check() == "");
}

TEST_CASE(
    "opening: where memory is never opened the driver's own calls serve, without looking for more each time, and the next context has segments") {
  const char* call = GENERATE("cuMemSetAccess", "cuMemMap");
  const CUresult code = GENERATE(CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_NOT_SUPPORTED);
  Rig rig(pages());
  cusim_fail(call, 1, code, 1'000'000);
  const std::uint64_t began_ns = cusim_now_ns();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(rig.allocate(kMiB));
  CHECK(now(rig.counters().native_fallbacks) == 20);
  CHECK(now(rig.counters().live_bytes) == 20 * kMiB);
  CHECK(cusim_calls(call) <= 32);
  CHECK(cusim_calls("cuMemCreate") == cusim_calls("cuMemRelease"));
  CHECK(cusim_now_ns() - began_ns < 100'000'000);
  CHECK(rig.pools().check() == "");
  for (const CUdeviceptr address : blocks) rig.free(address);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  rig.pools().context_seen(other, 0);
  const CUdeviceptr later = rig.pools().allocate(other, kMiB, "cuMemAlloc_v2").value();
  CHECK(std::string(rig.live().backing) == "segments");
  CHECK(now(rig.counters().native_fallbacks) == 20);
  rig.pools().free(later);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("opening: where mapping is out of memory and the device is not, the driver's own call serves at once") {
  const char* call = GENERATE("cuMemSetAccess", "cuMemMap");
  Rig rig(pages());
  rig.free(rig.allocate(2 * kMiB));
  cusim_fail(call, 1, CUDA_ERROR_OUT_OF_MEMORY, 1'000'000);  // as when the kernel lets the process have no more mappings
  const std::uint64_t began_ns = cusim_now_ns();
  for (int i = 0; i < 20; ++i) rig.allocate(5 * kMiB);
  CHECK(now(rig.counters().native_fallbacks) == 20);
  CHECK(cusim_now_ns() - began_ns < 100'000'000);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("opening: one refusal is a chance thing, and memory that was opened once is not doubted") {
  Rig rig(pages());
  const CUdeviceptr first = rig.allocate(kMiB);
  cusim_fail("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN, 1);
  const CUdeviceptr second = rig.allocate(100 * kMiB);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, first) == 1);
  const CUdeviceptr third = rig.allocate(100 * kMiB);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, third) == 1);
  CHECK(std::string(rig.live().backing) == "pages");
  for (const CUdeviceptr address : {first, second, third}) rig.free(address);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("opening: memory that was opened once is not doubted however often the driver refuses it later") {
  Rig rig(pages());
  const CUdeviceptr first = rig.allocate(kMiB);
  for (int i = 0; i < 5; ++i) {
    cusim_fail("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN, 2);
    static_cast<void>(rig.try_allocate(50 * kMiB));
  }
  cusim_fail("cuMemSetAccess", 1, CUDA_ERROR_UNKNOWN, 0);
  const CUdeviceptr last = rig.allocate(200 * kMiB);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, first) == 1);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, last) == 1);
  CHECK(now(rig.counters().mapped_bytes) > 200 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("opening: where mapping is out of memory from the beginning nothing is given up, and pages serve once there is some") {
  const char* call = GENERATE("cuMemSetAccess", "cuMemMap");
  Rig rig(pages());
  cusim_fail(call, 1, CUDA_ERROR_OUT_OF_MEMORY, 1'000'000);
  for (int i = 0; i < 20; ++i) rig.allocate(5 * kMiB);
  CHECK(now(rig.counters().native_fallbacks) == 20);
  cusim_fail(call, 1, CUDA_SUCCESS, 0);
  const CUdeviceptr block = rig.allocate(5 * kMiB);
  CHECK(now(rig.counters().native_fallbacks) == 20);
  CHECK(attribute(CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE, block) == 1);
  CHECK(std::string(rig.live().backing) == "pages");
  CHECK(rig.pools().check() == "");
}

TEST_CASE("opening: where mapping is out of memory after what is needed the block is there, by the same call") {
  Rig rig(pages());
  rig.allocate(128 * kMiB);
  const std::uint64_t opened = cusim_calls("cuMemSetAccess");
  cusim_fail("cuMemMap", 3, CUDA_ERROR_OUT_OF_MEMORY, 1);
  rig.allocate(4 * kMiB);
  CHECK(cusim_calls("cuMemSetAccess") == opened + 1);
  CHECK(cusim_calls("cuMemUnmap") == 0);
  CHECK(now(rig.counters().rung_grow) == opened + 1);
  CHECK(now(rig.counters().native_fallbacks) == 0);
  CHECK(rig.pools().check() == "");
}
