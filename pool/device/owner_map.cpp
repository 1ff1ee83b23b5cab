// The table's memory is mapped rather than allocated: the top level is 8 MiB of which a process touches a page or two.
#include "pool/device/owner_map.hpp"

#include <algorithm>
#include <new>

#include "pool/core/mapped.hpp"

namespace cupool::device {

OwnerMap::OwnerMap() : top_(static_cast<Entry*>(map_zeroed(kTopEntries * sizeof(Entry)))) {
  if (top_ == nullptr) throw std::bad_alloc();
}

OwnerMap::~OwnerMap() {
  for (std::size_t part = 0; part < kTopParts; ++part) {
    if ((touched_[part / 64].load(std::memory_order_relaxed) >> (part % 64) & 1) == 0) continue;
    for (std::size_t i = part * kPartEntries; i < (part + 1) * kPartEntries; ++i)
      if (Leaf* leaf = top_[i].leaf.load(std::memory_order_relaxed)) ::munmap(static_cast<void*>(leaf), sizeof(Leaf));
  }
  ::munmap(static_cast<void*>(top_), kTopEntries * sizeof(Entry));
}

OwnerMap::Leaf* OwnerMap::leaf_of(std::uint64_t page) {
  const std::size_t index = page >> kLeafShift;
  std::atomic<Leaf*>& entry = top_[index].leaf;
  Leaf* leaf = entry.load(std::memory_order_acquire);
  if (leaf != nullptr) return leaf;
  const std::size_t part = index / kPartEntries;
  touched_[part / 64].fetch_or(std::uint64_t{1} << (part % 64), std::memory_order_relaxed);
  auto* fresh = static_cast<Leaf*>(map_zeroed(sizeof(Leaf)));
  if (fresh == nullptr) return nullptr;
  if (entry.compare_exchange_strong(leaf, fresh, std::memory_order_acq_rel)) return fresh;
  ::munmap(static_cast<void*>(fresh), sizeof(Leaf));  // another thread was first
  return leaf;
}

/// Calls `visit(word)` for every page from `first` to `last`, once for whole leaves. Precondition: the other leaves exist.
template <class F> void OwnerMap::for_each_word(std::uint64_t first, std::uint64_t last, F&& visit) {
  for (std::uint64_t page = first; page <= last;) {
    Entry& entry = top_[page >> kLeafShift];
    if (is_whole(page, last)) {
      visit(entry.whole);
      page += kLeafPages;
      continue;
    }
    Leaf& leaf = *entry.leaf.load(std::memory_order_acquire);
    const std::uint64_t end = std::min(last, page | (kLeafPages - 1));
    for (; page <= end; ++page) visit(leaf[page & (kLeafPages - 1)]);
  }
}

bool OwnerMap::add(std::uint64_t address, std::uint64_t bytes, int device) {
  const std::uint64_t first = address >> kPageShift;
  const std::uint64_t last = (address + bytes - 1) >> kPageShift;
  if (bytes == 0 || last < first || last >= kPageCount) return false;
  for (std::uint64_t page = first; page <= last; page = ((page >> kLeafShift) + 1) << kLeafShift)
    if (!is_whole(page, last) && leaf_of(page) == nullptr) return false;
  const std::uint32_t mine = static_cast<std::uint32_t>(device + 1);
  for_each_word(first, last, [mine](std::atomic<std::uint32_t>& slot) {
    std::uint32_t word = slot.load(std::memory_order_relaxed);
    std::uint32_t next = 0;
    do {
      const std::uint32_t owner = word >> kCountBits;
      const std::uint32_t merged = owner == 0 || owner == mine ? mine : static_cast<std::uint32_t>(kSeveral + 1);
      next = (merged << kCountBits) | ((word & ((1u << kCountBits) - 1)) + 1);
    } while (!slot.compare_exchange_weak(word, next, std::memory_order_acq_rel));
  });
  return true;
}

void OwnerMap::remove(std::uint64_t address, std::uint64_t bytes) {
  for_each_word(address >> kPageShift, (address + bytes - 1) >> kPageShift, [](std::atomic<std::uint32_t>& slot) {
    std::uint32_t word = slot.load(std::memory_order_relaxed);
    std::uint32_t next = 0;
    do {
      next = (word & ((1u << kCountBits) - 1)) == 1 ? 0 : word - 1;
    } while (!slot.compare_exchange_weak(word, next, std::memory_order_acq_rel));
  });
}

}  // namespace cupool::device
