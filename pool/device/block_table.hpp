// BlockTable: from the address of a block that magazines know to its extent, without a lock.
//
// A table of three levels (16 GiB, 64 KiB, 512 bytes), which costs 1 KiB for each 64 KiB in which small blocks begin. A large block that is alone in
// its 64 KiB stands in the second level itself. An entry is made when a block is first kept for a thread, and removed when it goes back to the heap; in
// between come many allocations and frees, so entries hardly ever change. A lookup while an entry changes gives the old answer or the new one. Pages of
// the table are reused but never freed before the table is, so that a lookup reads no memory that is gone. Thread rule: find() from any thread at any
// time; insert() and remove() under the device's lock.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "pool/core/bytes.hpp"
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

  /// False, with nothing changed, when host memory is out, or the address is beyond what the table covers.
  [[nodiscard]] bool insert(heap::Extent* extent) noexcept;
  /// Precondition: the block is in the table.
  void remove(const heap::Extent& extent) noexcept;

  /// The block in the table that begins at `address`, or nullptr.
  heap::Extent* find(std::uint64_t address) const noexcept {
    if (address >= kEnd || (address & ((std::uint64_t{1} << kGranule_log2) - 1)) != 0) return nullptr;
    const Branch* branch = top_[address >> kBranch_log2].load(std::memory_order_acquire);
    if (branch == nullptr) return nullptr;
    const std::uintptr_t slot = (*branch)[page_of(address)].load(std::memory_order_acquire);
    if ((slot & kAlone) != 0) return (slot & (kGranulesPerPage - 1)) == granule_of(address) ? alone_in(slot) : nullptr;
    const auto* page = reinterpret_cast<const Page*>(slot);
    return page != nullptr ? page->at[granule_of(address)].load(std::memory_order_acquire) : nullptr;
  }
  std::size_t size() const { return size_; }

 private:
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
  /// Nothing (0); a page of the third level; or the only block that begins in these 64 KiB: kAlone, its extent, and its granule in the bits that are 0
  /// in the address of an extent.
  using Slot = std::atomic<std::uintptr_t>;
  static constexpr std::uintptr_t kAlone = std::uintptr_t{1} << 63;  ///< no address of a process has it
  static_assert(alignof(heap::Extent) >= kGranulesPerPage);
  using Branch = std::array<Slot, kPagesPerBranch>;
  static std::size_t page_of(std::uint64_t address) { return (address >> kPage_log2) & (kPagesPerBranch - 1); }
  static std::size_t granule_of(std::uint64_t address) { return (address >> kGranule_log2) & (kGranulesPerPage - 1); }
  static heap::Extent* alone_in(std::uintptr_t slot) { return reinterpret_cast<heap::Extent*>(slot & ~(kAlone | (kGranulesPerPage - 1))); }

  Page* page_for(Slot& slot) noexcept;
  Branch* branch_of(std::uint64_t address) noexcept;
  Page* take_page() noexcept;

  std::atomic<Branch*>* top_ = nullptr;  ///< mapped, as the branches are
  std::vector<Branch*> branches_;
  std::vector<std::unique_ptr<Page>> pages_;
  Page* spare_ = nullptr;  ///< pages without blocks, through next_spare
  std::size_t size_ = 0;
};

}  // namespace cupool::device
