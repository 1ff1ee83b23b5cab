// RegionTable: the regions of one heap, by address and by index.
//
// A sorted array in leaves of at most 256 rows: a lookup among ten regions is one binary search, and among 100,000 (every block its own
// cuMemAlloc) an insertion still takes a few microseconds. Owns the records. Thread rule: the device pool's lock, as for the heap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "pool/heap/extent.hpp"
#include "pool/heap/page_index.hpp"

namespace cupool::heap {

/// A region with what only the heap needs. Every Region of a heap is one of these.
struct RegionRecord : Region {
  RegionRecord(std::uint64_t region_address, std::uint64_t region_bytes, void* region_owner) : pages(region_address, region_bytes) {
    address = region_address;
    bytes = region_bytes;
    owner = region_owner;
  }
  PageIndex pages;
};

class RegionTable {
 public:
  /// Enters a record and gives it an index. Throws std::bad_alloc with nothing changed.
  RegionRecord* insert(std::unique_ptr<RegionRecord> record);
  /// Destroys the record.
  void erase(RegionRecord* record) noexcept;
  /// The region that contains `address`, or nullptr.
  RegionRecord* find(std::uint64_t address) const noexcept;

  /// The lowest, or nullptr.
  RegionRecord* first() const noexcept { return leaves_.empty() ? nullptr : leaves_.front()->front().record; }
  std::size_t size() const { return by_index_.size() - vacant_.size(); }
  /// Host memory of the table and of every record with its page index. O(regions).
  std::size_t metadata_bytes() const;
  /// The first broken invariant as a sentence, or an empty string. O(regions).
  std::string check() const;

  template <class F> void for_each(F&& visit) const {
    for (const auto& leaf : leaves_) {
      for (const Row& row : *leaf) visit(*row.record);
    }
  }

 private:
  static constexpr std::size_t kLeaf_count = 256;
  struct Row {
    std::uint64_t address;
    RegionRecord* record;
  };
  using Leaf = std::vector<Row>;  ///< never empty; capacity kLeaf_count but for the first few rows

  std::size_t leaf_of(std::uint64_t address) const noexcept;
  std::size_t make_room(std::uint64_t address);

  std::vector<std::unique_ptr<Leaf>> leaves_;  ///< sorted by the first row's address
  std::vector<std::unique_ptr<RegionRecord>> by_index_;
  std::vector<std::uint32_t> vacant_;           ///< indices to reuse; capacity for all of them
  mutable RegionRecord* last_found_ = nullptr;  ///< looked at first by find()
};

}  // namespace cupool::heap
