// Host memory for large, sparsely used tables: zeroed pages from the system, which cost nothing until they are touched.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "pool/core/bytes.hpp"

namespace cupool {

/// `bytes` of zeroes, from a host page on; nullptr when the system has no memory. To be given back by munmap.
inline void* map_zeroed(std::size_t bytes) {
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

/// A table that begins as zeroes and is freed with the object. A large one is mapped, so that it costs nothing until it is touched. (calloc would
/// reuse memory that the process has freed, and then has to write all of it.)
class ZeroedTable {
 public:
  /// Throws std::bad_alloc.
  explicit ZeroedTable(std::size_t bytes) : bytes_(bytes), memory_(is_mapped() ? map_zeroed(bytes) : std::calloc(1, bytes)) {
    if (memory_ == nullptr) throw std::bad_alloc();
  }
  ~ZeroedTable() {
    if (is_mapped()) {
      ::munmap(memory_, bytes_);
    } else {
      std::free(memory_);
    }
  }
  ZeroedTable(const ZeroedTable&) = delete;
  ZeroedTable& operator=(const ZeroedTable&) = delete;

  /// Gives the pages of [from, to) back to the system until they are written again. Precondition: all of it is zero.
  void give_back(void* from, void* to) const noexcept {
    const std::uintptr_t first = align_up(reinterpret_cast<std::uintptr_t>(from), kHostPage_bytes);
    const std::uintptr_t last = align_down(reinterpret_cast<std::uintptr_t>(to), kHostPage_bytes);
    if (is_mapped() && first < last) static_cast<void>(::madvise(reinterpret_cast<void*>(first), last - first, MADV_DONTNEED));
  }
  void* get() const { return memory_; }
  std::size_t bytes() const { return bytes_; }

 private:
  static constexpr std::size_t kMapFrom_bytes = 128 * kKiB;  ///< below this a page fault costs more than writing the zeroes
  bool is_mapped() const { return bytes_ >= kMapFrom_bytes; }

  std::size_t bytes_;
  void* memory_;
};

}  // namespace cupool
