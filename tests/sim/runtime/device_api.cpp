// Devices, limits, peers, profiler.
#include <cstring>

#include "tests/sim/runtime/runtime_state.hpp"

using namespace cusim_runtime;

namespace {

constexpr auto kLegacy = DefaultStream::kLegacy;

int attribute(int device, cudaDeviceAttr name) {
  int value = 0;
  (void)driver().legacy.cuDeviceGetAttribute(&value, static_cast<CUdevice_attribute>(name), device);
  return value;
}

void fill_properties(cudaDeviceProp& properties, int device) {
  const DriverTable& table = driver().legacy;
  std::memset(&properties, 0, sizeof properties);
  (void)table.cuDeviceGetName(properties.name, sizeof properties.name, device);
  (void)table.cuDeviceTotalMem(&properties.totalGlobalMem, device);
  CUuuid uuid{};
  if (table.cuDeviceGetUuid != nullptr && table.cuDeviceGetUuid(&uuid, device) == CUDA_SUCCESS) {
    std::memcpy(&properties.uuid, &uuid, sizeof uuid);
  }
  properties.major = attribute(device, cudaDevAttrComputeCapabilityMajor);
  properties.minor = attribute(device, cudaDevAttrComputeCapabilityMinor);
  properties.multiProcessorCount = attribute(device, cudaDevAttrMultiProcessorCount);
  properties.warpSize = attribute(device, cudaDevAttrWarpSize);
  properties.maxThreadsPerBlock = attribute(device, cudaDevAttrMaxThreadsPerBlock);
  properties.unifiedAddressing = attribute(device, cudaDevAttrUnifiedAddressing);
  properties.managedMemory = attribute(device, cudaDevAttrManagedMemory);
  properties.memoryPoolsSupported = attribute(device, cudaDevAttrMemoryPoolsSupported);
  properties.textureAlignment = static_cast<size_t>(attribute(device, cudaDevAttrTextureAlignment));
}

}  // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) { return call_driver(DRIVER_ROW(cuDeviceGetCount, kLegacy), count); }
cudaError_t cudaSetDevice(int device) { return record(select_device(device)); }
cudaError_t cudaGetDevice(int* device) { return record(selected_device(device)); }
cudaError_t cudaInitDevice(int device, unsigned, unsigned) { return record(select_device(device)); }
cudaError_t cudaDeviceReset() { return record(reset_selected_device()); }
cudaError_t cudaDeviceSynchronize() { return call_in_context(DRIVER_ROW(cuCtxSynchronize, kLegacy)); }

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr name, int device) {
  return call_driver(DRIVER_ROW(cuDeviceGetAttribute, kLegacy), value, static_cast<CUdevice_attribute>(name), device);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return error;
  }
  if (properties == nullptr || device < 0 || device >= count) {
    return record(properties == nullptr ? cudaErrorInvalidValue : cudaErrorInvalidDevice);
  }
  fill_properties(*properties, device);
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned flags) {
  int device = 0;
  if (const cudaError_t error = selected_device(&device); error != cudaSuccess) {
    return record(error);
  }
  return call_driver(DRIVER_ROW(cuDevicePrimaryCtxSetFlags, kLegacy), device, flags);
}

cudaError_t cudaGetDeviceFlags(unsigned* flags) {
  int device = 0;
  int active = 0;
  if (const cudaError_t error = selected_device(&device); error != cudaSuccess) {
    return record(error);
  }
  return call_driver(DRIVER_ROW(cuDevicePrimaryCtxGetState, kLegacy), device, flags, &active);
}

cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* bus_id) {
  return call_driver(DRIVER_ROW(cuDeviceGetByPCIBusId, kLegacy), device, bus_id);
}
cudaError_t cudaDeviceGetPCIBusId(char* bus_id, int length, int device) {
  return call_driver(DRIVER_ROW(cuDeviceGetPCIBusId, kLegacy), bus_id, length, device);
}
cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
  return call_in_context(DRIVER_ROW(cuCtxGetLimit, kLegacy), value, static_cast<CUlimit>(limit));
}
cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
  return call_in_context(DRIVER_ROW(cuCtxSetLimit, kLegacy), static_cast<CUlimit>(limit), value);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return call_in_context(DRIVER_ROW(cuCtxGetStreamPriorityRange, kLegacy), least, greatest);
}

cudaError_t cudaDeviceCanAccessPeer(int* can_access, int device, int peer) {
  return call_driver(DRIVER_ROW(cuDeviceCanAccessPeer, kLegacy), can_access, device, peer);
}

// The runtime speaks of devices, the driver of contexts: the peer's primary context is made first, then the thread goes back.
cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  int here = 0;
  CUcontext context = nullptr;
  cudaError_t error = ensure_context();
  error = error == cudaSuccess ? selected_device(&here) : error;
  error = error == cudaSuccess ? select_device(peer) : error;
  error = error == cudaSuccess ? static_cast<cudaError_t>(driver().legacy.cuCtxGetCurrent(&context)) : error;
  error = error == cudaSuccess ? select_device(here) : error;
  return error != cudaSuccess ? record(error) : call_in_context(DRIVER_ROW(cuCtxEnablePeerAccess, kLegacy), context, flags);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  int here = 0;
  CUcontext context = nullptr;
  cudaError_t error = ensure_context();
  error = error == cudaSuccess ? selected_device(&here) : error;
  error = error == cudaSuccess ? select_device(peer) : error;
  error = error == cudaSuccess ? static_cast<cudaError_t>(driver().legacy.cuCtxGetCurrent(&context)) : error;
  error = error == cudaSuccess ? select_device(here) : error;
  return error != cudaSuccess ? record(error) : call_in_context(DRIVER_ROW(cuCtxDisablePeerAccess, kLegacy), context);
}

cudaError_t cudaProfilerStart() { return cudaSuccess; }
cudaError_t cudaProfilerStop() { return cudaSuccess; }

}  // extern "C"
