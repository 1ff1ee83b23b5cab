// Racks: the blocks of one size that a thread keeps for itself. Plain records; see magazine.hpp for who may touch them.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "pool/core/bytes.hpp"
#include "pool/core/hash.hpp"
#include "pool/device/stream_name.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::device {

inline constexpr std::uint64_t kYoungest = ~std::uint64_t{0};  ///< the birth of what is kept: the heap takes it for one that comes and goes
inline constexpr std::uint32_t kTurnsAway = 16;                ///< a size that was wanted yesterday makes room for today's

/// Cached blocks of one size, through their bin links; the newest first, because it is still in the cache.
struct Rack {
  heap::Extent* first = nullptr;
  std::uint32_t count = 0;
  std::uint32_t batch = 0;  ///< of a magazine: so many came the last time; doubles with every refill
  std::uint64_t used = 0;   ///< when one was taken or kept, in operations of the magazine

  void push(heap::Extent* extent) {
    extent->bin_next = first;
    first = extent;
    ++count;
  }
  heap::Extent* pop() {
    heap::Extent* extent = first;
    first = extent->bin_next;
    --count;
    return extent;
  }
};

/// A rack for whichever size was asked for again and again.
struct SizedRack {
  std::uint64_t bytes = 0;  ///< 0: no size's
  Rack rack;                ///< `batch`: so many blocks of other sizes are turned away before this one makes room
  std::uint32_t heat = 0;   ///< of a stream's: so often in a row one was allocated soon after one was freed
};

/// One rack for each of many sizes, by a hash.
template <std::size_t kSizes> struct SizedRacks {
  std::array<SizedRack, kSizes> racks = {};

  /// The only one that may be for this size.
  SizedRack& at(std::uint64_t bytes) {
    static_assert(std::has_single_bit(kSizes));
    return racks[multiplicative_hash(bytes / kBlockAlignment_bytes, std::countr_zero(kSizes))];
  }
};

/// What one thread freed on one stream, and may have again on that stream at once: no event stands between.
struct StreamRacks {
  StreamName stream;        ///< identity 0: no stream's
  std::uint32_t pairs = 0;  ///< of an allocation and a free, since the device was last told
  SizedRacks<32> sizes;
};

}  // namespace cupool::device
