// Positions of set bits in a 64-bit word, for the bitmaps of this room. Precondition of both: the word is not 0.
#pragma once

#include <bit>
#include <cstdint>

namespace cupool::heap {

inline unsigned lowest_bit(std::uint64_t word) { return static_cast<unsigned>(std::countr_zero(word)); }
inline unsigned highest_bit(std::uint64_t word) { return 63U - static_cast<unsigned>(std::countl_zero(word)); }

}  // namespace cupool::heap
