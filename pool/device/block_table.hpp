// BlockTable: from the address of a block that magazines know to its extent, without a lock.
//
// Small blocks: a table of three levels (16 GiB, 64 KiB, 512 bytes), which costs 1 KiB for each 64 KiB in which small blocks lie. Large blocks, of
// which few are kept: 256 KiB of lines of four entries, chosen by a hash of the address; a block whose line is full is not kept. An entry is made
// when a block is first kept for a thread, and removed when the block goes back to the heap; in between come many allocations and frees, so entries
// hardly ever change. A lookup while an entry changes gives the old answer or the new one. Pages of the table are reused but never freed before the
// table is, so that a lookup reads no memory that is gone. Thread rule: find() from any thread at any time; insert() and remove() under the device's
// lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/core/hash.hpp"
#include "pool/heap/extent.hpp"

namespace cupool::device {

inline constexpr std::uint64_t kLargestSmallBlock_bytes = 32 * kKiB;

class BlockTable {
 public:
  /// Throws std::bad_alloc. Memory comes zeroed from the system and costs nothing until written.
  BlockTable();
  ~BlockTable();
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  /// False, with nothing changed, when host memory is out, the address is beyond what the table covers, or the block's line is full.
  [[nodiscard]] bool insert(heap::Extent* extent) noexcept;
  /// Precondition: the block is in the table.
  void remove(const heap::Extent& extent) noexcept;

  /// The block in the table that begins at `address`, or nullptr.
  heap::Extent* find(std::uint64_t address) const noexcept {
    heap::Extent* small = find_small(address);
    return small != nullptr ? small : find_large(address);
  }
  std::size_t size() const { return size_; }

 private:
  heap::Extent* find_small(std::uint64_t address) const noexcept {
    if (address >= kEnd || (address & ((std::uint64_t{1} << kGranule_log2) - 1)) != 0) return nullptr;
    const Branch* branch = top_[address >> kBranch_log2].load(std::memory_order_acquire);
    if (branch == nullptr) return nullptr;
    const Page* page = (*branch)[(address >> kPage_log2) & (kPagesPerBranch - 1)].load(std::memory_order_acquire);
    return page != nullptr ? page->at[(address >> kGranule_log2) & (kGranulesPerPage - 1)].load(std::memory_order_acquire) : nullptr;
  }
  /// Reads the address, the block, and the address again: where the entry changed meanwhile, its address did.
  heap::Extent* find_large(std::uint64_t address) const noexcept {
    const Line* lines = large_.load(std::memory_order_acquire);
    if (lines == nullptr) return nullptr;
    for (const Large& entry : lines[line_of(address)].at) {
      if (entry.address.load(std::memory_order_acquire) != address) continue;
      heap::Extent* extent = entry.extent.load(std::memory_order_acquire);
      if (entry.address.load(std::memory_order_acquire) == address) return extent;
    }
    return nullptr;
  }

  static constexpr unsigned kGranule_log2 = kBlockAlignment_log2;
  static constexpr unsigned kPage_log2 = 16;
  static constexpr unsigned kBranch_log2 = 34;
  static constexpr unsigned kAddressBits = 52;  ///< as OwnerMap's
  static constexpr std::uint64_t kEnd = std::uint64_t{1} << kAddressBits;
  static constexpr std::size_t kGranulesPerPage = std::size_t{1} << (kPage_log2 - kGranule_log2);
  static constexpr std::size_t kPagesPerBranch = std::size_t{1} << (kBranch_log2 - kPage_log2);
  static constexpr std::size_t kTopEntries = std::size_t{1} << (kAddressBits - kBranch_log2);

  struct Page {
    std::array<std::atomic<heap::Extent*>, kGranulesPerPage> at{};
    std::uint32_t count = 0;  ///< of its blocks
    Page* next_spare = nullptr;
  };
  struct Large {
    std::atomic<std::uint64_t> address{0};
    std::atomic<heap::Extent*> extent{nullptr};
  };
  struct alignas(64) Line {
    std::array<Large, 4> at;
  };
  static constexpr unsigned kLines_log2 = 12;
  static std::size_t line_of(std::uint64_t address) { return multiplicative_hash(address >> kGranule_log2, kLines_log2); }
  using Branch = std::array<std::atomic<Page*>, kPagesPerBranch>;

  [[nodiscard]] bool insert_large(heap::Extent* extent) noexcept;
  Branch* branch_of(std::uint64_t address) noexcept;
  Page* take_page() noexcept;

  std::atomic<Branch*>* top_ = nullptr;  ///< mapped, as the branches are
  std::vector<Branch*> branches_;
  std::vector<std::unique_ptr<Page>> pages_;
  std::atomic<Line*> large_{nullptr};  ///< mapped at the first large block
  Page* spare_ = nullptr;              ///< pages without blocks, through next_spare
  std::size_t size_ = 0;
};

}  // namespace cupool::device
