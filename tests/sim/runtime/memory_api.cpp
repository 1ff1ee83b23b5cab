// Allocation, free, memory info, pointer attributes, IPC.
#include <cstring>

#include "tests/sim/runtime/runtime_state.hpp"

using namespace cusim_runtime;

namespace {

constexpr auto kLegacy = DefaultStream::kLegacy;
constexpr auto kPerThread = DefaultStream::kPerThread;
// Passed to cuMemAllocPitch by cudaMallocPitch [?]: the smallest legal element.
constexpr unsigned kPitchElementBytes = 4;

CUdeviceptr address_of(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

// cudaMalloc(&p, 0) succeeds with a null pointer; the driver refuses 0 bytes.
cudaError_t refuse_or_null(void** out, size_t bytes, bool* done) {
  *done = true;
  if (out == nullptr) {
    return record(cudaErrorInvalidValue);
  }
  if (bytes == 0) {
    *out = nullptr;
    return record(ensure_context());
  }
  *done = false;
  return cudaSuccess;
}

cudaError_t allocate_async(DefaultStream mode, void** out, size_t bytes, cudaStream_t stream) {
  bool done = false;
  const cudaError_t early = refuse_or_null(out, bytes, &done);
  return done ? early : call_in_context(DRIVER_ROW(cuMemAllocAsync, mode), reinterpret_cast<CUdeviceptr*>(out), bytes, stream);
}

cudaError_t allocate_from_pool(DefaultStream mode, void** out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  bool done = false;
  const cudaError_t early = refuse_or_null(out, bytes, &done);
  return done ? early : call_in_context(DRIVER_ROW(cuMemAllocFromPoolAsync, mode), reinterpret_cast<CUdeviceptr*>(out), bytes, pool, stream);
}

cudaError_t free_async(DefaultStream mode, void* pointer, cudaStream_t stream) {
  return call_in_context(DRIVER_ROW(cuMemFreeAsync, mode), address_of(pointer), stream);
}

// What cuPointerGetAttributes says, in the runtime's words. An unknown pointer is "unregistered", not an error.
cudaError_t describe_pointer(cudaPointerAttributes& out, const void* pointer) {
  CUmemorytype type{};
  int ordinal = -2;
  CUdeviceptr device_pointer = 0;
  void* host_pointer = nullptr;
  unsigned managed = 0;
  CUpointer_attribute names[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                                 CU_POINTER_ATTRIBUTE_HOST_POINTER, CU_POINTER_ATTRIBUTE_IS_MANAGED};
  void* values[] = {&type, &ordinal, &device_pointer, &host_pointer, &managed};
  const auto function = driver().legacy.cuPointerGetAttributes;
  if (function == nullptr) {
    return cudaErrorCallRequiresNewerDriver;
  }
  if (const CUresult result = function(5, names, values, address_of(pointer)); result != CUDA_SUCCESS) {
    return static_cast<cudaError_t>(result);
  }
  out = {};
  out.type = managed != 0                   ? cudaMemoryTypeManaged
             : type == CU_MEMORYTYPE_DEVICE ? cudaMemoryTypeDevice
             : type == CU_MEMORYTYPE_HOST   ? cudaMemoryTypeHost
                                            : cudaMemoryTypeUnregistered;
  out.device = ordinal;
  out.devicePointer = reinterpret_cast<void*>(device_pointer);
  out.hostPointer = host_pointer;
  return cudaSuccess;
}

}  // namespace

extern "C" {

cudaError_t cudaMalloc(void** out, size_t bytes) {
  bool done = false;
  const cudaError_t early = refuse_or_null(out, bytes, &done);
  return done ? early : call_in_context(DRIVER_ROW(cuMemAlloc, kLegacy), reinterpret_cast<CUdeviceptr*>(out), bytes);
}

// Freeing null does nothing, but it creates the context: cudaFree(0) is how programs force that.
cudaError_t cudaFree(void* pointer) {
  return pointer == nullptr ? record(ensure_context()) : call_in_context(DRIVER_ROW(cuMemFree, kLegacy), address_of(pointer));
}

cudaError_t cudaMallocPitch(void** out, size_t* pitch, size_t width, size_t height) {
  return call_in_context(DRIVER_ROW(cuMemAllocPitch, kLegacy), reinterpret_cast<CUdeviceptr*>(out), pitch, width, height, kPitchElementBytes);
}

cudaError_t cudaMalloc3D(cudaPitchedPtr* out, cudaExtent extent) {
  if (out == nullptr) {
    return record(cudaErrorInvalidValue);
  }
  *out = {nullptr, 0, extent.width, extent.height};
  return cudaMallocPitch(&out->ptr, &out->pitch, extent.width, extent.height * extent.depth);
}

cudaError_t cudaMallocManaged(void** out, size_t bytes, unsigned flags) {
  return call_in_context(DRIVER_ROW(cuMemAllocManaged, kLegacy), reinterpret_cast<CUdeviceptr*>(out), bytes, flags);
}

cudaError_t cudaMallocAsync(void** out, size_t bytes, cudaStream_t stream) { return allocate_async(kLegacy, out, bytes, stream); }
cudaError_t cudaMallocAsync_ptsz(void** out, size_t bytes, cudaStream_t stream) { return allocate_async(kPerThread, out, bytes, stream); }
cudaError_t cudaMallocFromPoolAsync(void** out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return allocate_from_pool(kLegacy, out, bytes, pool, stream);
}
cudaError_t cudaMallocFromPoolAsync_ptsz(void** out, size_t bytes, cudaMemPool_t pool, cudaStream_t stream) {
  return allocate_from_pool(kPerThread, out, bytes, pool, stream);
}
cudaError_t cudaFreeAsync(void* pointer, cudaStream_t stream) { return free_async(kLegacy, pointer, stream); }
cudaError_t cudaFreeAsync_ptsz(void* pointer, cudaStream_t stream) { return free_async(kPerThread, pointer, stream); }

cudaError_t cudaMallocHost(void** out, size_t bytes) { return call_in_context(DRIVER_ROW(cuMemHostAlloc, kLegacy), out, bytes, 0U); }
cudaError_t cudaHostAlloc(void** out, size_t bytes, unsigned flags) {
  return call_in_context(DRIVER_ROW(cuMemHostAlloc, kLegacy), out, bytes, flags);
}
cudaError_t cudaFreeHost(void* pointer) {
  return pointer == nullptr ? record(ensure_context()) : call_in_context(DRIVER_ROW(cuMemFreeHost, kLegacy), pointer);
}
cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned flags) {
  return call_in_context(DRIVER_ROW(cuMemHostRegister, kLegacy), pointer, bytes, flags);
}
cudaError_t cudaHostUnregister(void* pointer) { return call_in_context(DRIVER_ROW(cuMemHostUnregister, kLegacy), pointer); }
cudaError_t cudaHostGetDevicePointer(void** out, void* host, unsigned flags) {
  return call_in_context(DRIVER_ROW(cuMemHostGetDevicePointer, kLegacy), reinterpret_cast<CUdeviceptr*>(out), host, flags);
}
cudaError_t cudaHostGetFlags(unsigned* flags, void* host) { return call_in_context(DRIVER_ROW(cuMemHostGetFlags, kLegacy), flags, host); }

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  return call_in_context(DRIVER_ROW(cuMemGetInfo, kLegacy), free_bytes, total_bytes);
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* out, const void* pointer) {
  if (out == nullptr) {
    return record(cudaErrorInvalidValue);
  }
  const cudaError_t error = ensure_driver();
  return record(error != cudaSuccess ? error : describe_pointer(*out, pointer));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
  return call_in_context(DRIVER_ROW(cuIpcGetMemHandle, kLegacy), reinterpret_cast<CUipcMemHandle*>(handle), address_of(pointer));
}
cudaError_t cudaIpcOpenMemHandle(void** out, cudaIpcMemHandle_t handle, unsigned flags) {
  CUipcMemHandle copy{};
  static_assert(sizeof copy == sizeof handle);
  std::memcpy(&copy, &handle, sizeof copy);
  return call_in_context(DRIVER_ROW(cuIpcOpenMemHandle, kLegacy), reinterpret_cast<CUdeviceptr*>(out), copy, flags);
}
cudaError_t cudaIpcCloseMemHandle(void* pointer) { return call_in_context(DRIVER_ROW(cuIpcCloseMemHandle, kLegacy), address_of(pointer)); }
cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
  return call_in_context(DRIVER_ROW(cuIpcGetEventHandle, kLegacy), reinterpret_cast<CUipcEventHandle*>(handle), event);
}
cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* out, cudaIpcEventHandle_t handle) {
  CUipcEventHandle copy{};
  std::memcpy(&copy, &handle, sizeof copy);
  return call_in_context(DRIVER_ROW(cuIpcOpenEventHandle, kLegacy), out, copy);
}

}  // extern "C"
