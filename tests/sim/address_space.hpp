// AddressSpace: numeric ranges handed out at 2 MiB granularity, for cuMemAddressReserve and imported memory.
// Owns no memory. Thread rule: guarded by the simulator's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <iterator>
#include <map>

namespace cusim {

class AddressSpace {
 public:
  AddressSpace(CUdeviceptr begin, std::uint64_t bytes) : free_{{begin, bytes}} {}

  /// A range of `bytes` (a multiple of 2 MiB) aligned to `alignment`; at `hint` if that is free. 0: there is none.
  CUdeviceptr take(std::uint64_t bytes, std::uint64_t alignment, CUdeviceptr hint) {
    if (hint != 0) {
      auto range = free_.upper_bound(hint);
      if (range != free_.begin()) {
        --range;
        if (hint % alignment == 0 && hint - range->first <= range->second && bytes <= range->second - (hint - range->first)) {
          return carve(range, hint, bytes);
        }
      }
    }
    for (auto range = free_.begin(); range != free_.end(); ++range) {
      const CUdeviceptr start = (range->first + alignment - 1) / alignment * alignment;
      const std::uint64_t lost = start - range->first;
      if (lost <= range->second && bytes <= range->second - lost) return carve(range, start, bytes);
    }
    return 0;
  }

  void give(CUdeviceptr begin, std::uint64_t bytes) {
    auto next = free_.upper_bound(begin);
    if (next != free_.end() && begin + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == begin) {
        before->second += bytes;
        return;
      }
    }
    free_.emplace(begin, bytes);
  }

 private:
  using Ranges = std::map<CUdeviceptr, std::uint64_t>;

  CUdeviceptr carve(Ranges::iterator range, CUdeviceptr start, std::uint64_t bytes) {
    const CUdeviceptr begin = range->first;
    const std::uint64_t size = range->second;
    free_.erase(range);
    if (start > begin) free_.emplace(begin, start - begin);
    if (start + bytes < begin + size) free_.emplace(start + bytes, begin + size - start - bytes);
    return start;
  }

  Ranges free_;
};

}  // namespace cusim
