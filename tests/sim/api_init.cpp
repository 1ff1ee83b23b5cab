// Initialisation, versions, errors, devices.
#include <cstring>

#include <cstdlib>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

void deinitialise_at_exit() { Simulator::instance().deinitialised = true; }

template <class Total> CUresult total_memory(Symbol symbol, Total* bytes, CUdevice ordinal) {
  return call(symbol, [&](Call& c) -> CUresult {
    if (bytes == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    *bytes = static_cast<Total>(device->memory.capacity_bytes());
    return CUDA_SUCCESS;
  });
}

CUresult uuid_of(Symbol symbol, CUuuid* uuid, CUdevice ordinal) {
  return call(symbol, [&](Call& c) -> CUresult {
    if (uuid == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    // The second form names the instance, the first the GPU that it is a part of (cuda.h 13.0).
    *uuid = symbol == Symbol::cuDeviceGetUuid_v2 ? device->setting.uuid : device->setting.gpu_uuid;
    return CUDA_SUCCESS;
  });
}

/// Attributes of the modelled device (an H100-like one); what is not listed is 0.
int attribute_value(const Simulator& sim, CUdevice_attribute attribute, int ordinal) {
  switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK: return 1024;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return 132;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1'980'000;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT: return 512;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: return 32;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return 9;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return 0;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return 0x10 + ordinal;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID:
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID:
    case CU_DEVICE_ATTRIBUTE_INTEGRATED: return 0;
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED: return 1;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return 3;
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: return sim.settings.supports_vmm ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED:
      return sim.settings.supports_vmm && sim.settings.vmm_descriptors != Offer::absent ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED:
      return sim.settings.supports_vmm && sim.settings.vmm_rdma != Offer::absent ? 1 : 0;
    case CU_DEVICE_ATTRIBUTE_MEM_DECOMPRESS_ALGORITHM_MASK:
      return sim.settings.decompression != Offer::absent ? CU_MEM_DECOMPRESS_ALGORITHM_DEFLATE | CU_MEM_DECOMPRESS_ALGORITHM_LZ4 : 0;
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
    // Such pools can be created; sharing them is loud.
    case CU_DEVICE_ATTRIBUTE_MEMPOOL_SUPPORTED_HANDLE_TYPES: return CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED: return 1;
    default: return 0;
  }
}

}  // namespace

extern "C" {

CUresult cuInit(unsigned flags) {
  return call(
      Symbol::cuInit,
      [&](Call& c) -> CUresult {
        if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
        if (c.sim.settings.has_no_device || c.sim.devices.empty()) return CUDA_ERROR_NO_DEVICE;
        static const bool registered = std::atexit(deinitialise_at_exit) == 0;
        c.sim.initialised.store(registered, std::memory_order_release);
        return CUDA_SUCCESS;
      },
      false);
}

CUresult cuDriverGetVersion(int* version) {
  return call(
      Symbol::cuDriverGetVersion,
      [&](Call& c) -> CUresult {
        if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
        *version = c.sim.settings.driver_version;
        return CUDA_SUCCESS;
      },
      false);
}

CUresult cuDeviceGet(CUdevice* out, int ordinal) {
  return call(Symbol::cuDeviceGet, [&](Call& c) -> CUresult {
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    *out = ordinal;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetCount(int* count) {
  return call(Symbol::cuDeviceGetCount, [&](Call& c) -> CUresult {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *count = static_cast<int>(c.sim.devices.size());
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetName(char* name, int length, CUdevice ordinal) {
  return call(Symbol::cuDeviceGetName, [&](Call& c) -> CUresult {
    if (name == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    std::snprintf(name, static_cast<std::size_t>(length), "cupool simulated GPU %d%s", device->setting.physical_index,
                  device->setting.is_mig ? " MIG 1g.10gb" : "");
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) { return uuid_of(Symbol::cuDeviceGetUuid, uuid, device); }
CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) { return uuid_of(Symbol::cuDeviceGetUuid_v2, uuid, device); }

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice ordinal) {
  return call(Symbol::cuDeviceGetAttribute, [&](Call& c) -> CUresult {
    if (value == nullptr || attribute <= 0 || attribute >= CU_DEVICE_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    *value = attribute_value(c.sim, attribute, device->setting.physical_index);
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) { return total_memory(Symbol::cuDeviceTotalMem_v2, bytes, device); }
CUresult cuDeviceTotalMem(unsigned int* bytes, CUdevice device) { return total_memory(Symbol::cuDeviceTotalMem, bytes, device); }

CUresult cuDeviceComputeCapability(int* major, int* minor, CUdevice ordinal) {
  return call(Symbol::cuDeviceComputeCapability, [&](Call& c) -> CUresult {
    if (major == nullptr || minor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    *major = 9;
    *minor = 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceCanAccessPeer(int* can, CUdevice ordinal, CUdevice peer) {
  return call(Symbol::cuDeviceCanAccessPeer, [&](Call& c) -> CUresult {
    if (can == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    CUSIM_TRY(c.device(peer, &device));
    *can = ordinal != peer && c.sim.settings.links_devices ? 1 : 0;
    return CUDA_SUCCESS;
  });
}

CUresult cuDeviceGetPCIBusId(char* text, int length, CUdevice ordinal) {
  return call(Symbol::cuDeviceGetPCIBusId, [&](Call& c) -> CUresult {
    if (text == nullptr || length <= 0) return CUDA_ERROR_INVALID_VALUE;
    Device* device = nullptr;
    CUSIM_TRY(c.device(ordinal, &device));
    std::snprintf(text, static_cast<std::size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(0x10 + device->setting.physical_index));
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
