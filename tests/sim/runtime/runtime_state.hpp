// The state of the test runtime: the driver, the primary contexts it has retained, and each thread's device and last error.
//
// Mimics cudart where a program can tell: the first call initialises the driver, a call that needs a context makes the
// device's primary context current, a failure is kept per thread until cudaGetLastError reads it, and at process exit a
// destructor calls the driver once more, which by then has been shut down. Every member may be called from any thread.
#pragma once
#include "tests/sim/runtime/driver_table.hpp"

namespace cusim_runtime {

// Keeps a failure as the thread's last error and returns it. CUresult and cudaError_t share their numbers.
cudaError_t record(cudaError_t result);
inline cudaError_t record(CUresult result) { return record(static_cast<cudaError_t>(result)); }

// The last error of this thread; `clear` forgets it.
[[nodiscard]] cudaError_t last_error(bool clear);

// The driver, resolved at the first call. Null tables where there is none.
[[nodiscard]] const Driver& driver();

// cuInit has succeeded, or the error that every call then returns (35 without a driver).
[[nodiscard]] cudaError_t ensure_driver();
// As above, and this thread has a current context: its own, or the primary one of its device.
[[nodiscard]] cudaError_t ensure_context();

// cudaSetDevice, cudaGetDevice and cudaDeviceReset without the recording of the error.
[[nodiscard]] cudaError_t select_device(int ordinal);
[[nodiscard]] cudaError_t selected_device(int* ordinal);
[[nodiscard]] cudaError_t reset_selected_device();

// Calls one driver function under ensure_driver() / ensure_context() and records the outcome. A function that this driver does not have:
// cudaErrorCallRequiresNewerDriver.
template <class Function, class... Arguments> cudaError_t call_driver(Function function, Arguments... arguments) {
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) {
    return record(error);
  }
  return function == nullptr ? record(cudaErrorCallRequiresNewerDriver) : record(function(arguments...));
}
template <class Function, class... Arguments> cudaError_t call_in_context(Function function, Arguments... arguments) {
  if (const cudaError_t error = ensure_context(); error != cudaSuccess) {
    return record(error);
  }
  return function == nullptr ? record(cudaErrorCallRequiresNewerDriver) : record(function(arguments...));
}

// The row of the driver table that `mode` means: DRIVER_ROW(cuMemcpyAsync, mode).
#define DRIVER_ROW(name, mode) (::cusim_runtime::driver().table(mode).name)

// Says on stderr that the test runtime does not implement `what`, and records cudaErrorNotSupported.
cudaError_t unsupported(const char* what);

}  // namespace cusim_runtime
