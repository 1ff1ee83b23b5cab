// The size that most blocks have, and the one that holds most bytes: exact sizes, without a table of all sizes.
//
// First pass: every value with more than its share ends up among a few candidates (Boyer and Moore for a half, Misra and Gries for less). Second
// pass: how much each candidate really has.
// Thread rule: each object belongs to one thread.
#pragma once

#include <cstdint>
#include <vector>

#include "pool/observe/snapshot.hpp"

namespace cupool::observe {

/// The only value that can be more than half of those that were added.
class Majority {
 public:
  void show(std::uint64_t value) {
    if (surplus_ == 0) candidate_ = value;
    surplus_ += candidate_ == value ? 1 : -1;
  }
  std::uint64_t candidate() const { return candidate_; }

 private:
  std::uint64_t candidate_ = 0;
  std::int64_t surplus_ = 0;
};

/// Live blocks of one size, as asked for; blocks 0: none holds a quarter.
struct HeaviestSize {
  std::uint64_t requested_bytes = 0;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;  ///< Σ bytes of the blocks
};
/// The size that holds most, if it holds a quarter or more of all that is live.
HeaviestSize heaviest_size(const std::vector<BlockRow>& rows);

}  // namespace cupool::observe
