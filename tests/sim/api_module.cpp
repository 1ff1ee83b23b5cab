// Modules, as far as a memory shim can tell: loading one costs device memory [?: how much], unloading gives it back.
// What is in a module (functions, globals) is not modelled. Source: CUDA Driver API 13.0, "Module Management".
#include <unistd.h>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

CUresult load(Call& c, CUmodule* out, const void* image) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(c.sim.forbid_while_capturing());  // [?]
  if (!c.device_of(*context).memory.charge(kGranuleBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t handle = c.sim.new_handle();
  c.sim.modules.emplace(handle, context->memory_owner());
  *out = reinterpret_cast<CUmodule>(handle);
  return CUDA_SUCCESS;
}

CUresult load(Symbol symbol, CUmodule* out, const void* image) {
  return call(symbol, [&](Call& c) { return load(c, out, image); });
}

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* out, const char* path) {
  return call(Symbol::cuModuleLoad, [&](Call& c) -> CUresult {
    if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (access(path, R_OK) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
    return load(c, out, path);
  });
}
CUresult cuModuleLoadData(CUmodule* out, const void* image) { return load(Symbol::cuModuleLoadData, out, image); }
CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, CUjit_option*, void**) {
  return load(Symbol::cuModuleLoadDataEx, out, image);
}
CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) {
  return load(Symbol::cuModuleLoadFatBinary, out, image);
}
CUresult cuModuleUnload(CUmodule handle) {
  return call(Symbol::cuModuleUnload, [&](Call& c) -> CUresult {
    const auto found = c.sim.modules.find(as_number(handle));
    if (found == c.sim.modules.end()) {
      c.sim.violate("cuModuleUnload of a module that is unloaded or unknown");
      return CUDA_ERROR_INVALID_HANDLE;
    }
    c.device_of(*found->second).memory.uncharge(kGranuleBytes);
    c.sim.modules.erase(found);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
