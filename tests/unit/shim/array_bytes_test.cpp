// What arrays count for: shim/array_bytes.hpp.
#include "shim/array_bytes.hpp"

#include <catch2/catch.hpp>

using namespace cupool::shim;

TEST_CASE("a channel of an array has as many bits as its format says") {
  for (const CUarray_format format : {CU_AD_FORMAT_UNSIGNED_INT8, CU_AD_FORMAT_SIGNED_INT8, CU_AD_FORMAT_UNORM_INT8X1, CU_AD_FORMAT_UNORM_INT8X2,
                                      CU_AD_FORMAT_UNORM_INT8X4, CU_AD_FORMAT_SNORM_INT8X4, CU_AD_FORMAT_NV12, CU_AD_FORMAT_NV16, CU_AD_FORMAT_YUY2,
                                      CU_AD_FORMAT_AYUV, CU_AD_FORMAT_Y410, CU_AD_FORMAT_UNORM_INT_101010_2})
    CHECK(bits_of(format) == 8);
  for (const CUarray_format format :
       {CU_AD_FORMAT_UNSIGNED_INT16, CU_AD_FORMAT_SIGNED_INT16, CU_AD_FORMAT_HALF, CU_AD_FORMAT_UNORM_INT16X1, CU_AD_FORMAT_UNORM_INT16X2,
        CU_AD_FORMAT_UNORM_INT16X4, CU_AD_FORMAT_SNORM_INT16X1, CU_AD_FORMAT_SNORM_INT16X2, CU_AD_FORMAT_SNORM_INT16X4, CU_AD_FORMAT_P010,
        CU_AD_FORMAT_P016, CU_AD_FORMAT_P210, CU_AD_FORMAT_P216, CU_AD_FORMAT_Y210, CU_AD_FORMAT_Y216, CU_AD_FORMAT_Y416, CU_AD_FORMAT_Y444_PLANAR10,
        CU_AD_FORMAT_YUV444_16bit_SemiPlanar})
    CHECK(bits_of(format) == 16);
  for (const CUarray_format format : {CU_AD_FORMAT_UNSIGNED_INT32, CU_AD_FORMAT_SIGNED_INT32, CU_AD_FORMAT_FLOAT}) CHECK(bits_of(format) == 32);
}

TEST_CASE("an array without memory of its own counts for nothing, others for their levels") {
  CUDA_ARRAY3D_DESCRIPTOR shape{};
  shape.Width = shape.Height = 1024;
  shape.Format = CU_AD_FORMAT_UNORM_INT16X2;
  shape.NumChannels = 2;
  CHECK(array_bytes(shape, 1) == std::size_t{4} << 20);
  CHECK(array_bytes(shape, 2) == std::size_t{5} << 20);
  for (const unsigned flags : {CUDA_ARRAY3D_SPARSE, CUDA_ARRAY3D_DEFERRED_MAPPING}) {
    shape.Flags = flags | CUDA_ARRAY3D_SURFACE_LDST;
    CHECK(array_bytes(shape, 1) == 0);
    CHECK(array_bytes(shape, 2) == 0);
  }
  CHECK(array_bytes(SIZE_MAX, SIZE_MAX, 1, CU_AD_FORMAT_FLOAT, 4) == 0);
}
