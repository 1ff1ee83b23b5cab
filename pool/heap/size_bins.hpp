// SizeBins: the free extents, by size, behind a two-level bitmap (TLSF: Masmano et al., 2004).
//
// Sizes are counted in 512-byte granules. Below 64 granules (32 KiB) a bin holds one size; above, each power of two is cut
// into 64 bins, so that the sizes in one bin differ by at most 1/64. insert, remove and pick are O(1): two find-first-set
// and a bounded scan, which pick exceeds only where it would miss otherwise. Thread rule: the device pool's lock.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "pool/core/bytes.hpp"
#include "pool/heap/bits.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::heap {

class SizeBins {
 public:
  static constexpr unsigned kDivisions_log2 = 6;
  static constexpr unsigned kDivisions = 1U << kDivisions_log2;
  static constexpr unsigned kGranule_log2 = kBlockAlignment_log2;
  /// The longest extent: more than the address space of any GPU.
  static constexpr std::uint64_t kLargest_bytes = std::uint64_t{1} << 48;
  /// One linear row, then one per power of two from 2^15 to 2^48 bytes.
  static constexpr unsigned kRows = 48 - kGranule_log2 - kDivisions_log2 + 2;

  struct Slot {
    unsigned row;
    unsigned column;
    bool operator==(const Slot&) const = default;
  };
  /// Precondition: 0 < bytes <= kLargest_bytes, a multiple of the granule.
  static Slot slot_of(std::uint64_t bytes);

  void insert(Extent* extent) noexcept;
  void remove(Extent* extent) noexcept;
  /// Gives a listed extent another size; mostly it stays in its bin, and no list changes.
  void resize(Extent* extent, std::uint64_t bytes) noexcept;

  /// The tightest of at most `candidates` extents of the first bin that has one of at least `bytes`; among equals the one with the lowest address.
  /// nullptr only when no extent is that large.
  Extent* pick(std::uint64_t bytes, unsigned candidates) const noexcept;

  /// Bytes of the largest extent, or 0. O(1), or O(extents in the bin) after the last one of the largest size has left it.
  std::uint64_t largest_bytes() const noexcept;

  /// An extent of the bin with the largest sizes, or nullptr.
  Extent* one_of_largest() const noexcept;
  /// Calls visit(Extent*), bin by bin from large to small, until it answers true; then returns true. `visit` must not change the bins unless it
  /// answers true.
  template <class F> bool any_largest_first(F&& visit) const;
  /// The same from small to large, beginning with the bin of `bytes` (in which a few may be a little smaller).
  template <class F> bool any_smallest_first(std::uint64_t bytes, F&& visit) const;

  /// The head of a bin, for check().
  const Extent* head(Slot slot) const { return heads_[slot.row][slot.column]; }
  /// Compares bitmaps and lists: the first contradiction as a sentence, or an empty string. O(bins).
  std::string check() const;

 private:
  /// What largest_bytes() has found in a bin, kept up to date since.
  struct Known {
    std::uint32_t bin = 0;
    std::uint64_t bytes = 0;
    std::uint64_t count = 0;  ///< how many extents have that size; 0: the largest is not known
  };
  static constexpr std::uint32_t bin_of(Slot slot) { return slot.row * kDivisions + slot.column; }
  void note_coming(std::uint32_t bin, std::uint64_t bytes) noexcept;
  void note_going(std::uint64_t bytes) noexcept;
  /// The first non-empty bin above `slot`, or nullptr.
  Extent* next_bin(Slot slot) const noexcept;

  std::uint64_t rows_ = 0;                ///< bit r: row r has a non-empty bin
  mutable std::array<Known, 2> known_{};  ///< the bin asked about last comes first. Two, because often a large hole comes and goes above one full bin
  std::array<std::uint64_t, kRows> columns_{};  ///< bit c: bin (r, c) is not empty
  std::array<std::array<Extent*, kDivisions>, kRows> heads_{};
};

inline SizeBins::Slot SizeBins::slot_of(std::uint64_t bytes) {
  const std::uint64_t granules = bytes >> kGranule_log2;
  // Branchless, because small and large sizes come mixed: the mask makes every size of the linear row have the same logarithm.
  const unsigned row = 63U - static_cast<unsigned>(std::countl_zero(granules | (kDivisions - 1))) - (kDivisions_log2 - 1);
  const unsigned shift = row - static_cast<unsigned>(row != 0);
  return {row, static_cast<unsigned>(granules >> shift) & (kDivisions - 1)};
}

template <class F> bool SizeBins::any_smallest_first(std::uint64_t bytes, F&& visit) const {
  const Slot least = slot_of(bytes);
  for (std::uint64_t rows = rows_ & (~std::uint64_t{0} << least.row); rows != 0; rows &= rows - 1) {
    const unsigned row = lowest_bit(rows);
    for (std::uint64_t columns = columns_[row] & (row == least.row ? ~std::uint64_t{0} << least.column : ~std::uint64_t{0}); columns != 0;
         columns &= columns - 1)
      for (Extent* extent = heads_[row][lowest_bit(columns)]; extent != nullptr; extent = extent->bin_next)
        if (visit(extent)) return true;
  }
  return false;
}

template <class F> bool SizeBins::any_largest_first(F&& visit) const {
  for (std::uint64_t rows = rows_; rows != 0;) {
    const unsigned row = highest_bit(rows);
    rows ^= std::uint64_t{1} << row;
    for (std::uint64_t columns = columns_[row]; columns != 0;) {
      const unsigned column = highest_bit(columns);
      columns ^= std::uint64_t{1} << column;
      for (Extent* extent = heads_[row][column]; extent != nullptr; extent = extent->bin_next)
        if (visit(extent)) return true;
    }
  }
  return false;
}

inline void SizeBins::note_coming(std::uint32_t bin, std::uint64_t bytes) noexcept {
  for (Known& known : known_) {
    if (known.bin != bin || known.count == 0 || bytes < known.bytes) continue;
    known.count = bytes == known.bytes ? known.count + 1 : 1;
    known.bytes = bytes;
  }
}

inline void SizeBins::note_going(std::uint64_t bytes) noexcept {
  for (Known& known : known_) known.count -= static_cast<std::uint64_t>(known.count != 0 && known.bytes == bytes);
}

inline void SizeBins::insert(Extent* extent) noexcept {
  const Slot slot = slot_of(extent->bytes);
  Extent*& head = heads_[slot.row][slot.column];
  extent->bin_previous = nullptr;
  extent->bin_next = head;
  if (head != nullptr) head->bin_previous = extent;
  head = extent;
  columns_[slot.row] |= std::uint64_t{1} << slot.column;
  rows_ |= std::uint64_t{1} << slot.row;
  note_coming(bin_of(slot), extent->bytes);
}

inline void SizeBins::remove(Extent* extent) noexcept {
  note_going(extent->bytes);
  if (extent->bin_next != nullptr) extent->bin_next->bin_previous = extent->bin_previous;
  if (extent->bin_previous != nullptr) {
    extent->bin_previous->bin_next = extent->bin_next;
    return;
  }
  const Slot slot = slot_of(extent->bytes);
  heads_[slot.row][slot.column] = extent->bin_next;
  columns_[slot.row] &= ~(static_cast<std::uint64_t>(extent->bin_next == nullptr) << slot.column);
  rows_ &= ~(static_cast<std::uint64_t>(columns_[slot.row] == 0) << slot.row);
}

}  // namespace cupool::heap
