// cuGetProcAddress in both forms, and what exists at which driver version.
#include <catch2/catch.hpp>

#include "sim_fixture.hpp"
#include "tests/sim/sim_driver_api.hpp"
#include "tests/sim/symbols.hpp"

using sim_test::Settings;

namespace {

template <class F> void* address_of(F* function) { return reinterpret_cast<void*>(function); }

struct Found {
  void* entry;
  CUdriverProcAddressQueryResult status;
  CUresult code;
};

Found look_up(const char* name, int version, cuuint64_t flags = 0) {
  Found found{&found, CU_GET_PROC_ADDRESS_SUCCESS, CUDA_SUCCESS};
  found.code = cuGetProcAddress_v2(name, &found.entry, version, flags, &found.status);
  return found;
}

}  // namespace

TEST_CASE("a lookup gives the newest variant that the requested version knows") {
  const Settings settings{};
  CHECK(look_up("cuMemAlloc", 2000).entry == address_of(&cuMemAlloc));
  CHECK(look_up("cuMemAlloc", 3010).entry == address_of(&cuMemAlloc));
  CHECK(look_up("cuMemAlloc", 3020).entry == address_of(&cuMemAlloc_v2));
  CHECK(look_up("cuMemAlloc", 13000).entry == address_of(&cuMemAlloc_v2));
  CHECK(look_up("cuCtxCreate", 11030).entry == address_of(&cuCtxCreate_v2));
  CHECK(look_up("cuCtxCreate", 11040).entry == address_of(&cuCtxCreate_v3));
  CHECK(look_up("cuCtxCreate", 12050).entry == address_of(&cuCtxCreate_v4));
}

TEST_CASE("the flags choose the default stream, and fall back to the only variant there is") {
  const Settings settings{};
  constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
  CHECK(look_up("cuMemcpyAsync", 12000, 0).entry == address_of(&cuMemcpyAsync));
  CHECK(look_up("cuMemcpyAsync", 12000, CU_GET_PROC_ADDRESS_LEGACY_STREAM).entry == address_of(&cuMemcpyAsync));
  CHECK(look_up("cuMemcpyAsync", 12000, kPerThread).entry == address_of(&cuMemcpyAsync_ptsz));
  CHECK(look_up("cuMemcpyHtoD", 12000, kPerThread).entry == address_of(&cuMemcpyHtoD_v2_ptds));
  CHECK(look_up("cuMemcpyHtoD", 6050, kPerThread).entry == address_of(&cuMemcpyHtoD_v2));
  CHECK(look_up("cuMemAlloc", 12000, kPerThread).entry == address_of(&cuMemAlloc_v2));
  CHECK(look_up("cuStreamBeginCapture", 10000, kPerThread).entry == address_of(&cuStreamBeginCapture_ptsz));
  CHECK(look_up("cuStreamBeginCapture", 10010, kPerThread).entry == address_of(&cuStreamBeginCapture_v2_ptsz));
  CHECK(look_up("cuMemAlloc", 12000, 3).code == CUDA_ERROR_INVALID_VALUE);
  CHECK(look_up("cuMemAlloc", 12000, 4).code == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("the lookup of the lookup gives the form of that version") {
  const Settings settings{};
  CHECK(look_up("cuGetProcAddress", 11030).entry == address_of(&cuGetProcAddress));
  CHECK(look_up("cuGetProcAddress", 12000).entry == address_of(&cuGetProcAddress_v2));
  void* entry = nullptr;
  CHECK(cuGetProcAddress("cuGetProcAddress", &entry, 12000, 0) == CUDA_SUCCESS);
  CHECK(entry == address_of(&cuGetProcAddress_v2));
}

TEST_CASE("what is not there is null, and the status says why") {
  const Settings settings{};
  const Found unknown = look_up("cuNoSuchCall", 13000);
  CHECK(unknown.code == CUDA_SUCCESS);
  CHECK(unknown.entry == nullptr);
  CHECK(unknown.status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  const Found early = look_up("cuMemAllocAsync", 11010);
  CHECK(early.entry == nullptr);
  CHECK(early.status == CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
  CHECK(look_up("cuMemAlloc_v2", 13000).status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  void* entry = &entry;  // the form without a status says it by its code
  CHECK(cuGetProcAddress("cuNoSuchCall", &entry, 13000, 0) == CUDA_ERROR_NOT_FOUND);
  CHECK(entry == nullptr);
  CHECK(cuGetProcAddress_v2(nullptr, nullptr, 12000, 0, nullptr) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("an old driver has only old functions") {
  const Settings settings{{"DRIVER_VERSION", "11040"}};
  int version = 0;
  CHECK(cuDriverGetVersion(&version) == CUDA_SUCCESS);
  CHECK(version == 11040);
  CHECK(look_up("cuMemAlloc", 12000).code == CUDA_ERROR_INVALID_VALUE);
  CHECK(look_up("cuCtxCreate", 11040).entry == address_of(&cuCtxCreate_v3));
  CHECK(look_up("cuCtxRecordEvent", 11040).status == CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
  const cupool::DriverApi& api = cusim_driver_api();
  CHECK(api.cuCtxRecordEvent == nullptr);
  CHECK(api.cuCtxWaitEvent == nullptr);
  CHECK(api.cuCtxGetId == nullptr);
  CHECK(api.cuMemAlloc_v2 == &cuMemAlloc_v2);
}

TEST_CASE("the table for the pool has every row on a current driver") {
  const Settings settings{};
  const cupool::DriverApi& api = cusim_driver_api();
#define DRIVER_CALL(symbol, since, need) CHECK(api.symbol == &::symbol);
#include "pool/driver/driver_api.def"
#undef DRIVER_CALL
}

TEST_CASE("a function that is not modelled resolves, fails and is a violation") {
  const Settings settings{};
  REQUIRE(cuInit(0) == CUDA_SUCCESS);
  const Found found = look_up("cuTexRefCreate", 13000);
  REQUIRE(found.entry == address_of(&cuTexRefCreate));
  CUtexref reference = nullptr;
  CHECK(cuTexRefCreate(&reference) == CUDA_ERROR_NOT_SUPPORTED);
  REQUIRE(cusim_violation_count() == 1);
  CHECK_THAT(cusim_violation(0), Catch::Contains("cuTexRefCreate"));
  CHECK(cusim_calls("cuTexRefCreate") == 1);
}

TEST_CASE("errors have names and texts, unknown ones are refused") {
  const Settings settings{};
  const char* text = nullptr;
  CHECK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text) == CUDA_SUCCESS);
  CHECK(std::string(text) == "CUDA_ERROR_OUT_OF_MEMORY");
  CHECK(cuGetErrorString(CUDA_ERROR_CONTEXT_IS_DESTROYED, &text) == CUDA_SUCCESS);
  CHECK(std::string(text) == "context is destroyed");
  CHECK(cuGetErrorName(static_cast<CUresult>(998), &text) == CUDA_ERROR_INVALID_VALUE);
  CHECK(text == nullptr);
}
