// Which device a memory location names. Pure. Source: cuda.h 13.5, CUmemLocation.
#pragma once

#include <cuda.h>

#include <cstring>
#include <optional>

namespace cupool::shim {

/// The device whose memory `location` is; nullopt: no device's. A locality domain (CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, CUDA 13.5) is a part
/// of a device's memory. Older headers do not declare it: in the place of the id it has two bytes, the device and the domain.
inline std::optional<int> device_of(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  constexpr auto kLocalityDomain = static_cast<CUmemLocationType>(6);
  if (location.type != kLocalityDomain) return std::nullopt;
  unsigned char device = 0;
  std::memcpy(&device, &location.id, sizeof device);
  return device;
}

}  // namespace cupool::shim
