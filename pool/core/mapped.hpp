// Host memory for large, thinly used tables: zeroed pages of the system that cost nothing until they are touched.
#pragma once

#include <sys/mman.h>

#include <cstddef>

namespace cupool {

/// nullptr when the system has none. Give back with munmap.
inline void* map_zeroed(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

}  // namespace cupool
