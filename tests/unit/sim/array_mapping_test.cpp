// Sparse arrays: memory is mapped into their parts in stream order, and lives as long as it is mapped there.
#include <catch2/catch.hpp>

#include "sim_fixture.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

namespace {

CUmemGenericAllocationHandle tile_pool(std::size_t bytes, unsigned short usage = CU_MEM_CREATE_USAGE_TILE_POOL) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.allocFlags.usage = usage;
  CUmemGenericAllocationHandle handle = 0;
  REQUIRE(cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS);
  return handle;
}

CUarray sparse_array(unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = shape.Height = 1024;
  shape.Format = CU_AD_FORMAT_FLOAT;
  shape.NumChannels = 1;
  shape.Flags = flags;
  CUarray array = nullptr;
  REQUIRE(cuArray3DCreate_v2(&array, &shape) == CUDA_SUCCESS);
  return array;
}

CUarrayMapInfo change_of(CUarray array, CUmemGenericAllocationHandle handle, unsigned x = 0) {
  CUarrayMapInfo change{};
  change.resourceType = CU_RESOURCE_TYPE_ARRAY;
  change.resource.array = array;
  change.subresource.sparseLevel = {0, 0, x, 0, 0, 128, 128, 1};
  change.memOperationType = handle != 0 ? CU_MEM_OPERATION_TYPE_MAP : CU_MEM_OPERATION_TYPE_UNMAP;
  change.memHandle.memHandle = handle;
  change.deviceBitMask = 1;
  return change;
}

}  // namespace

TEST_CASE("memory in an array outlives its handle, until it is unmapped there in stream order") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUarray array = sparse_array(CUDA_ARRAY3D_SPARSE);
  const std::uint64_t before = cusim_used_bytes(0);
  CUarrayMapInfo changes[2] = {change_of(array, tile_pool(2 * kMiB)), change_of(array, tile_pool(4 * kMiB), 128)};
  REQUIRE(cuMemMapArrayAsync(changes, 2, stream) == CUDA_SUCCESS);
  for (const CUarrayMapInfo& change : changes) REQUIRE(cuMemRelease(change.memHandle.memHandle) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == before + 6 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 1000) == CUDA_SUCCESS);
  CUarrayMapInfo end = change_of(array, 0);
  REQUIRE(cuMemMapArrayAsync(&end, 1, stream) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == before + 6 * kMiB);  // its turn has not come
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == before + 4 * kMiB);
  REQUIRE(cuArrayDestroy(array) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == before);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("what is mapped over another part replaces it, a context's end takes its arrays along, and a deferred array is one part") {
  const Simulated sim;
  CUcontext made = nullptr;
  REQUIRE(cuCtxCreate_v2(&made, 0, 0) == CUDA_SUCCESS);
  const std::uint64_t before = cusim_used_bytes(0);
  const CUarray array = sparse_array(CUDA_ARRAY3D_DEFERRED_MAPPING);
  for (unsigned i = 0; i < 3; ++i) {
    CUarrayMapInfo change = change_of(array, tile_pool(2 * kMiB), 128 * i);
    REQUIRE(cuMemMapArrayAsync(&change, 1, nullptr) == CUDA_SUCCESS);
    REQUIRE(cuMemRelease(change.memHandle.memHandle) == CUDA_SUCCESS);
  }
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == before + 2 * kMiB);
  REQUIRE(cuCtxDestroy_v2(made) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) <= before);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("memory is mapped into sparse arrays only, made for it, on its own device, and nothing is mapped where one of the changes is wrong") {
  const Simulated sim;
  const CUarray array = sparse_array(CUDA_ARRAY3D_SPARSE);
  const CUmemGenericAllocationHandle handle = tile_pool(2 * kMiB);
  CUarrayMapInfo changes[2] = {change_of(array, handle), change_of(array, handle, 128)};
  CUarrayMapInfo& wrong = changes[1];
  CUresult expected = CUDA_ERROR_INVALID_VALUE;
  SECTION("device") { wrong.deviceBitMask = 2; }
  SECTION("flags") { wrong.flags = 1; }
  SECTION("reserved") { wrong.reserved[1] = 1; }
  SECTION("offset") { wrong.offset = 1; }
  SECTION("operation") { wrong.memOperationType = static_cast<CUmemOperationType>(3); }
  SECTION("an unmap with a handle") { wrong.memOperationType = CU_MEM_OPERATION_TYPE_UNMAP; }
  SECTION("no extent") { wrong.subresource.sparseLevel.extentWidth = 0; }
  SECTION("an array of its own memory") { wrong.resource.array = sparse_array(0); }
  SECTION("memory that is not for tiles") { wrong.memHandle.memHandle = tile_pool(2 * kMiB, 0); }
  SECTION("an array that is gone") {
    wrong.resource.array = sparse_array(CUDA_ARRAY3D_SPARSE);
    REQUIRE(cuArrayDestroy(wrong.resource.array) == CUDA_SUCCESS);
    expected = CUDA_ERROR_INVALID_HANDLE;
  }
  CHECK(cuMemMapArrayAsync(changes, 2, nullptr) == expected);
  CHECK(cuMemMapArrayAsync(nullptr, 1, nullptr) == CUDA_ERROR_INVALID_VALUE);
  const std::uint64_t before = cusim_used_bytes(0);
  REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) + 2 * kMiB == before);
}
