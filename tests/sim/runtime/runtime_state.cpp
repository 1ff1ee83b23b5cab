#include "tests/sim/runtime/runtime_state.hpp"

#include <cstdio>
#include <mutex>

namespace cusim_runtime {
namespace {

constexpr int kMaxDevices = 64;

struct Primary {
  CUcontext context = nullptr;
  bool retained = false;
};

// Never destroyed: calls may come after static destructors.
struct State {
  Driver driver;
  CUresult init_result = CUDA_ERROR_NOT_INITIALIZED;
  std::mutex mutex;
  Primary primaries[kMaxDevices];
};

struct Thread {
  cudaError_t last_error = cudaSuccess;
  int device = 0;
};
thread_local Thread this_thread;

State* created_state = nullptr;

// Export table first, then the version, then cuInit: the order in which cudart makes its first calls.
void start_driver(State& state) {
  const DriverTable& table = state.driver.legacy;
  static const CUuuid kUnknownTable{};
  const void* ignored = nullptr;
  int version = 0;
  if (table.cuGetExportTable != nullptr) {
    (void)table.cuGetExportTable(&ignored, &kUnknownTable);
  }
  if (table.cuDriverGetVersion != nullptr) {
    (void)table.cuDriverGetVersion(&version);
  }
  state.init_result = table.cuInit != nullptr ? table.cuInit(0) : CUDA_ERROR_NOT_INITIALIZED;
}

State& state() {
  static State* const instance = [] {
    auto* made = new State;
    load_driver(made->driver);
    if (made->driver.library != nullptr) {
      start_driver(*made);
    }
    created_state = made;
    return made;
  }();
  return *instance;
}

// Pre: the mutex is held.
CUresult retain_primary(State& owner, int ordinal) {
  Primary& primary = owner.primaries[ordinal];
  if (primary.retained) {
    return CUDA_SUCCESS;
  }
  CUdevice device = 0;
  const DriverTable& table = owner.driver.legacy;
  if (const CUresult result = table.cuDeviceGet(&device, ordinal); result != CUDA_SUCCESS) {
    return result;
  }
  const CUresult result = table.cuDevicePrimaryCtxRetain(&primary.context, device);
  primary.retained = result == CUDA_SUCCESS;
  return result;
}

cudaError_t enter_primary(int ordinal) {
  State& owner = state();
  const std::lock_guard lock(owner.mutex);
  if (const CUresult result = retain_primary(owner, ordinal); result != CUDA_SUCCESS) {
    return static_cast<cudaError_t>(result);
  }
  return static_cast<cudaError_t>(owner.driver.legacy.cuCtxSetCurrent(owner.primaries[ordinal].context));
}

// A primary that another thread has reset is still current here; it has to be retained anew before use.
bool is_reset_primary(CUcontext context) {
  State& owner = state();
  const std::lock_guard lock(owner.mutex);
  for (const Primary& primary : owner.primaries) {
    if (primary.context == context && !primary.retained) {
      return true;
    }
  }
  return false;
}

// Runs after libcuda's own destructor (it was loaded later): the driver answers DEINITIALIZED, and that is ignored.
__attribute__((destructor)) void release_primaries_at_exit() {
  if (created_state == nullptr) {
    return;
  }
  for (int ordinal = 0; ordinal < kMaxDevices; ++ordinal) {
    if (created_state->primaries[ordinal].retained) {
      (void)created_state->driver.legacy.cuDevicePrimaryCtxRelease(ordinal);
    }
  }
}

}  // namespace

cudaError_t record(cudaError_t result) {
  if (result != cudaSuccess) {
    this_thread.last_error = result;
  }
  return result;
}

cudaError_t last_error(bool clear) {
  const cudaError_t error = this_thread.last_error;
  if (clear) {
    this_thread.last_error = cudaSuccess;
  }
  return error;
}

const Driver& driver() { return state().driver; }

cudaError_t ensure_driver() {
  const State& current = state();
  if (current.driver.library == nullptr) {
    return cudaErrorInsufficientDriver;
  }
  return static_cast<cudaError_t>(current.init_result);
}

cudaError_t ensure_context() {
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) {
    return error;
  }
  CUcontext current = nullptr;
  if (const CUresult result = driver().legacy.cuCtxGetCurrent(&current); result != CUDA_SUCCESS) {
    return static_cast<cudaError_t>(result);
  }
  if (current != nullptr && !is_reset_primary(current)) {
    return cudaSuccess;
  }
  return enter_primary(this_thread.device);
}

cudaError_t select_device(int ordinal) {
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) {
    return error;
  }
  int count = 0;
  if (const CUresult result = driver().legacy.cuDeviceGetCount(&count); result != CUDA_SUCCESS) {
    return static_cast<cudaError_t>(result);
  }
  if (ordinal < 0 || ordinal >= count || ordinal >= kMaxDevices) {
    return cudaErrorInvalidDevice;
  }
  this_thread.device = ordinal;
  return enter_primary(ordinal);
}

cudaError_t selected_device(int* ordinal) {
  if (ordinal == nullptr) {
    return cudaErrorInvalidValue;
  }
  if (const cudaError_t error = ensure_driver(); error != cudaSuccess) {
    return error;
  }
  CUdevice device = 0;
  CUcontext current = nullptr;
  const DriverTable& table = driver().legacy;
  const bool has_context = table.cuCtxGetCurrent(&current) == CUDA_SUCCESS && current != nullptr;
  *ordinal = has_context && table.cuCtxGetDevice(&device) == CUDA_SUCCESS ? device : this_thread.device;
  return cudaSuccess;
}

cudaError_t reset_selected_device() {
  int ordinal = 0;
  if (const cudaError_t error = selected_device(&ordinal); error != cudaSuccess) {
    return error;
  }
  State& owner = state();
  const DriverTable& table = owner.driver.legacy;
  const std::lock_guard lock(owner.mutex);
  const CUresult result = table.cuDevicePrimaryCtxReset(ordinal);
  if (owner.primaries[ordinal].retained) {
    owner.primaries[ordinal].retained = false;
    (void)table.cuDevicePrimaryCtxRelease(ordinal);
  }
  (void)table.cuCtxSetCurrent(nullptr);
  this_thread.device = ordinal;
  return static_cast<cudaError_t>(result);
}

cudaError_t unsupported(const char* what) {
  std::fprintf(stderr, "test libcudart: %s is not implemented\n", what);
  return record(cudaErrorNotSupported);
}

}  // namespace cusim_runtime
