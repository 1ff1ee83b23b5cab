// OwnerMap: which of our devices an address may belong to, found without a lock.
//
// A two-level table over pages of 2 MiB. The word of a page holds the device and how many of its regions touch the page, so regions need not be
// aligned, and small native blocks may share a page with memory that is not ours. Where a long region covers whole leaves of the table, each leaf has
// one word for all its pages: what a device reserves has a hundred thousand pages. A hit is a hint (the device's heap decides under its lock); a miss
// is certain, and it is what every foreign pointer gets.
// Thread rule: look-ups from any thread at any time; add and remove too (compare and swap). Tables are never freed early.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace cupool::device {

class OwnerMap {
 public:
  static constexpr int kNobody = -1;
  static constexpr int kSeveral = 254;  ///< more than one device has regions in this page: ask each

  OwnerMap();
  ~OwnerMap();
  OwnerMap(const OwnerMap&) = delete;
  OwnerMap& operator=(const OwnerMap&) = delete;

  /// Marks [address, address + bytes) as `device`'s. False, with nothing changed, when the address is beyond what the
  /// map covers or host memory is out.
  [[nodiscard]] bool add(std::uint64_t address, std::uint64_t bytes, int device);
  /// Undoes one add() of exactly this range.
  void remove(std::uint64_t address, std::uint64_t bytes);

  /// Returns kNobody, kSeveral or the ordinal of the device.
  int find(std::uint64_t address) const {
    const std::uint64_t page = address >> kPageShift;
    if (page >= kPageCount) return kNobody;
    const Entry& entry = top_[page >> kLeafShift];
    const Leaf* leaf = entry.leaf.load(std::memory_order_acquire);
    std::uint32_t word = leaf != nullptr ? (*leaf)[page & (kLeafPages - 1)].load(std::memory_order_acquire) : 0;
    if (word == 0) word = entry.whole.load(std::memory_order_acquire);  // never both: a region that covers a leaf shares none of its pages
    return static_cast<int>(word >> kCountBits) - 1;
  }

 private:
  static constexpr unsigned kPageShift = 21;
  static constexpr unsigned kAddressBits = 52;
  static constexpr unsigned kLeafShift = 12;
  static constexpr unsigned kCountBits = 24;
  static constexpr std::uint64_t kPageCount = std::uint64_t{1} << (kAddressBits - kPageShift);
  static constexpr std::size_t kLeafPages = std::size_t{1} << kLeafShift;
  static constexpr std::size_t kTopEntries = kPageCount >> kLeafShift;
  static constexpr std::size_t kPartEntries = 256;  ///< entries of the top table in one page of host memory
  static constexpr std::size_t kTopParts = kTopEntries / kPartEntries;
  using Leaf = std::array<std::atomic<std::uint32_t>, kLeafPages>;
  struct Entry {
    std::atomic<Leaf*> leaf;
    std::atomic<std::uint32_t> whole;  ///< word of the regions that cover all its pages
  };

  static bool is_whole(std::uint64_t page, std::uint64_t last) { return (page & (kLeafPages - 1)) == 0 && last - page >= kLeafPages - 1; }
  Leaf* leaf_of(std::uint64_t page);
  template <class F> void for_each_word(std::uint64_t first, std::uint64_t last, F&& visit);

  Entry* top_ = nullptr;  ///< mapped memory, zero until touched
  /// One bit for each part of the top table that has ever had a leaf: the destructor visits only these.
  std::array<std::atomic<std::uint64_t>, kTopParts / 64> touched_{};
};

}  // namespace cupool::device
