// A driver that has few addresses, or none: pages lie in what there is, and the driver's own calls serve the rest.
#include <catch2/catch.hpp>

#include <string>
#include <utility>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// Read by the Rig's reset.
struct AddressSetting {
  explicit AddressSetting(const char* value) { cusim_configure("ADDRESSES", value); }
  ~AddressSetting() { cusim_configure("ADDRESSES", nullptr); }
};

RigOptions pages_of(const char* memory) {
  RigOptions options = device_of(memory);
  options.pool.backing = config::Backing::pages;
  return options;
}

}  // namespace

TEST_CASE("addresses: where there are fewer than the device is large, pages lie in those that there are") {
  const AddressSetting few("4GiB");
  Rig rig(pages_of("16GiB"));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(rig.allocate(100 * kMiB));
  for (int i = 0; i < 2'000; ++i) blocks.push_back(rig.allocate(20 * 1024));  // with much left, such blocks would have addresses of their own
  CHECK(std::string(rig.live().backing) == "pages");
  CHECK(now(rig.counters().native_fallbacks) == 0);
  CHECK(cusim_calls("cuMemAddressReserve") <= 16);
  for (const CUdeviceptr address : blocks) rig.free(address);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("addresses: once they are out the driver's own calls serve, at once") {
  const AddressSetting few("2GiB");
  Rig rig(pages_of("16GiB"));
  const std::uint64_t began_ns = cusim_now_ns();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 120; ++i) blocks.push_back(rig.allocate(100 * kMiB));
  CHECK(now(rig.counters().native_fallbacks) < 118);
  CHECK(now(rig.counters().native_fallbacks) > 100);
  CHECK(cusim_now_ns() - began_ns < 100'000'000);
  for (const CUdeviceptr address : blocks) rig.free(address);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("addresses: where there are none the context is the driver's own, without looking for some each time, and the next one has segments") {
  const AddressSetting few("100MiB");
  Rig rig(pages_of("1GiB"));
  const std::uint64_t began_ns = cusim_now_ns();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(rig.allocate(kMiB));
  CHECK(now(rig.counters().native_fallbacks) == 100);
  CHECK(cusim_calls("cuMemAddressReserve") <= 32);
  CHECK(cusim_now_ns() - began_ns < 100'000'000);
  for (const CUdeviceptr address : blocks) rig.free(address);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  rig.pools().context_seen(other, 0);
  const CUdeviceptr later = rig.pools().allocate(other, kMiB, "cuMemAlloc_v2").value();
  CHECK(std::string(rig.live().backing) == "segments");
  CHECK(now(rig.counters().native_fallbacks) == 100);
  rig.pools().free(later);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("addresses: a block that wants too many, and one refusal, condemn nothing") {
  const AddressSetting few("2GiB");
  Rig rig(pages_of("16GiB"));
  cusim_fail("cuMemAddressReserve", 1, CUDA_ERROR_UNKNOWN, 1);
  for (int i = 0; i < 40; ++i) rig.free(rig.allocate(3 * 1024 * kMiB));
  CHECK(now(rig.counters().native_fallbacks) == 40);
  rig.free(rig.allocate(kMiB));
  CHECK(now(rig.counters().native_fallbacks) == 40);
  CHECK(std::string(rig.live().backing) == "pages");
  CHECK(rig.pools().check() == "");
}

TEST_CASE("addresses: once they are out those that were used longest ago come again, and no others") {
  const AddressSetting few("6GiB");
  Rig rig(pages_of("1GiB"));
  std::uint64_t before_bytes = 0;
  std::uint64_t after_bytes = 0;
  for (int i = 0; i < 100 && after_bytes >= before_bytes; ++i) {
    rig.free(rig.allocate(200 * kMiB));
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    before_bytes = std::exchange(after_bytes, (rig.pools().trim(), now(rig.counters().quarantined_bytes)));
  }
  CHECK(after_bytes < before_bytes);
  CHECK(after_bytes > before_bytes / 2);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("addresses: where small blocks get none of their own they lie beside large ones") {
  const AddressSetting few("17100MiB");
  RigOptions options = pages_of("16GiB");
  options.pool.release_threshold_bytes = 16 * 1024 * kMiB;  // so nothing is created ahead
  Rig rig(options);
  const CUdeviceptr large = rig.allocate(1024 * kMiB);
  std::vector<CUdeviceptr> small;
  for (int i = 0; i < 100; ++i) small.push_back(rig.allocate(20 * 1024));
  CHECK(now(rig.counters().native_fallbacks) == 0);
  CHECK(cusim_calls("cuMemAddressReserve") > 1);
  for (const CUdeviceptr address : small) CHECK((address > large && address < large + 17 * 1024 * kMiB));
  CHECK(rig.pools().check() == "");
}

TEST_CASE("addresses: a block that is larger than the device asks for none, and for no memory") {
  Rig rig(pages_of("1GiB"));
  rig.allocate(kMiB);
  const std::uint64_t reserves = cusim_calls("cuMemAddressReserve");
  const std::uint64_t creates = cusim_calls("cuMemCreate");
  for (const std::uint64_t bytes : {kGiB + 1, 4 * kGiB, 1024 * kGiB}) CHECK(rig.try_allocate(bytes).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_calls("cuMemAddressReserve") == reserves);
  CHECK(cusim_calls("cuMemCreate") == creates);
}

TEST_CASE("addresses: an error of earlier work that asking for them meets is the program's") {
  Rig rig(pages_of("1GiB"));
  cusim_fail("cuMemAddressReserve", 1, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
  CHECK(rig.try_allocate(kMiB).code() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(rig.pools().take_untold_oom() == 0);
  CHECK(rig.try_allocate(kMiB).ok());
}
