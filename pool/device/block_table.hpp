// BlockTable: from the address of a small block to its extent, without a lock.
//
// Three levels: 16 GiB, 64 KiB, 512 bytes. An entry stands from the moment when the block is first kept for its thread until it goes back to
// the heap, through many allocations and frees, so entries hardly ever change. A lookup while an entry changes gives the
// one or the other; pages of the table are used again but never freed, so it reads nothing that is gone. Costs 1 KiB for each
// 64 KiB in which small blocks lie.
// Thread rule: find() from any thread at any time; insert() and remove() under the device's lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pool/heap/extent.hpp"

namespace cupool::device {

class BlockTable {
 public:
  /// Throws std::bad_alloc. Memory comes zeroed from the system and costs nothing until written.
  BlockTable();
  ~BlockTable();
  BlockTable(const BlockTable&) = delete;
  BlockTable& operator=(const BlockTable&) = delete;

  /// False, with nothing changed, when host memory is out or the address is beyond what the table covers.
  [[nodiscard]] bool insert(heap::Extent* extent) noexcept;
  /// Precondition: the block at `address` was entered.
  void remove(std::uint64_t address) noexcept;

  /// The block that begins at `address` and is entered, or nullptr.
  heap::Extent* find(std::uint64_t address) const noexcept {
    if (address >= kEnd || (address & ((std::uint64_t{1} << kGranule_log2) - 1)) != 0) return nullptr;
    const Branch* branch = top_[address >> kBranch_log2].load(std::memory_order_acquire);
    if (branch == nullptr) return nullptr;
    const Page* page = (*branch)[(address >> kPage_log2) & (kPagesPerBranch - 1)].load(std::memory_order_acquire);
    return page != nullptr ? page->at[(address >> kGranule_log2) & (kGranulesPerPage - 1)].load(std::memory_order_acquire) : nullptr;
  }
  std::size_t size() const { return size_; }

 private:
  static constexpr unsigned kGranule_log2 = 9;
  static constexpr unsigned kPage_log2 = 16;
  static constexpr unsigned kBranch_log2 = 34;
  static constexpr std::uint64_t kEnd = std::uint64_t{1} << 52;
  static constexpr std::size_t kGranulesPerPage = std::size_t{1} << (kPage_log2 - kGranule_log2);
  static constexpr std::size_t kPagesPerBranch = std::size_t{1} << (kBranch_log2 - kPage_log2);
  static constexpr std::size_t kTopEntries = std::size_t{1} << (52 - kBranch_log2);

  struct Page {
    std::array<std::atomic<heap::Extent*>, kGranulesPerPage> at{};
    std::uint32_t count = 0;
    Page* next_spare = nullptr;
  };
  using Branch = std::array<std::atomic<Page*>, kPagesPerBranch>;

  Branch* branch_of(std::uint64_t address) noexcept;
  Page* take_page() noexcept;

  std::atomic<Branch*>* top_ = nullptr;  ///< mapped, as the branches are
  std::vector<Branch*> branches_;
  std::vector<std::unique_ptr<Page>> pages_;
  Page* spare_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace cupool::device
