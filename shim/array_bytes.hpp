// How many bytes the texels of an array take, by its descriptor. What the driver adds as padding is not known. Pure functions.
// Source: CUDA Driver API 13.0, cuArray3DCreate.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstddef>

namespace cupool::shim {

/// Bits of one channel of one texel.
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
    // Samples of 10 and 12 bits are stored in 16. Planes with fewer samples take less than this says.
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

/// Bytes of an array of one level; 0 where the product overflows, which the driver refuses itself. `height` and `depth` 0 count as 1.
constexpr std::size_t array_bytes(std::size_t width, std::size_t height, std::size_t depth, CUarray_format format, unsigned channels) {
  std::size_t bytes = std::max<std::size_t>(channels, 1) * bits_of(format) / 8;
  for (const std::size_t extent : {width, std::max<std::size_t>(height, 1), std::max<std::size_t>(depth, 1)}) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) return 0;
  }
  return bytes;
}

/// The array has no memory of its own: the program maps some into it later (cuMemMapArrayAsync).
constexpr bool is_mapped_later(const CUDA_ARRAY3D_DESCRIPTOR& shape) {
  return (shape.Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
}

/// Bytes of all levels; 0 also where memory is mapped later, which is counted where the program creates it (cuMemCreate).
constexpr std::size_t array_bytes(const CUDA_ARRAY3D_DESCRIPTOR& shape, unsigned levels) {
  constexpr unsigned kLevelsMax = 32;
  if (is_mapped_later(shape)) return 0;
  std::size_t bytes = 0;
  const bool is_layered = (shape.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;  // layers do not shrink
  for (unsigned level = 0; level < std::min(levels, kLevelsMax); ++level) {
    const std::size_t depth = is_layered ? shape.Depth : shape.Depth >> level;
    bytes += array_bytes(std::max<std::size_t>(shape.Width >> level, 1), shape.Height >> level, depth, shape.Format, shape.NumChannels);
  }
  return bytes;
}

}  // namespace cupool::shim
