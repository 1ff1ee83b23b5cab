// What a pool can be asked for, and what of it is not modelled. Source: CUDA Driver API 13.0, "Stream Ordered Memory Allocator".
#include <algorithm>

#include "tests/sim/graph_nodes.hpp"

namespace cusim {

CUresult refuse_unmodelled(Call& c, const char* what) {
  std::fprintf(stderr, "cusim: %s: %s is not modelled\n", c.name().c_str(), what);
  c.sim.violate(c.name() + ": " + what + " is not modelled");
  return CUDA_ERROR_NOT_SUPPORTED;
}

/// The pool's place for the forms of CUDA 13 that name one: only pinned memory of a device is modelled.
CUresult check_place(Call& c, const CUmemLocation* location, CUmemAllocationType type) {
  if (location == nullptr) return CUDA_ERROR_INVALID_VALUE;
  const bool is_managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (type != CU_MEM_ALLOCATION_TYPE_PINNED && !is_managed) return CUDA_ERROR_INVALID_VALUE;
  switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: break;
    case CU_MEM_LOCATION_TYPE_NONE:
      if (!is_managed) return CUDA_ERROR_INVALID_VALUE;
      return refuse_unmodelled(c, "a pool of managed memory");
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA: return refuse_unmodelled(c, "a pool of the host");
    default: return CUDA_ERROR_INVALID_VALUE;
  }
  return is_managed ? refuse_unmodelled(c, "a pool of managed memory") : CUDA_SUCCESS;
}

CUresult check_pool_properties(Call& c, const CUmemPoolProps& wanted) {
  constexpr unsigned kHandleTypes =
      CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR | CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT | CU_MEM_HANDLE_TYPE_FABRIC;
  const unsigned handles = wanted.handleTypes;
  const bool has_reserved = std::any_of(std::begin(wanted.reserved), std::end(wanted.reserved), [](unsigned char byte) { return byte != 0; });
  if (has_reserved || wanted.win32SecurityAttributes != nullptr || (handles & ~kHandleTypes) != 0 ||
      (wanted.usage & ~unsigned{CU_MEM_POOL_CREATE_USAGE_HW_DECOMPRESS}) != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A pool of host memory without a NUMA node is never shared.
  if (wanted.location.type == CU_MEM_LOCATION_TYPE_HOST && handles != 0) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(check_place(c, &wanted.location, wanted.allocType));
  const bool is_device = wanted.location.id >= 0 && static_cast<std::size_t>(wanted.location.id) < c.sim.devices.size();
  if (!is_device) return CUDA_ERROR_INVALID_VALUE;
  if (wanted.usage != 0 && c.sim.settings.decompression != Offer::given) return CUDA_ERROR_NOT_SUPPORTED;  // [?] that, and the code
  // What Linux cannot share; FABRIC is taken without an IMEX channel too (an H100, driver 580).
  return (handles & (CU_MEM_HANDLE_TYPE_WIN32 | CU_MEM_HANDLE_TYPE_WIN32_KMT)) != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

}  // namespace cusim
