// SizeBins: bitmap arithmetic and bin lists. See size_bins.hpp.
#include "pool/heap/size_bins.hpp"

#include <utility>

#include "pool/heap/bits.hpp"

namespace cupool::heap {

namespace {

/// Bits strictly above `bit`; none for 63.
std::uint64_t above(unsigned bit) { return ~std::uint64_t{1} << bit; }

bool is_better(const Extent* candidate, const Extent* best) {
  if (best == nullptr || candidate->bytes < best->bytes) return true;
  return candidate->bytes == best->bytes && candidate->address < best->address;
}

}  // namespace

void SizeBins::resize(Extent* extent, std::uint64_t bytes) noexcept {
  const Slot slot = slot_of(bytes);
  if (slot_of(extent->bytes) != slot) {
    remove(extent);
    extent->bytes = bytes;
    insert(extent);
    return;
  }
  note_going(extent->bytes);
  note_coming(bin_of(slot), bytes);
  extent->bytes = bytes;
}

Extent* SizeBins::next_bin(Slot slot) const noexcept {
  if (const std::uint64_t columns = columns_[slot.row] & above(slot.column); columns != 0) {
    return heads_[slot.row][lowest_bit(columns)];
  }
  const std::uint64_t rows = rows_ & above(slot.row);
  if (rows == 0) return nullptr;
  const unsigned row = lowest_bit(rows);
  return heads_[row][lowest_bit(columns_[row])];
}

Extent* SizeBins::pick(std::uint64_t bytes, unsigned candidates) const noexcept {
  if (rows_ == 0 || bytes > kLargest_bytes) return nullptr;
  const Slot slot = slot_of(bytes);
  Extent* best = nullptr;
  Extent* extent = heads_[slot.row][slot.column];
  for (unsigned i = 0; extent != nullptr && i < candidates; ++i, extent = extent->bin_next) {
    if (extent->bytes >= bytes && is_better(extent, best)) best = extent;
  }
  if (best != nullptr) return best;
  Extent* larger = next_bin(slot);
  if (larger == nullptr) {  // the rest of the exact bin is the last chance, and a look at all of it costs less than growing the pool
    for (; extent != nullptr; extent = extent->bin_next) {
      if (extent->bytes >= bytes && is_better(extent, best)) best = extent;
    }
    return best;
  }
  for (unsigned i = 0; larger != nullptr && i < candidates; ++i, larger = larger->bin_next) {
    if (is_better(larger, best)) best = larger;
  }
  return best;
}

Extent* SizeBins::one_of_largest() const noexcept {
  if (rows_ == 0) return nullptr;
  const unsigned row = highest_bit(rows_);
  return heads_[row][highest_bit(columns_[row])];
}

std::uint64_t SizeBins::largest_bytes() const noexcept {
  if (rows_ == 0) return 0;
  const unsigned row = highest_bit(rows_);
  const Slot slot{row, highest_bit(columns_[row])};
  if (known_[0].bin != bin_of(slot)) std::swap(known_[0], known_[1]);
  Known& known = known_[0];
  if (known.bin == bin_of(slot) && known.count != 0) return known.bytes;
  known = {bin_of(slot), 0, 0};
  for (const Extent* extent = head(slot); extent != nullptr; extent = extent->bin_next) {
    if (extent->bytes > known.bytes) known = {known.bin, extent->bytes, 0};
    if (extent->bytes == known.bytes) ++known.count;
  }
  return known.bytes;
}

std::string SizeBins::check() const {
  for (unsigned row = 0; row < kRows; ++row) {
    if ((columns_[row] != 0) != ((rows_ >> row & 1) != 0)) return "a row's bit says otherwise than its columns";
    for (unsigned column = 0; column < kDivisions; ++column) {
      const bool marked = (columns_[row] >> column & 1) != 0;
      if (marked != (heads_[row][column] != nullptr)) return "a bin's bit says otherwise than its list";
    }
  }
  return {};
}

}  // namespace cupool::heap
