// Stream-ordered memory and pools in a few words, for their tests.
#pragma once

#include "sim_fixture.hpp"

namespace sim_test {

inline CUdeviceptr allocate_async(std::size_t bytes, CUstream stream) {
  CUdeviceptr address = 0;
  return cuMemAllocAsync(&address, bytes, stream) == CUDA_SUCCESS ? address : 0;
}

inline std::uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute which) {
  std::uint64_t value = 0;
  cuMemPoolGetAttribute(pool, which, &value);
  return value;
}

inline CUmemoryPool default_pool() {
  CUmemoryPool pool = nullptr;
  cuDeviceGetDefaultMemPool(&pool, 0);
  return pool;
}

}  // namespace sim_test
