// ArrayParts: into which parts of a sparse array the program has mapped physical memory (cuMemMapArrayAsync), each with the key of its memory.
//
// Parts are compared as boxes: mapping or unmapping a box ends the parts that it covers wholly. At most kMost parts of an array are kept apart;
// memory that is mapped beyond them counts until the array is destroyed. Plain data, guarded by VmmLedger's lock. Source: cuda.h 13.0,
// CUarrayMapInfo.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace cupool::shim {

/// One level and layer of an array, or its mip tail, from `begin` to `end` in each direction.
struct ArrayPart {
  unsigned kind = 0;
  unsigned level = 0;
  unsigned layer = 0;
  std::array<std::uint64_t, 3> begin{};
  std::array<std::uint64_t, 3> end{};

  bool covers(const ArrayPart& other) const {
    bool holds = kind == other.kind && level == other.level && layer == other.layer;
    for (std::size_t i = 0; i < begin.size(); ++i) holds = holds && begin[i] <= other.begin[i] && other.end[i] <= end[i];
    return holds;
  }

  static ArrayPart of(const CUarrayMapInfo& change) {
    ArrayPart part;
    part.kind = static_cast<unsigned>(change.subresourceType);
    if (change.subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL) {
      const auto& tail = change.subresource.miptail;
      part.layer = tail.layer;
      part.begin = {tail.offset, 0, 0};
      part.end = {tail.offset + tail.size, 0, 0};
      return part;
    }
    const auto& box = change.subresource.sparseLevel;
    part.level = box.level;
    part.layer = box.layer;
    part.begin = {box.offsetX, box.offsetY, box.offsetZ};
    part.end = {std::uint64_t{box.offsetX} + box.extentWidth, std::uint64_t{box.offsetY} + box.extentHeight,
                std::uint64_t{box.offsetZ} + box.extentDepth};
    return part;
  }
};

/// The array that a change names, of either kind.
inline const void* array_of(const CUarrayMapInfo& change) {
  return change.resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY ? static_cast<const void*>(change.resource.mipmap)
                                                                 : static_cast<const void*>(change.resource.array);
}

/// What is mapped into one array.
struct ArrayParts {
  static constexpr std::size_t kMost = 4096;
  struct Mapped {
    ArrayPart part;
    std::uint64_t key = 0;
    bool stays = false;  ///< one of too many parts: it counts until the array goes
  };

  CUcontext context = nullptr;  ///< the array's: the array ends with it
  bool is_whole = false;        ///< CUDA_ARRAY3D_DEFERRED_MAPPING: mapped all at once, whatever part a change names
  std::vector<Mapped> mapped;

  /// Takes out one of the parts that `part` covers and returns the key of its memory; 0: none is left.
  std::uint64_t take_covered(const ArrayPart& part) {
    const auto found = std::find_if(mapped.begin(), mapped.end(), [&](const Mapped& one) { return !one.stays && part.covers(one.part); });
    if (found == mapped.end()) return 0;
    const std::uint64_t key = found->key;
    *found = mapped.back();
    mapped.pop_back();
    return key;
  }

  /// False: nothing was added, because the memory is already among the parts that stay.
  bool add(const ArrayPart& part, std::uint64_t key) {
    const bool stays = mapped.size() >= kMost;
    if (stays && std::any_of(mapped.begin(), mapped.end(), [&](const Mapped& one) { return one.stays && one.key == key; })) return false;
    mapped.push_back({part, key, stays});
    return true;
  }
};

}  // namespace cupool::shim
