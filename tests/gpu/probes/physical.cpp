// See physical.hpp. CUDA Driver API 13.0 §6.15 (virtual memory management).
#include "tests/gpu/probes/physical.hpp"

namespace probe {

CUmemAllocationProp physical_properties(CUdevice device) {
  CUmemAllocationProp properties{};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  properties.location.id = device;
  return properties;
}

CUresult grant(CUdeviceptr address, std::size_t bytes, CUdevice device) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return CU(cuMemSetAccess)(address, bytes, &access, 1);
}

Mapping::Mapping(CUdevice device, std::size_t bytes, std::size_t pieces) : bytes_(bytes) {
  const CUmemAllocationProp properties = physical_properties(device);
  const std::size_t each = bytes / pieces;
  try {
    prepare(CU(cuMemAddressReserve)(&address_, bytes, 0, 0, 0), "cuMemAddressReserve");
    for (std::size_t i = 0; i < pieces; ++i) {
      CUmemGenericAllocationHandle handle = 0;
      prepare(CU(cuMemCreate)(&handle, each, &properties, 0), "cuMemCreate");
      handles_.push_back(handle);
      prepare(CU(cuMemMap)(address_ + i * each, each, 0, handle, 0), "cuMemMap");
      mapped_bytes_ += each;
    }
    prepare(grant(address_, bytes, device), "cuMemSetAccess");
  } catch (...) {
    undo();
    throw;
  }
}

Mapping::~Mapping() { undo(); }

CUresult Mapping::unmap() {
  const CUresult code = CU(cuMemUnmap)(address_, mapped_bytes_);
  if (code == CUDA_SUCCESS) mapped_bytes_ = 0;
  return code;
}

void Mapping::undo() {
  if (mapped_bytes_ != 0) static_cast<void>(unmap());
  for (const CUmemGenericAllocationHandle handle : handles_) static_cast<void>(CU(cuMemRelease)(handle));
  if (address_ != 0) static_cast<void>(CU(cuMemAddressFree)(address_, bytes_));
}

}  // namespace probe
