// Run under the preloaded library with the simulated driver as libcuda.so.1: every row of entry_points.def that the
// driver has is answered by our export, by dlsym and by both forms of cuGetProcAddress, and every other symbol by the
// driver. A program of its own, without a test framework: nothing else may look symbols up in it.
#include <cuda.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <string>

namespace {

struct Row {
  const char* looked_up_name;
  const char* symbol;
  int since;
};

constexpr Row kRows[] = {
#define HOOK(name, symbol, since, role, method) {#name, #symbol, since},
#include "shim/entry_points.def"
#undef HOOK
};

int g_failures = 0;

void expect(bool holds, const char* what, const char* symbol) {
  if (holds) return;
  std::printf("%s: %s\n", symbol, what);
  ++g_failures;
}

std::string object_of(const void* address) {
  Dl_info info{};
  if (address == nullptr || dladdr(address, &info) == 0) return "";
  const char* slash = std::strrchr(info.dli_fname, '/');
  return slash != nullptr ? slash + 1 : info.dli_fname;
}

bool is_ours(const void* address) { return object_of(address) == "libcupool.so"; }

using GetProcAddress = decltype(&::cuGetProcAddress);
using GetProcAddressV2 = decltype(&::cuGetProcAddress_v2);

void check_row(void* driver, GetProcAddress first, GetProcAddressV2 second, const Row& row) {
  dlerror();
  void* by_handle = dlsym(driver, row.symbol);
  const bool driver_has_it = by_handle != nullptr;
  expect((dlerror() == nullptr) == driver_has_it, "dlerror() does not fit the answer", row.symbol);
  if (!driver_has_it) return;  // the simulated driver leaves some out
  expect(is_ours(by_handle), "dlsym(handle) does not resolve into libcupool.so", row.symbol);
  expect(dlsym(RTLD_DEFAULT, row.symbol) == by_handle, "dlsym(RTLD_DEFAULT) gives another address", row.symbol);
  const std::string symbol = row.symbol;
  const bool is_per_thread = symbol.ends_with("_ptsz") || symbol.ends_with("_ptds");
  const cuuint64_t flags = is_per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
  void* by_first = nullptr;
  void* by_second = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  expect(first(row.looked_up_name, &by_first, row.since, flags) == CUDA_SUCCESS, "cuGetProcAddress fails", row.symbol);
  expect(second(row.looked_up_name, &by_second, row.since, flags, &status) == CUDA_SUCCESS, "cuGetProcAddress_v2 fails", row.symbol);
  expect(by_first == by_handle, "cuGetProcAddress gives another address", row.symbol);
  expect(by_second == by_handle, "cuGetProcAddress_v2 gives another address", row.symbol);
  expect(status == CU_GET_PROC_ADDRESS_SUCCESS, "the symbol's status is not kept", row.symbol);
}

void check_the_rest(void* driver, GetProcAddressV2 lookup) {
  expect(object_of(dlsym(driver, "cuInit")) == "libcuda.so.1", "is not hooked and must be the driver's", "cuInit");
  void* function = nullptr;
  CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
  expect(lookup("cuInit", &function, 12000, 0, &status) == CUDA_SUCCESS && object_of(function) == "libcuda.so.1", "must be the driver's", "cuInit");
  dlerror();
  expect(dlsym(driver, "cuNoSuchFunction") == nullptr && dlerror() != nullptr, "must fail as dlsym fails", "cuNoSuchFunction");
  expect(object_of(dlsym(RTLD_DEFAULT, "cupool_decide_dlsym")).empty(), "must be hidden", "cupool_decide_dlsym");
}

}  // namespace

int main() {
  for (const Row& row : kRows) {
    expect(dlsym(RTLD_DEFAULT, row.symbol) == nullptr, "found before any driver is loaded", row.symbol);
    expect(dlerror() != nullptr, "no dlerror() before any driver is loaded", row.symbol);
  }
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);  // so that RTLD_DEFAULT finds it without us too
  if (driver == nullptr) {
    std::printf("no libcuda.so.1: %s\n", dlerror());
    return 1;
  }
  const auto first = reinterpret_cast<GetProcAddress>(dlsym(driver, "cuGetProcAddress"));
  const auto second = reinterpret_cast<GetProcAddressV2>(dlsym(driver, "cuGetProcAddress_v2"));
  if (first == nullptr || second == nullptr) {
    std::printf("the driver has no cuGetProcAddress\n");
    return 1;
  }
  for (const Row& row : kRows) check_row(driver, first, second, row);
  check_the_rest(driver, second);
  return g_failures == 0 ? 0 : 1;
}
