// What the texels of an array take, by its descriptor: the driver's own padding is not known. CUDA Driver API 13.0, cuArray3DCreate.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstddef>

namespace cupool::shim {

/// Of one channel.
constexpr std::size_t bits_of(CUarray_format format) {
  switch (format) {
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF:
    case CU_AD_FORMAT_UNORM_INT16X1:
    case CU_AD_FORMAT_UNORM_INT16X2:
    case CU_AD_FORMAT_UNORM_INT16X4:
    case CU_AD_FORMAT_SNORM_INT16X1:
    case CU_AD_FORMAT_SNORM_INT16X2:
    case CU_AD_FORMAT_SNORM_INT16X4:
    // Samples of 10 and 12 bits lie in 16. Of planes that have fewer samples this is the most that they take.
    case CU_AD_FORMAT_P010:
    case CU_AD_FORMAT_P016:
    case CU_AD_FORMAT_P210:
    case CU_AD_FORMAT_P216:
    case CU_AD_FORMAT_Y210:
    case CU_AD_FORMAT_Y216:
    case CU_AD_FORMAT_Y416:
    case CU_AD_FORMAT_Y444_PLANAR10:
    case CU_AD_FORMAT_YUV444_16bit_SemiPlanar: return 16;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: return 32;
    default: return 8;  // the formats of 8 bits; packed ones of 32 for four channels; block-compressed ones: at most about a byte
  }
}

/// 0: it overflows, and the driver refuses it itself.
constexpr std::size_t array_bytes(std::size_t width, std::size_t height, std::size_t depth, CUarray_format format, unsigned channels) {
  std::size_t bytes = std::max<std::size_t>(channels, 1) * bits_of(format) / 8;
  for (const std::size_t extent : {width, std::max<std::size_t>(height, 1), std::max<std::size_t>(depth, 1)}) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return 0;
  }
  return bytes;
}

/// 0 also of one that is sparse or mapped later: it has no memory of its own until the program maps some, which cuMemCreate counts.
constexpr std::size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels) {
  constexpr unsigned kLevelsMax = 32;
  if ((shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0) return 0;
  std::size_t bytes = 0;
  const bool is_layered = (shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;  // layers do not shrink
  for (unsigned level = 0; level < std::min(levels, kLevelsMax); ++level) {
    const std::size_t depth = is_layered ? shape.Depth : shape.Depth >> level;
    bytes += array_bytes(std::max<std::size_t>(shape.Width >> level, 1), shape.Height >> level, depth, shape.Format, shape.NumChannels);
  }
  return bytes;
}

}  // namespace cupool::shim
