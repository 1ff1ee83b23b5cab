// Of which device the memory is that a program asks for by a location. Source: cuda.h 13.5, CUmemLocation.
#pragma once

#include <cuda.h>

#include <cstring>
#include <optional>

namespace cupool::shim {

/// Empty: memory of no device. A locality domain (CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN, CUDA 13.5) is a part of a device's memory; older
/// headers have neither the name nor the two bytes, device and domain, that stand where the id does.
inline std::optional<int> device_of(const CUmemLocation& location) {
  if (location.type == CU_MEM_LOCATION_TYPE_DEVICE) return location.id;
  constexpr auto kLocalityDomain = static_cast<CUmemLocationType>(6);
  if (location.type != kLocalityDomain) return std::nullopt;
  unsigned char device = 0;
  std::memcpy(&device, &location.id, sizeof device);
  return device;
}

}  // namespace cupool::shim
