// Arrays and mipmapped arrays: accounted for, with their descriptors; their texels are not modelled.
#include <algorithm>

#include "tests/sim/call.hpp"

using namespace cusim;

namespace {

std::size_t format_bytes(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_UNORM_INT8X1:
    case CU_AD_FORMAT_UNORM_INT8X2:
    case CU_AD_FORMAT_UNORM_INT8X4:
    case CU_AD_FORMAT_SIGNED_INT8: return 1;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X4:
    case CU_AD_FORMAT_HALF: return 2;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 4;
    default: return 0;
  }
}

/// Bytes of level 0, before rounding to granules; 0 for a descriptor that makes no sense.
std::uint64_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR_v2& d) {
  const bool channels_ok = d.NumChannels == 1 || d.NumChannels == 2 || d.NumChannels == 4;
  if (!channels_ok) return 0;
  const std::size_t height = d.Height == 0 ? 1 : d.Height;
  const std::size_t depth = d.Depth == 0 ? 1 : d.Depth;
  return d.Width * height * depth * d.NumChannels * format_bytes(d.Format);
}

CUresult create(Call& c, std::uint64_t* out, const CUDA_ARRAY3D_DESCRIPTOR_v2& descriptor, unsigned levels) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  const std::uint64_t bytes = array_bytes(descriptor);
  if (bytes == 0 || levels == 0) return CUDA_ERROR_INVALID_VALUE;
  CUSIM_TRY(c.sim.forbid_while_capturing());
  std::uint64_t total = 0;
  for (unsigned level = 0; level < levels; ++level) total += std::max<std::uint64_t>(bytes >> (2 * level), 1);
  // [?] Sparse, or mapped later: no memory until the program maps some.
  const bool is_mapped_later = (descriptor.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
  const std::uint64_t charged = is_mapped_later ? 0 : whole_granules(total);
  if (!c.device_of(*context).memory.charge(charged)) return CUDA_ERROR_OUT_OF_MEMORY;
  const std::uint64_t handle = c.sim.new_handle();
  c.sim.arrays.emplace(handle, std::make_unique<Array>(Array{context->device, context, charged, descriptor, levels, {}}));
  *out = handle;
  return CUDA_SUCCESS;
}

CUresult destroy(Call& c, const void* handle, bool mipmapped) {
  Context* context = nullptr;
  CUSIM_TRY(c.current(&context));
  const auto found = c.sim.arrays.find(as_number(handle));
  if (found == c.sim.arrays.end() || (found->second->levels > 1) != mipmapped) {
    c.sim.violate(c.name() + " of an array that is destroyed or unknown");
    return CUDA_ERROR_INVALID_HANDLE;
  }
  CUSIM_TRY(c.sim.forbid_while_capturing());
  Context& owner = *found->second->context;
  c.sim.wait_for_context(owner, c.lock);
  const auto again = c.sim.arrays.find(as_number(handle));
  if (again == c.sim.arrays.end()) return CUDA_ERROR_INVALID_HANDLE;
  c.sim.empty_array(*again->second);
  c.sim.arrays.erase(again);
  return owner.broken;
}

}  // namespace

extern "C" {

CUresult cuArrayCreate_v2(CUarray* out, const CUDA_ARRAY_DESCRIPTOR_v2* d) {
  return call(Symbol::cuArrayCreate_v2, [&](Call& c) -> CUresult {
    if (out == nullptr || d == nullptr) return CUDA_ERROR_INVALID_VALUE;
    CUDA_ARRAY3D_DESCRIPTOR_v2 full{};
    full.Width = d->Width;
    full.Height = d->Height;
    full.Format = d->Format;
    full.NumChannels = d->NumChannels;
    std::uint64_t handle = 0;
    CUSIM_TRY(create(c, &handle, full, 1));
    *out = reinterpret_cast<CUarray>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuArray3DCreate_v2(CUarray* out, const CUDA_ARRAY3D_DESCRIPTOR_v2* descriptor) {
  return call(Symbol::cuArray3DCreate_v2, [&](Call& c) -> CUresult {
    if (out == nullptr || descriptor == nullptr) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t handle = 0;
    CUSIM_TRY(create(c, &handle, *descriptor, 1));
    *out = reinterpret_cast<CUarray>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR_v2* out, CUarray array) {
  return call(Symbol::cuArray3DGetDescriptor_v2, [&](Call& c) -> CUresult {
    const auto found = c.sim.arrays.find(as_number(array));
    if (found == c.sim.arrays.end()) return CUDA_ERROR_INVALID_HANDLE;
    if (out == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *out = found->second->descriptor;
    return CUDA_SUCCESS;
  });
}

CUresult cuArrayDestroy(CUarray array) {
  return call(Symbol::cuArrayDestroy, [&](Call& c) { return destroy(c, array, false); });
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray* out, const CUDA_ARRAY3D_DESCRIPTOR_v2* descriptor, unsigned levels) {
  return call(Symbol::cuMipmappedArrayCreate, [&](Call& c) -> CUresult {
    if (out == nullptr || descriptor == nullptr || levels < 2) return CUDA_ERROR_INVALID_VALUE;
    std::uint64_t handle = 0;
    CUSIM_TRY(create(c, &handle, *descriptor, levels));
    *out = reinterpret_cast<CUmipmappedArray>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return call(Symbol::cuMipmappedArrayDestroy, [&](Call& c) { return destroy(c, array, true); });
}

}  // extern "C"
