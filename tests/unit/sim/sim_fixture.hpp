// A fresh simulated driver per test: default settings unless overridden, initialised, a primary context current.
#pragma once

#include <cuda.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/sim/cusim.h"

namespace sim_test {

inline constexpr std::size_t kMiB = std::size_t{1} << 20;

/// The settings that hold for one test.
class Settings {
 public:
  Settings(std::initializer_list<std::pair<const char*, const char*>> values) {
    for (const auto& [name, value] : values) {
      cusim_configure(name, value);
      names_.emplace_back(name);
    }
    cusim_reset();
  }
  ~Settings() {
    for (const std::string& name : names_) cusim_configure(name.c_str(), nullptr);
    cusim_reset();
  }
  Settings(const Settings&) = delete;
  Settings& operator=(const Settings&) = delete;

 private:
  std::vector<std::string> names_;
};

struct Simulated {
  explicit Simulated(std::initializer_list<std::pair<const char*, const char*>> values = {}) : settings(values) {
    cuInit(0);
    cuDevicePrimaryCtxRetain(&context, 0);
    cuCtxSetCurrent(context);
  }

  static CUdeviceptr allocate(std::size_t bytes) {
    CUdeviceptr address = 0;
    return cuMemAlloc_v2(&address, bytes) == CUDA_SUCCESS ? address : 0;
  }
  static CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
    CUstream created = nullptr;
    cuStreamCreate(&created, flags);
    return created;
  }
  static CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent created = nullptr;
    cuEventCreate(&created, flags);
    return created;
  }
  static std::string last_violation() {
    const std::size_t count = cusim_violation_count();
    return count == 0 ? "" : cusim_violation(count - 1);
  }

  Settings settings;
  CUcontext context = nullptr;
};

}  // namespace sim_test
