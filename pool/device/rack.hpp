// Racks: the blocks of one size that a thread keeps for itself. Plain records; magazine.hpp says who may touch them.
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

inline constexpr std::uint64_t kYoungest = ~std::uint64_t{0};  ///< the birth given to kept blocks: the heap takes them for blocks that come and go
inline constexpr std::uint32_t kTurnsAway = 16;                ///< blocks of other sizes that a rack turns away before it makes room for one of them

/// Cached blocks of one size, linked through their bin links; the newest first, because it is still in the processor's cache.
struct Rack {
  heap::Extent* first = nullptr;
  std::uint32_t count = 0;
  std::uint32_t batch = 0;  ///< of a magazine: how many the last refill brought; doubles with every refill
  std::uint64_t used = 0;   ///< when a block was last taken or kept, in operations of the magazine

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

/// A rack for any size that was asked for again and again.
struct SizedRack {
  std::uint64_t bytes = 0;  ///< the size; 0: unused
  Rack rack;                ///< here `batch` counts down the blocks of other sizes that are turned away before this rack makes room
  std::uint32_t heat = 0;   ///< of a stream's rack: how many times in a row a block was allocated soon after one was freed
};

/// Racks for many sizes, each at a place given by a hash of the size.
template <std::size_t kSizes> struct SizedRacks {
  std::array<SizedRack, kSizes> racks = {};

  /// The only place that may be for this size.
  SizedRack& at(std::uint64_t bytes) {
    static_assert(std::has_single_bit(kSizes));
    return racks[multiplicative_hash(bytes / kBlockAlignment_bytes, std::countr_zero(kSizes))];
  }
};

/// What one thread freed on one stream, and may have again on that stream at once: no event is needed.
struct StreamRacks {
  StreamName stream;        ///< identity 0: unused
  std::uint32_t pairs = 0;  ///< pairs of an allocation and a free since the last flush
  SizedRacks<32> sizes;
};

}  // namespace cupool::device
