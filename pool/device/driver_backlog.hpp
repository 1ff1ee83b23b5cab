// DriverBacklog: memory that the program has returned to the driver in stream order, and whose stream nobody has seen pass the free yet.
//
// Such a free is the driver's at once, but the memory reaches another stream, or a plain call, only when the stream has come to the free. Nothing is
// recorded for it: what is known is how many bytes were freed on which stream, and they are forgotten when the program waits for that stream. So the
// sums are the most that may still be in use. Beyond a fixed number of streams the rest is counted, and forgotten, together.
// Thread rule: the device's lock. No driver call, no host memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

namespace cupool::device {

class DriverBacklog {
 public:
  struct Sums {
    std::uint64_t pooled_bytes = 0;  ///< freed to the driver's pools, which report it as idle
    std::uint64_t plain_bytes = 0;   ///< freed by plain calls, of which the driver says nothing
  };

  /// `identity`: of the stream; 0: one that cannot be named later. `serial`: a number of the free, ascending.
  void add(std::uint64_t identity, const Sums& bytes, std::uint64_t serial) {
    Row& row = identity == 0 ? rest_ : row_of(identity);
    row.identity = identity;
    row.bytes.pooled_bytes += bytes.pooled_bytes;
    row.bytes.plain_bytes += bytes.plain_bytes;
    row.serial = serial;
    newest_ = serial;
  }
  /// The program has waited for a stream, by a call that began when `serial` was the newest free.
  void waited_for(std::uint64_t identity, std::uint64_t serial) {
    for (Row& row : rows_)
      if (row.identity == identity && row.serial <= serial) row = {};
  }
  /// Everything that was freed up to `serial` is over.
  void is_over(std::uint64_t serial) {
    for (Row& row : rows_)
      if (row.serial <= serial) row = {};
    if (rest_.serial <= serial) rest_ = {};
  }
  /// The stream ends; its identity may come again.
  void stream_ending(std::uint64_t identity) {
    for (Row& row : rows_)
      if (identity != 0 && row.identity == identity) move_to_rest(row);
  }
  Sums sums() const {
    Sums sums = rest_.bytes;
    for (const Row& row : rows_) {
      sums.pooled_bytes += row.bytes.pooled_bytes;
      sums.plain_bytes += row.bytes.plain_bytes;
    }
    return sums;
  }
  std::uint64_t newest() const { return newest_; }

 private:
  static constexpr std::size_t kRows = 32;

  struct Row {
    std::uint64_t identity = 0;  ///< unused entry
    Sums bytes;
    std::uint64_t serial = 0;  ///< of its newest free
  };

  Row& row_of(std::uint64_t identity) {
    const auto known = std::find_if(rows_.begin(), rows_.end(), [&](const Row& row) { return row.identity == identity; });
    if (known != rows_.end()) return *known;
    Row& oldest = *std::min_element(rows_.begin(), rows_.end(), [](const Row& a, const Row& b) { return a.serial < b.serial; });
    move_to_rest(oldest);
    return oldest;
  }
  void move_to_rest(Row& row) {
    rest_.bytes.pooled_bytes += row.bytes.pooled_bytes;
    rest_.bytes.plain_bytes += row.bytes.plain_bytes;
    rest_.serial = std::max(rest_.serial, row.serial);
    row = {};
  }

  std::array<Row, kRows> rows_{};
  Row rest_;
  std::uint64_t newest_ = 0;
};

}  // namespace cupool::device
