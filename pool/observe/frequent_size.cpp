// See frequent_size.hpp.
#include "pool/observe/frequent_size.hpp"

#include <algorithm>
#include <array>

namespace cupool::observe {

namespace {

constexpr std::size_t kCells = 4;  ///< any size with more than a fifth of the bytes is in one of them
constexpr std::uint64_t kShare = 4;

struct Cell {
  std::uint64_t requested_bytes = 0;
  std::uint64_t weight_bytes = 0;
};
using Cells = std::array<Cell, kCells>;

void show(Cells& cells, const BlockRow& row) {
  std::uint64_t weight_bytes = row.bytes;
  Cell* lightest = cells.begin();
  for (Cell& cell : cells) {
    if (cell.weight_bytes != 0 && cell.requested_bytes == row.requested_bytes) {
      cell.weight_bytes += weight_bytes;
      return;
    }
    if (cell.weight_bytes < lightest->weight_bytes) lightest = &cell;
  }
  const std::uint64_t taken_bytes = std::min(lightest->weight_bytes, weight_bytes);
  for (Cell& cell : cells) cell.weight_bytes -= taken_bytes;
  weight_bytes -= taken_bytes;
  if (weight_bytes != 0) *lightest = {row.requested_bytes, weight_bytes};
}

}  // namespace

HeaviestSize heaviest_size(const std::vector<BlockRow>& rows) {
  Cells cells{};
  for (const BlockRow& row : rows)
    if (row.state == BlockState::live) show(cells, row);
  std::array<HeaviestSize, kCells> found{};
  std::uint64_t live_bytes = 0;
  for (const BlockRow& row : rows) {
    if (row.state != BlockState::live) continue;
    live_bytes += row.bytes;
    for (std::size_t i = 0; i < kCells; ++i) {
      if (cells[i].weight_bytes == 0 || cells[i].requested_bytes != row.requested_bytes) continue;
      found[i] = {row.requested_bytes, found[i].blocks + 1, found[i].bytes + row.bytes};
    }
  }
  const HeaviestSize most =
      *std::max_element(found.begin(), found.end(), [](const HeaviestSize& a, const HeaviestSize& b) { return a.bytes < b.bytes; });
  return most.blocks != 0 && most.bytes >= live_bytes / kShare ? most : HeaviestSize{};
}

}  // namespace cupool::observe
