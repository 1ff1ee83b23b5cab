// What nvcc's host code calls around main(): it registers and launches kernels. Registration is accepted and ignored;
// a launch fails loudly, because no device code runs on the simulated driver.
#include "tests/sim/runtime/runtime_state.hpp"

using namespace cusim_runtime;

namespace {

struct LaunchConfiguration {
  dim3 grid;
  dim3 block;
  size_t shared_bytes;
  void* stream;
};
thread_local LaunchConfiguration pushed_configuration{dim3(1), dim3(1), 0, nullptr};

}  // namespace

extern "C" {

void** __cudaRegisterFatBinary(void*) {
  static void* handle = nullptr;
  return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}
void __cudaRegisterHostVar(void**, const char*, char*, size_t) {}
void __cudaRegisterFunction(void**, const char*, char*, const char*, int, uint3*, uint3*, dim3*, dim3*, int*) {}
char __cudaInitModule(void**) { return 1; }

unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, void* stream) {
  pushed_configuration = {grid, block, shared_bytes, stream};
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
  *grid = pushed_configuration.grid;
  *block = pushed_configuration.block;
  *shared_bytes = pushed_configuration.shared_bytes;
  *static_cast<void**>(stream) = pushed_configuration.stream;
  return cudaSuccess;
}

// The handle of a kernel is only passed back to a launch, which fails.
cudaError_t __cudaGetKernel(cudaKernel_t* out, const void* function) {
  *out = static_cast<cudaKernel_t>(const_cast<void*>(function));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return unsupported("a kernel launch"); }
cudaError_t __cudaLaunchKernel_ptsz(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return unsupported("a kernel launch"); }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return unsupported("cudaLaunchKernel"); }
cudaError_t cudaLaunchKernel_ptsz(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return unsupported("cudaLaunchKernel"); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) { return unsupported("cudaLaunchKernelExC"); }
cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return unsupported("cudaLaunchCooperativeKernel"); }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes*, const void*) { return unsupported("cudaFuncGetAttributes"); }
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return unsupported("cudaFuncSetAttribute"); }
cudaError_t cudaGetSymbolAddress(void**, const void*) { return unsupported("cudaGetSymbolAddress"); }
cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return unsupported("cudaMemcpyToSymbol"); }
cudaError_t cudaMemcpyFromSymbol(void*, const void*, size_t, size_t, cudaMemcpyKind) { return unsupported("cudaMemcpyFromSymbol"); }
cudaError_t cudaGetExportTable(const void**, const cudaUUID_t*) { return unsupported("cudaGetExportTable"); }

}  // extern "C"
