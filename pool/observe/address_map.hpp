// What an address map says: histogram, largest holes, what pins free memory, who holds memory.
//
// Pure functions over the rows of one device; linear, but for the sorting of what they return. Precondition of all: the
// rows of a region are contiguous, in address order, and regions do not interleave (snapshot.hpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "pool/observe/snapshot.hpp"

namespace cupool::observe {

inline constexpr std::size_t kReportedHoles = 64;
inline constexpr std::size_t kReportedPins = 16;
inline constexpr std::size_t kReportedLeaks = 1024;

/// Live blocks with min_bytes <= size < 2 * min_bytes.
struct HistogramBin {
  std::uint64_t min_bytes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t requested_bytes = 0;
};
/// Ascending, without empty bins.
std::vector<HistogramBin> histogram_of(const std::vector<BlockRow>& rows);

struct HoleList {
  std::vector<BlockRow> largest;  ///< descending by size, then ascending by address; at most `limit`
  std::uint64_t count = 0;        ///< of all holes
  std::uint64_t bytes = 0;        ///< of all holes
};
HoleList largest_holes(const std::vector<BlockRow>& rows, std::size_t limit);

/// A run of blocks without a hole in it that keeps free bytes apart, or a region from going back to the driver. Where memory lies in physical handles
/// (backing pages) the unit is the handle: blocks, in one run or in one handle, without which handles would be empty.
struct Pin {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;  ///< of the blocks
  std::uint64_t blocks = 0;
  std::uint64_t deferred_bytes = 0;     ///< of `bytes`: goes by itself when the GPU is done
  std::uint64_t pinned_free_bytes = 0;  ///< free bytes beside it; of the whole region if holds_region; on pages those of its handles
  std::uint64_t handles = 0;            ///< handles with free bytes that would be empty without it; 0 where memory does not lie in handles
  std::uint32_t region = 0;
  std::uint32_t site = 0;     ///< call site of its largest block
  bool holds_region = false;  ///< nothing else keeps the region, or those handles, from being returned
};
/// The runs that are smaller than what they pin: most pinned bytes first, then the smallest run; at most `limit`. `handles`: PageMap::handles.
std::vector<Pin> largest_pins(const std::vector<BlockRow>& rows, const std::vector<HandleRow>& handles, std::size_t limit);

/// Live blocks of one call site; where sites were not recorded (site 0), of one power of two of sizes.
struct LeakGroup {
  std::uint32_t site = 0;
  std::uint64_t size_class_bytes = 0;  ///< site 0: as HistogramBin::min_bytes; else 0
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t requested_bytes = 0;
  std::uint64_t first_allocated_unix_ns = 0;  ///< 0: unknown
  std::uint64_t smallest_bytes = 0;           ///< as asked for
  std::uint64_t largest_bytes = 0;
  std::uint64_t common_bytes = 0;   ///< the size of more than half of the blocks; there is none where common_blocks is 0
  std::uint64_t common_blocks = 0;  ///< blocks of that size
};
/// Most bytes first.
std::vector<LeakGroup> leak_groups(const std::vector<BlockRow>& rows);

}  // namespace cupool::observe
