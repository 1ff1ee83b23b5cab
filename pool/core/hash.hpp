// A hash for numbers that come in runs, such as addresses and sizes counted in granules. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cupool {

/// A number below 2^bits: the high bits of the product with 2^64 divided by the golden ratio, which scatters numbers that follow each other (Knuth,
/// The Art of Computer Programming, volume 3, section 6.4). Precondition: 0 < bits < 64.
constexpr std::size_t multiplicative_hash(std::uint64_t value, unsigned bits) {
  return static_cast<std::size_t>((value * 0x9E3779B97F4A7C15U) >> (64 - bits));
}

}  // namespace cupool
