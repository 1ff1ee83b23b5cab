// Modules and libraries, as far as a memory shim can tell: loading one costs device memory, unloading gives it back.
// An H100 (driver 580) takes nothing for an empty one and much for a large one; here each costs 2 MiB.
// What is in a module (functions, globals) is not modelled. Source: CUDA Driver API 13.0, "Module Management".
#include <unistd.h>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

template <class Handle> CUresult load(Call& c, Handle* out, const void* image) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  if (out == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
  static_cast<void>(c.sim.forbid_while_capturing());  // it loads, and the captures are dead: an H100, driver 580
  if (!c.device_of(*context).memory.charge(kGranuleBytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t handle = c.sim.new_handle();
  c.sim.modules.emplace(handle, context->memory_owner());
  *out = reinterpret_cast<Handle>(handle);
  return CUDA_SUCCESS;
}

template <class Handle> CUresult load(Symbol symbol, Handle* out, const void* image) {
  return call(symbol, [&](Call& c) { return load(c, out, image); });
}

template <class Handle> CUresult load_file(Symbol symbol, Handle* out, const char* path) {
  return call(symbol, [&](Call& c) -> CUresult {
    if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (access(path, R_OK) != 0) return CUDA_ERROR_FILE_NOT_FOUND;
    return load(c, out, path);
  });
}

CUresult unload(Symbol symbol, const void* handle) {
  return call(symbol, [&](Call& c) -> CUresult {
    const auto found = c.sim.modules.find(as_number(handle));
    if (found == c.sim.modules.end()) {
      c.sim.violate(c.name() + " of what is unloaded or unknown");
      return CUDA_ERROR_INVALID_HANDLE;
    }
    c.device_of(*found->second).memory.uncharge(kGranuleBytes);
    c.sim.modules.erase(found);
    return CUDA_SUCCESS;
  });
}

}  // namespace

extern "C" {

CUresult cuModuleLoad(CUmodule* out, const char* path) { return load_file(Symbol::cuModuleLoad, out, path); }
CUresult cuModuleLoadData(CUmodule* out, const void* image) { return load(Symbol::cuModuleLoadData, out, image); }
CUresult cuModuleLoadDataEx(CUmodule* out, const void* image, unsigned, CUjit_option*, void**) {
  return load(Symbol::cuModuleLoadDataEx, out, image);
}
CUresult cuModuleLoadFatBinary(CUmodule* out, const void* image) { return load(Symbol::cuModuleLoadFatBinary, out, image); }
CUresult cuModuleUnload(CUmodule module) { return unload(Symbol::cuModuleUnload, module); }

/// A library is loaded into the contexts that are there [?: here, and at once, into the current one].
CUresult cuLibraryLoadData(CUlibrary* out, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  return load(Symbol::cuLibraryLoadData, out, code);
}
CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  return load_file(Symbol::cuLibraryLoadFromFile, out, path);
}
CUresult cuLibraryUnload(CUlibrary library) { return unload(Symbol::cuLibraryUnload, library); }

}  // extern "C"
