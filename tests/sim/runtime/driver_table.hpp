// How the test runtime reaches the driver: step by step as the toolkit's libcudart 13.0 does it (CUDA_FACTS 1, measured).
//
// dlopen("libcuda.so.1"), one dlsym (cuGetProcAddress_v2), then everything through that function, and, the trap, through the
// pointer that it returns when it is asked for itself. A hook that leaves that answer alone is blind from there on. A driver
// without cuGetProcAddress_v2 is read with plain dlsym. Two tables: legacy default stream, and per-thread default stream.
#pragma once
#include <cuda.h>
// <cuda.h> is read with every variant declared; the runtime's own header must not rename its functions to _ptsz.
#undef __CUDA_API_VERSION_INTERNAL
#include <cuda_runtime_api.h>

#include <cstdint>

namespace cusim_runtime {

struct DriverTable {
#define DRIVER_CALL(name, version, symbol) decltype(&::symbol) name = nullptr;
#define STREAM_CALL(name, version, symbol, ptsz_version, ptsz_symbol) decltype(&::symbol) name = nullptr;
#include "driver_calls.def"
#undef DRIVER_CALL
#undef STREAM_CALL
};

using GetProcAddressV1 = CUresult (*)(const char*, void**, int, cuuint64_t);
using GetProcAddressV2 = CUresult (*)(const char*, void**, int, cuuint64_t, CUdriverProcAddressQueryResult*);

// Which default stream an entry point means by stream 0: cudaFoo the legacy one, cudaFoo_ptsz the thread's own.
enum class DefaultStream { kLegacy, kPerThread };

struct Driver {
  DriverTable legacy;
  DriverTable per_thread;                          // rows without a per-thread form hold the same pointer as `legacy`
  GetProcAddressV2 get_proc_address = nullptr;     // what lookup gave for itself at 12000; null: not used
  GetProcAddressV1 get_proc_address_v1 = nullptr;  // the same at 11030: four arguments
  void* library = nullptr;

  [[nodiscard]] const DriverTable& table(DefaultStream mode) const { return mode == DefaultStream::kLegacy ? legacy : per_thread; }
};

// Loads libcuda.so.1 and resolves every row. A null `library` says that there is no driver. Not thread-safe: called once.
// CUSIM_RUNTIME_LOOKUP=v1 makes all later lookups through the 4-argument form, =dlsym as if the driver had no cuGetProcAddress_v2.
void load_driver(Driver& driver);

}  // namespace cusim_runtime
