// OwnerMap: which device of ours an address may belong to, without a lock.
//
// A two-level table over 2 MiB pages: a word per page holds the device and how many of its regions touch the page,
// so that regions need not be aligned and small native blocks may share a page with memory that is not ours. Of a long region, whole
// leaves of pages have a word each: what a device reserves has a hundred thousand pages. A hit is a hint (the device's heap decides under
// its lock); a miss is certain, and that is what every foreign pointer gets.
// Thread rule: lookups from any thread at any time; add and remove too (compare and swap). Tables are never freed early.
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
  /// Takes back one add of exactly this range.
  void remove(std::uint64_t address, std::uint64_t bytes);

  /// kNobody, kSeveral or the device.
  int find(std::uint64_t address) const {
    const std::uint64_t page = address >> kPageShift;
    if (page >= kPageCount) return kNobody;
    const Entry& entry = top_[page >> kLeafShift];
    const Leaf* leaf = entry.leaf.load(std::memory_order_acquire);
    std::uint32_t word = leaf != nullptr ? (*leaf)[page & (kLeafPages - 1)].load(std::memory_order_acquire) : 0;
    if (word == 0) word = entry.whole.load(std::memory_order_acquire);  // never both: who has all of a leaf shares no page of it
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
  static constexpr std::size_t kPartEntries = 256;  ///< of the top table, one page of the host's
  static constexpr std::size_t kTopParts = kTopEntries / kPartEntries;
  using Leaf = std::array<std::atomic<std::uint32_t>, kLeafPages>;
  struct Entry {
    std::atomic<Leaf*> leaf;
    std::atomic<std::uint32_t> whole;  ///< of regions that have every page of it
  };

  static bool is_whole(std::uint64_t page, std::uint64_t last) { return (page & (kLeafPages - 1)) == 0 && last - page >= kLeafPages - 1; }
  Leaf* leaf_of(std::uint64_t page);
  template <class F> void for_each_word(std::uint64_t first, std::uint64_t last, F&& visit);

  Entry* top_ = nullptr;                                              ///< mapped, zero until touched
  std::array<std::atomic<std::uint64_t>, kTopParts / 64> touched_{};  ///< a bit for each part of it that has had a leaf: what the end looks through
};

}  // namespace cupool::device
