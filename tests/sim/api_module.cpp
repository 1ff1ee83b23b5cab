// Modules and libraries, as far as a memory shim can tell: loading one costs device memory, unloading gives it back.
// An H100 (driver 580) takes nothing for an empty one and much for a large one; here each costs 2 MiB.
// Functions are not modelled, and of __device__ variables one, whatever it is called (CUSIM_VARIABLE_BYTES). [?] that it takes its memory when it is
// asked for first, as under lazy loading. Source: CUDA Driver API 13.0, "Module Management".
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
  c.sim.modules.emplace(handle, Module{context->memory_owner(), nullptr});
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

CUresult find_module(Call& c, const void* handle, Module** out) {
  const auto found = c.sim.modules.find(as_number(handle));
  if (found == c.sim.modules.end()) {
    c.sim.violate(c.name() + " of what is unloaded or unknown");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  *out = &found->second;
  return CUDA_SUCCESS;
}

CUresult unload(Symbol symbol, const void* handle) {
  return call(symbol, [&](Call& c) -> CUresult {
    Module* module = nullptr;
    CUSIM_TRY(find_module(c, handle, &module));
    if (module->variable != nullptr) c.sim.release(*module->variable);
    c.device_of(*module->context).memory.uncharge(kGranuleBytes);
    c.sim.modules.erase(as_number(handle));
    return CUDA_SUCCESS;
  });
}

CUresult take_variable(Call& c, Module& module) {
  if (module.variable != nullptr) return CUDA_SUCCESS;
  const std::uint64_t bytes = c.sim.settings.variable_bytes;
  DeviceMemory& memory = c.device_of(*module.context).memory;
  Allocation* taken = memory.allocate(bytes);
  if (taken == nullptr && c.sim.give_back_unused(module.context->device)) taken = memory.allocate(bytes);
  if (taken == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
  taken->kind = MemoryKind::variable;
  c.sim.adopt(*taken, *module.context);
  module.variable = taken;
  return CUDA_SUCCESS;
}

/// Where a variable is, and its size; either may be left out.
CUresult find_variable(Symbol symbol, CUdeviceptr* out, std::size_t* bytes, const void* handle, const char* name, bool is_managed = false) {
  return call(symbol, [&](Call& c) -> CUresult {
    Context* context = nullptr;
    Module* module = nullptr;
    CUSIM_TRY(c.current(&context));
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUSIM_TRY(find_module(c, handle, &module));
    if (is_managed || c.sim.settings.variable_bytes == 0) return CUDA_ERROR_NOT_FOUND;
    CUSIM_TRY(take_variable(c, *module));
    if (out != nullptr) *out = module->variable->base;
    if (bytes != nullptr) *bytes = module->variable->bytes;
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

CUresult cuModuleGetGlobal_v2(CUdeviceptr* out, size_t* bytes, CUmodule module, const char* name) {
  return find_variable(Symbol::cuModuleGetGlobal_v2, out, bytes, module, name);
}

/// A library is loaded into the contexts that are there [?: here, and at once, into the current one].
CUresult cuLibraryLoadData(CUlibrary* out, const void* code, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  return load(Symbol::cuLibraryLoadData, out, code);
}
CUresult cuLibraryLoadFromFile(CUlibrary* out, const char* path, CUjit_option*, void**, unsigned, CUlibraryOption*, void**, unsigned) {
  return load_file(Symbol::cuLibraryLoadFromFile, out, path);
}
CUresult cuLibraryGetGlobal(CUdeviceptr* out, size_t* bytes, CUlibrary library, const char* name) {
  return find_variable(Symbol::cuLibraryGetGlobal, out, bytes, library, name);
}
/// No library here has managed variables.
CUresult cuLibraryGetManaged(CUdeviceptr* out, size_t* bytes, CUlibrary library, const char* name) {
  return find_variable(Symbol::cuLibraryGetManaged, out, bytes, library, name, true);
}
CUresult cuLibraryUnload(CUlibrary library) { return unload(Symbol::cuLibraryUnload, library); }

}  // extern "C"
