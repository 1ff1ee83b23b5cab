// Generator: the next operation, by a seed and by what there is: mostly things that make sense, of every kind. Pure but for its own state.
#pragma once

#include <cstdint>
#include <vector>

#include "program.hpp"

namespace explorer {

enum class Route { plain, ordered, mixed, steady };

class Generator {
 public:
  Generator(std::uint64_t seed, Route route, std::size_t devices, std::size_t most_blocks, bool page_sizes, std::uint32_t times);
  Op next(const Program& program);
  /// Sometimes: what another thread does in the middle of `parent`.
  bool next_inside(const Program& program, const Op& parent, Op* inside);

 private:
  std::uint32_t below(std::uint32_t limit);
  bool chance(std::uint32_t in_thousand) { return below(1000) < in_thousand; }
  std::uint32_t bytes();
  std::uint32_t duration_ns();
  std::uint32_t stream(const Program& program, bool may_capture);
  std::uint32_t block(const Program& program, bool live);
  std::uint32_t block_to_free(const Program& program);
  std::uint8_t context(const Program& program);
  std::uint8_t context_of(const Program& program, std::uint32_t stream);
  Op next_op(const Program& program);
  Op first_write();
  Op steady(const Program& program);
  void fill(const Program& program, Op* op);

  std::uint64_t state_;
  Route route_;
  std::size_t devices_;
  std::size_t most_blocks_;
  bool page_sizes_;      ///< blocks of about a page
  std::uint32_t times_;  ///< as large
  std::uint8_t thread_ = 0;
  std::uint32_t touched_ = 0;  ///< the block that a kernel was launched for last
  std::uint32_t fresh_ = 0;    ///< the block that was asked for last, and where it will be used
  std::uint32_t fresh_stream_ = kStreamNames;
  std::uint8_t fresh_context_ = 0;
  std::uint32_t freed_bytes_ = 0;  ///< of the block that was freed last
  std::vector<std::pair<Kind, std::uint32_t>> weights_;
  std::uint32_t total_weight_ = 0;
  std::uint64_t count_ = 0;
};

}  // namespace explorer
