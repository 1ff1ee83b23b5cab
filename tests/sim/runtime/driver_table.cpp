#include "tests/sim/runtime/driver_table.hpp"

#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

namespace cusim_runtime {
namespace {

constexpr cuuint64_t kLegacyFlags = CU_GET_PROC_ADDRESS_DEFAULT;
constexpr cuuint64_t kPerThreadFlags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;

struct Request {
  const char* name;
  const char* symbol;
  int version;
  cuuint64_t flags;
};

void* look_up(const Driver& driver, const Request& request) {
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  CUresult result = CUDA_ERROR_NOT_FOUND;
  if (driver.get_proc_address != nullptr) {
    result = driver.get_proc_address(request.name, &found, request.version, request.flags, &status);
  } else if (driver.get_proc_address_v1 != nullptr) {
    result = driver.get_proc_address_v1(request.name, &found, request.version, request.flags);
  } else {
    return dlsym(driver.library, request.symbol);
  }
  return result == CUDA_SUCCESS ? found : nullptr;
}

template <class Function> void fill(const Driver& driver, Function& slot, const Request& request) {
  slot = reinterpret_cast<Function>(look_up(driver, request));
}

// The probe with an empty name, then itself at both versions: what it gives for itself is what is used from then on.
void adopt_get_proc_address(Driver& driver, const char* mode) {
  const auto first = reinterpret_cast<GetProcAddressV2>(dlsym(driver.library, "cuGetProcAddress_v2"));
  if (first == nullptr || std::strcmp(mode, "dlsym") == 0) {
    return;
  }
  void* found = nullptr;
  CUdriverProcAddressQueryResult status{};
  (void)first("", &found, 0, kLegacyFlags, &status);
  (void)first("cuInit", &found, 2000, kLegacyFlags, &status);
  found = nullptr;
  if (first("cuGetProcAddress", &found, 11030, kLegacyFlags, &status) == CUDA_SUCCESS) {
    driver.get_proc_address_v1 = reinterpret_cast<GetProcAddressV1>(found);
  }
  found = nullptr;
  if (std::strcmp(mode, "v1") != 0 && first("cuGetProcAddress", &found, 12000, kLegacyFlags, &status) == CUDA_SUCCESS) {
    driver.get_proc_address = reinterpret_cast<GetProcAddressV2>(found);
  }
}

void fill_tables(Driver& driver) {
#define DRIVER_CALL(name, version, symbol)                                   \
  fill(driver, driver.legacy.name, {#name, #symbol, version, kLegacyFlags}); \
  driver.per_thread.name = driver.legacy.name;
#define STREAM_CALL(name, version, symbol, ptsz_version, ptsz_symbol)        \
  fill(driver, driver.legacy.name, {#name, #symbol, version, kLegacyFlags}); \
  fill(driver, driver.per_thread.name, {#name, #ptsz_symbol, ptsz_version, kPerThreadFlags});
#include "tests/sim/runtime/driver_calls.def"
#undef DRIVER_CALL
#undef STREAM_CALL
}

}  // namespace

void load_driver(Driver& driver) {
  driver.library = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver.library == nullptr) {
    return;
  }
  const char* mode = std::getenv("CUSIM_RUNTIME_LOOKUP");
  adopt_get_proc_address(driver, mode != nullptr ? mode : "v2");
  fill_tables(driver);
}

}  // namespace cusim_runtime
