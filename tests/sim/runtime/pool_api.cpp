// The driver's memory pools, arrays, and the runtime's door to driver entry points.
#include <cstring>

#include "tests/sim/runtime/runtime_state.hpp"

using namespace cusim_runtime;

namespace {

constexpr auto kLegacy = DefaultStream::kLegacy;

CUarray_format format_of(const cudaChannelFormatDesc& channel) {
  const int bits = channel.x;
  switch (channel.f) {
    case cudaChannelFormatKindFloat: return bits == 16 ? CU_AD_FORMAT_HALF : CU_AD_FORMAT_FLOAT;
    case cudaChannelFormatKindSigned:
      return bits == 8 ? CU_AD_FORMAT_SIGNED_INT8 : bits == 16 ? CU_AD_FORMAT_SIGNED_INT16 : CU_AD_FORMAT_SIGNED_INT32;
    default: return bits == 8 ? CU_AD_FORMAT_UNSIGNED_INT8 : bits == 16 ? CU_AD_FORMAT_UNSIGNED_INT16 : CU_AD_FORMAT_UNSIGNED_INT32;
  }
}

CUDA_ARRAY3D_DESCRIPTOR describe_array(const cudaChannelFormatDesc& channel, cudaExtent extent, unsigned flags) {
  CUDA_ARRAY3D_DESCRIPTOR description{};
  description.Width = extent.width;
  description.Height = extent.height;
  description.Depth = extent.depth;
  description.Format = format_of(channel);
  description.NumChannels = static_cast<unsigned>((channel.x > 0) + (channel.y > 0) + (channel.z > 0) + (channel.w > 0));
  description.Flags = flags;
  return description;
}

cudaError_t find_entry_point(DefaultStream mode, const char* name, void** out, unsigned version, unsigned long long flags,
                             cudaDriverEntryPointQueryResult* status) {
  if (name == nullptr || out == nullptr) {
    return record(cudaErrorInvalidValue);
  }
  if (flags == cudaEnableDefault && mode == DefaultStream::kPerThread) {
    flags = cudaEnablePerThreadDefaultStream;
  }
  CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  *out = nullptr;
  (void)call_driver(driver().get_proc_address, name, out, static_cast<int>(version), cuuint64_t{flags}, &found);
  if (status != nullptr) {
    *status = static_cast<cudaDriverEntryPointQueryResult>(found);
  }
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* out, int device) {
  return call_driver(DRIVER_ROW(cuDeviceGetDefaultMemPool, kLegacy), out, device);
}
cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* out, int device) { return call_driver(DRIVER_ROW(cuDeviceGetMemPool, kLegacy), out, device); }
cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) { return call_driver(DRIVER_ROW(cuDeviceSetMemPool, kLegacy), device, pool); }
cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t bytes) { return call_driver(DRIVER_ROW(cuMemPoolTrimTo, kLegacy), pool, bytes); }
cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr name, void* value) {
  return call_driver(DRIVER_ROW(cuMemPoolSetAttribute, kLegacy), pool, static_cast<CUmemPool_attribute>(name), value);
}
cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr name, void* value) {
  return call_driver(DRIVER_ROW(cuMemPoolGetAttribute, kLegacy), pool, static_cast<CUmemPool_attribute>(name), value);
}
cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list, size_t count) {
  return call_driver(DRIVER_ROW(cuMemPoolSetAccess, kLegacy), pool, reinterpret_cast<const CUmemAccessDesc*>(list), count);
}
cudaError_t cudaMemPoolCreate(cudaMemPool_t* out, const cudaMemPoolProps* properties) {
  static_assert(sizeof(CUmemPoolProps) == sizeof(cudaMemPoolProps));
  return call_driver(DRIVER_ROW(cuMemPoolCreate, kLegacy), out, reinterpret_cast<const CUmemPoolProps*>(properties));
}
cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) { return call_driver(DRIVER_ROW(cuMemPoolDestroy, kLegacy), pool); }

cudaChannelFormatDesc cudaCreateChannelDesc(int x, int y, int z, int w, cudaChannelFormatKind kind) { return {x, y, z, w, kind}; }

cudaError_t cudaMalloc3DArray(cudaArray_t* out, const cudaChannelFormatDesc* channel, cudaExtent extent, unsigned flags) {
  if (channel == nullptr) {
    return record(cudaErrorInvalidValue);
  }
  const CUDA_ARRAY3D_DESCRIPTOR description = describe_array(*channel, extent, flags);
  return call_in_context(DRIVER_ROW(cuArray3DCreate, kLegacy), reinterpret_cast<CUarray*>(out), &description);
}
cudaError_t cudaMallocArray(cudaArray_t* out, const cudaChannelFormatDesc* channel, size_t width, size_t height, unsigned flags) {
  return cudaMalloc3DArray(out, channel, {width, height, 0}, flags);
}
cudaError_t cudaFreeArray(cudaArray_t array) {
  return array == nullptr ? record(ensure_context()) : call_in_context(DRIVER_ROW(cuArrayDestroy, kLegacy), reinterpret_cast<CUarray>(array));
}
cudaError_t cudaMallocMipmappedArray(cudaMipmappedArray_t* out, const cudaChannelFormatDesc* channel, cudaExtent extent, unsigned levels,
                                     unsigned flags) {
  if (channel == nullptr) {
    return record(cudaErrorInvalidValue);
  }
  const CUDA_ARRAY3D_DESCRIPTOR description = describe_array(*channel, extent, flags);
  return call_in_context(DRIVER_ROW(cuMipmappedArrayCreate, kLegacy), reinterpret_cast<CUmipmappedArray*>(out), &description, levels);
}
cudaError_t cudaFreeMipmappedArray(cudaMipmappedArray_t array) {
  return call_in_context(DRIVER_ROW(cuMipmappedArrayDestroy, kLegacy), reinterpret_cast<CUmipmappedArray>(array));
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** out, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* status) {
  return find_entry_point(DefaultStream::kLegacy, name, out, version, flags, status);
}
cudaError_t cudaGetDriverEntryPointByVersion_ptsz(const char* name, void** out, unsigned version, unsigned long long flags,
                                                  cudaDriverEntryPointQueryResult* status) {
  return find_entry_point(DefaultStream::kPerThread, name, out, version, flags, status);
}
cudaError_t cudaGetDriverEntryPoint(const char* name, void** out, unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return find_entry_point(DefaultStream::kLegacy, name, out, CUDART_VERSION, flags, status);
}
cudaError_t cudaGetDriverEntryPoint_ptsz(const char* name, void** out, unsigned long long flags, cudaDriverEntryPointQueryResult* status) {
  return find_entry_point(DefaultStream::kPerThread, name, out, CUDART_VERSION, flags, status);
}

}  // extern "C"
