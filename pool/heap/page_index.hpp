// PageIndex: from any address of one region to the extent that holds it.
//
// One entry per 64 KiB page: the first extent that starts in it. A page in which many extents start is dense: it gets a table with one entry per
// 512-byte granule, so that no lookup walks further than a few neighbours. A hierarchical bitmap of the pages in which something starts finds the
// extent that reaches into a page from before. Costs 9 bytes per page (0.014%), and 1 KiB per dense page; what is never written costs no memory.
// Nothing is ever rehashed or moved: the worst update fills one dense table. Thread rule: none of its own; the device pool's lock protects it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "pool/core/bytes.hpp"
#include "pool/core/mapped.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::heap {

class PageIndex {
 public:
  static constexpr unsigned kPage_log2 = 16;
  static constexpr unsigned kGranule_log2 = kBlockAlignment_log2;
  static constexpr unsigned kGranulesPerPage = 1U << (kPage_log2 - kGranule_log2);
  /// A page becomes dense when more extents than this start in it, and sparse again when only so many do.
  static constexpr unsigned kDenseAbove_count = 8;
  static constexpr unsigned kSparseAt_count = 3;

  /// For the region [address, address + bytes). Throws std::bad_alloc. Its memory comes zeroed from the system and costs nothing until written.
  PageIndex(std::uint64_t address, std::uint64_t bytes);
  ~PageIndex();
  PageIndex(const PageIndex&) = delete;
  PageIndex& operator=(const PageIndex&) = delete;

  /// Enters an extent whose `previous` and `next` are linked already.
  void insert(Extent* extent) noexcept;
  /// Removes an extent whose `next` is still linked.
  void remove(const Extent* extent) noexcept;

  /// Gives the host memory for [from, to) back to the system until something starts there. Precondition: nothing does, except at `from`.
  void give_back(std::uint64_t from, std::uint64_t to) noexcept;

  /// Puts `fresh` in the place of `old`, at old->address. The links of neither are used.
  void replace(const Extent* old, Extent* fresh) noexcept;

  /// The extent that begins at `address`, in whatever state, or nullptr. Precondition: inside the region.
  Extent* find(std::uint64_t address) const noexcept;
  /// The extent that contains `address`. Preconditions: inside the region, and the region's first extent is entered.
  Extent* find_containing(std::uint64_t address) const noexcept;

  std::size_t metadata_bytes() const;
  /// Compares entries, counts and bitmaps: the first contradiction as a sentence, or an empty string. O(pages).
  std::string check() const;

 private:
  struct DensePage;
  static constexpr std::uintptr_t kDenseTag = 1;
  static constexpr unsigned kLevels = 4;  ///< 64^4 pages of 64 KiB: 2^40 bytes; a longer region's top level has more words

  static std::size_t table_bytes(std::size_t page_count);
  std::size_t page_of(std::uint64_t address) const { return (address - address_) >> kPage_log2; }
  unsigned granule_of(std::uint64_t address) const { return static_cast<unsigned>((address - address_) >> kGranule_log2) & (kGranulesPerPage - 1); }
  DensePage* dense(std::size_t page) const noexcept;
  void mark(std::size_t page) noexcept;
  void unmark(std::size_t page) noexcept;
  std::size_t marked_before(std::size_t page) const noexcept;
  void make_dense(std::size_t page) noexcept;
  void make_sparse(std::size_t page, DensePage* table) noexcept;
  Extent* last_at_or_before(std::size_t page, std::uint64_t address) const noexcept;

  std::uint64_t address_;
  std::size_t page_count_;
  std::size_t dense_count_ = 0;
  DensePage* first_dense_ = nullptr;             ///< the list of all of them, for the destructor
  ZeroedTable block_;                            ///< entries, bitmaps, counts
  std::uintptr_t* entries_ = nullptr;            ///< per page: first Extent*, or DensePage* | kDenseTag, or 0
  std::array<std::uint64_t*, kLevels> marks_{};  ///< level 0: a bit per page; level n: a bit per word of level n-1
  std::uint8_t* counts_ = nullptr;               ///< per page: extents that start in it (at most 128)
};

}  // namespace cupool::heap
