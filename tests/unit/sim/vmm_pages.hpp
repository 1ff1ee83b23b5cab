// Handles, reservations and rights for the tests of virtual memory management.
#pragma once

#include "sim_fixture.hpp"

namespace sim_test::vmm {

inline constexpr std::size_t kPage = 2 * kMiB;

inline CUmemAllocationProp on_device(int device, unsigned handle_types = 0) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  properties.requestedHandleTypes = static_cast<CUmemAllocationHandleType>(handle_types);
  return properties;
}

inline CUmemGenericAllocationHandle create(std::size_t bytes, unsigned handle_types = 0, int device = 0) {
  const CUmemAllocationProp properties = on_device(device, handle_types);
  CUmemGenericAllocationHandle handle = 0;
  return cuMemCreate(&handle, bytes, &properties, 0) == CUDA_SUCCESS ? handle : 0;
}

inline CUdeviceptr reserve(std::size_t bytes) {
  CUdeviceptr base = 0;
  return cuMemAddressReserve(&base, bytes, 0, 0, 0) == CUDA_SUCCESS ? base : 0;
}

inline CUresult allow(CUdeviceptr address, std::size_t bytes, int device = 0, CUmemAccess_flags flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = flags;
  return cuMemSetAccess(address, bytes, &access, 1);
}

/// `bytes` of fresh mapped memory of `device`, which may read and write it.
inline CUdeviceptr map_fresh(std::size_t bytes, int device = 0) {
  const CUmemGenericAllocationHandle handle = create(bytes, 0, device);
  const CUdeviceptr base = reserve(bytes);
  const bool is_mapped = handle != 0 && base != 0 && cuMemMap(base, bytes, 0, handle, 0) == CUDA_SUCCESS;
  return is_mapped && allow(base, bytes, device) == CUDA_SUCCESS ? base : 0;
}

}  // namespace sim_test::vmm
