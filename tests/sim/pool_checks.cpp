// What a pool can be asked for, and where it can be. Source: CUDA Driver API 13.0, "Stream Ordered Memory Allocator".
#include <algorithm>

#include "tests/sim/pool_calls.hpp"

namespace cusim {

namespace {

CUresult check_host_place(const CUmemLocation& location, PoolPlace* out) {
  constexpr int kNodes = 1;
  switch (location.type) {
    case CU_MEM_LOCATION_TYPE_NONE: return out->is_managed() ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST: return CUDA_SUCCESS;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
      out->id = location.id;
      return location.id >= 0 && location.id < kNodes ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
  }
}

}  // namespace

CUresult check_place(Call& c, const CUmemLocation* asked, CUmemAllocationType type, PoolPlace* out) {
  if (asked == nullptr || (type != CU_MEM_ALLOCATION_TYPE_PINNED && type != CU_MEM_ALLOCATION_TYPE_MANAGED)) return CUDA_ERROR_INVALID_VALUE;
  const CUmemLocation location = type == CU_MEM_ALLOCATION_TYPE_PINNED ? without_domain(c.sim, *asked) : *asked;
  *out = {type, location.type, 0};
  if (location.type != CU_MEM_LOCATION_TYPE_DEVICE) return check_host_place(location, out);
  out->id = location.id;
  return CUDA_SUCCESS;
}

CUresult check_pool_properties(Call& c, const CUmemPoolProps& wanted, PoolPlace* place) {
  constexpr unsigned kHandleTypes =
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT | CU_MEM_HANDLE_TYPE_FABRIC;
  const unsigned handles = wanted.handleTypes;
  const bool has_reserved = std::any_of(std::begin(wanted.reserved), std::end(wanted.reserved), [](unsigned char byte) { return byte != 0; });
  if (has_reserved || wanted.win32SecurityAttributes != nullptr || (handles & ~kHandleTypes) != 0 ||
      (wanted.usage & ~unsigned{CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  CUSIM_TRY(check_place(c, &wanted.location, wanted.allocType, place));
  const bool is_managed = place->is_managed();
  if (is_managed && (wanted.maxSize != 0 || wanted.usage != 0)) return CUDA_ERROR_INVALID_VALUE;
  // A pool of host memory without a NUMA node is never shared, nor is a managed one.
  if ((is_managed || place->where == CU_MEM_LOCATION_TYPE_HOST) && handles != 0) return CUDA_ERROR_INVALID_VALUE;
  const bool is_of_device = place->where == CU_MEM_LOCATION_TYPE_DEVICE;
  if (is_of_device && (place->id < 0 || static_cast<std::size_t>(place->id) >= c.sim.devices.size())) return CUDA_ERROR_INVALID_VALUE;
  if (wanted.usage != 0 && c.sim.settings.decompression != Offer::given) return CUDA_ERROR_NOT_SUPPORTED;  // [?] that, and the code
  // What Linux cannot share; FABRIC is taken without an IMEX channel too (an H100, driver 580).
  return (handles & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT)) != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace cusim
