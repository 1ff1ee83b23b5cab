// Pages on their way back to the driver: whose go first, how much goes, when their addresses come again, and what of a failed request stays.
#include <catch2/catch.hpp>

#include <map>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kPage_bytes = 2 * kMiB;

RigOptions pages_of(const char* memory, const char* limit = nullptr) {
  RigOptions options = on_pages(device_of(memory));
  if (limit != nullptr) options.pool.limit.all = config::parse_amount(limit);
  return options;
}

/// A block whose pages are empty, and that nothing waits for.
void free_and_wait(Rig& rig, CUdeviceptr block) {
  rig.free(block);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().after_wait(rig.context());
}

/// The first unmap meets an error of the program's earlier work, the others one of their own.
unsigned g_unmaps = 0;
CUresult CUDAAPI unmap_after_an_error(CUdeviceptr, std::size_t) { return g_unmaps++ == 0 ? CUDA_ERROR_ILLEGAL_ADDRESS : CUDA_ERROR_UNKNOWN; }

/// Another process takes all that is left while the pool creates its fifth handle.
unsigned g_creates = 0;
CUdeviceptr g_of_others = 0;
CUresult CUDAAPI create_beside_others(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                                      unsigned long long flags) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (++g_creates == 5 && cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS) cuMemAlloc_v2(&g_of_others, free_bytes);
  return cuMemCreate(handle, bytes, properties, flags);
}

}  // namespace

TEST_CASE("pages: an address comes again after 64 times the device's memory of other addresses, and not before") {
  Rig rig(pages_of("32MiB"));
  std::map<CUdeviceptr, int> last;
  int repeated = 0;
  for (int i = 0; i < 200; ++i) {
    const CUdeviceptr block = rig.allocate(32 * kMiB);
    for (CUdeviceptr page = block; page < block + 32 * kMiB; page += kPage_bytes) {
      const auto before = last.find(page);
      if (before != last.end()) ++repeated;
      if (before != last.end()) REQUIRE(i - before->second > 64);
      last[page] = i;
    }
    rig.free(block);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    rig.pools().trim();
  }
  CHECK(repeated > 0);
  CHECK(cusim_calls("cuMemAddressReserve") < 16);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: who lacks less than a handle gets a whole one, and not all there is") {
  RigOptions options = pages_of("16GiB");
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("75%");
  Rig rig(options);
  for (const std::size_t bytes : {100 * kKiB, kMiB, 8 * kMiB}) rig.allocate(bytes);  // in the first handles, which are of one page
  const std::uint64_t before_bytes = cusim_used_bytes(0);
  REQUIRE(rig.pools().make_room_for(0, 16 * kGiB - before_bytes + 11 * kMiB));
  CHECK(cusim_used_bytes(0) <= before_bytes - 11 * kMiB);
  CHECK(cusim_used_bytes(0) >= before_bytes - 64 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: what something outside may know of goes back last, however much of it lies together") {
  Rig rig(pages_of("1GiB"));
  const CUdeviceptr known = rig.allocate(32 * kMiB);
  const CUdeviceptr between = rig.allocate(kPage_bytes);
  const CUdeviceptr other = rig.allocate(16 * kMiB);
  rig.allocate(kPage_bytes);
  rig.pools().pin_pages(known);
  rig.free(known);
  free_and_wait(rig, other);
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  CHECK(rig.pools().trim(0, reserved_bytes - 16 * kMiB) == 16 * kMiB);
  CHECK(now(rig.counters().mapped_bytes) == now(rig.counters().reserved_bytes));
  CHECK(rig.allocate(32 * kMiB) == known);
  CHECK(between != 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: an error of earlier work that moving meets is the program's, whatever comes after it") {
  RigOptions options = pages_of("1GiB", "64MiB");
  options.patch = [](DriverApi& api) { api.cuMemUnmap = &unmap_after_an_error; };
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 16; ++i) blocks.push_back(rig.allocate(4 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); i += 2) rig.free(blocks[i]);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  g_unmaps = 0;
  CHECK(rig.try_allocate(32 * kMiB).code() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(g_unmaps > 1);
  CHECK(rig.pools().take_untold_oom() == 0);
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: what was created for a request that is refused in the end goes back with the refusal") {
  RigOptions options = pages_of("256MiB");
  options.patch = [](DriverApi& api) { api.cuMemCreate = &create_beside_others; };
  g_creates = 0;
  Rig rig(options);
  rig.allocate(kPage_bytes);
  REQUIRE(rig.try_allocate(100 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_calls("cuMemMap") == 1);
  CHECK(cusim_calls("cuMemRelease") > 1);
  CHECK(now(rig.counters().reserved_bytes) == kPage_bytes);
  REQUIRE(cuMemFree_v2(g_of_others) == CUDA_SUCCESS);
  CHECK(cusim_used_bytes(0) == kPage_bytes);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: what is mapped nowhere goes back first, and no more of it than was asked for") {
  Rig rig(pages_of("1GiB"));
  rig.allocate(kPage_bytes);
  const CUdeviceptr empty = rig.allocate(32 * kMiB);
  free_and_wait(rig, empty);
  cusim_fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN, 1'000'000);
  rig.allocate(100 * kMiB);
  cusim_fail("cuMemMap", 1, CUDA_SUCCESS, 0);
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  const std::uint64_t unmaps = cusim_calls("cuMemUnmap");
  CHECK(rig.pools().trim(0, reserved_bytes - 7 * kMiB) == 6 * kMiB);
  CHECK(rig.pools().trim(0, reserved_bytes - 12 * kMiB) == 6 * kMiB);
  const std::uint64_t used_bytes = cusim_used_bytes(0);
  REQUIRE(rig.pools().make_room_for(0, kGiB - used_bytes + 3 * kMiB));
  CHECK(cusim_used_bytes(0) >= used_bytes - 8 * kMiB);
  CHECK(cusim_calls("cuMemUnmap") == unmaps);
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: what is mapped nowhere serves other blocks before anything is created") {
  RigOptions options = pages_of("64GiB");
  options.pool.release_threshold_bytes = 64 * kGiB;  // so nothing is created ahead
  Rig rig(options);
  rig.allocate(kPage_bytes);
  cusim_fail("cuMemMap", 1, CUDA_ERROR_UNKNOWN, 1'000'000);
  rig.allocate(64 * kMiB);
  cusim_fail("cuMemMap", 1, CUDA_SUCCESS, 0);
  const std::uint64_t created = cusim_calls("cuMemCreate");
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  REQUIRE(created < 20);                                                      // handles are larger than the next block
  for (const std::size_t bytes : {4 * kMiB, 36 * kMiB}) rig.allocate(bytes);  // less than a handle, and more than there are whole ones for
  CHECK(cusim_calls("cuMemCreate") == created);
  CHECK(now(rig.counters().native_fallbacks) == 1);
  CHECK(rig.pools().check() == "");
}
