// BlockTable: see block_table.hpp. A branch is mapped as 2 MiB, of which one host page is touched for every 32 MiB in which small blocks lie.
#include "pool/device/block_table.hpp"

#include <new>

#include "pool/core/mapped.hpp"

namespace cupool::device {

BlockTable::BlockTable() : top_(static_cast<std::atomic<Branch*>*>(map_zeroed(kTopEntries * sizeof(std::atomic<Branch*>)))) {
  if (top_ == nullptr) throw std::bad_alloc();
}

BlockTable::~BlockTable() {
  for (Branch* branch : branches_) ::munmap(static_cast<void*>(branch), sizeof(Branch));
  ::munmap(static_cast<void*>(top_), kTopEntries * sizeof(std::atomic<Branch*>));
}

BlockTable::Branch* BlockTable::branch_of(std::uint64_t address) noexcept {
  std::atomic<Branch*>& entry = top_[address >> kBranch_log2];
  if (Branch* branch = entry.load(std::memory_order_relaxed)) return branch;
  try {
    branches_.reserve(branches_.size() + 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
  auto* branch = static_cast<Branch*>(map_zeroed(sizeof(Branch)));
  if (branch == nullptr) return nullptr;
  branches_.push_back(branch);
  entry.store(branch, std::memory_order_release);
  return branch;
}

BlockTable::Page* BlockTable::take_page() noexcept {
  if (Page* page = spare_) {
    spare_ = page->next_spare;
    return page;
  }
  try {
    pages_.push_back(std::make_unique<Page>());
    return pages_.back().get();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

/// The page of a slot, which is given one if it has none; nullptr when host memory is out.
BlockTable::Page* BlockTable::page_for(Slot& slot) noexcept {
  const std::uintptr_t before = slot.load(std::memory_order_relaxed);
  if (before != 0 && (before & kAlone) == 0) return reinterpret_cast<Page*>(before);
  Page* page = take_page();
  if (page == nullptr) return nullptr;
  if (before != 0) {
    page->at[before & (kGranulesPerPage - 1)].store(alone_in(before), std::memory_order_relaxed);
    page->count = 1;
  }
  slot.store(reinterpret_cast<std::uintptr_t>(page), std::memory_order_release);
  return page;
}

bool BlockTable::insert(heap::Extent* extent) noexcept {
  const std::uint64_t address = extent->address;
  if (address >= kEnd) return false;
  Branch* branch = branch_of(address);
  if (branch == nullptr) return false;
  Slot& slot = (*branch)[page_of(address)];
  if (extent->bytes > kLargestSmallBlock_bytes && slot.load(std::memory_order_relaxed) == 0) {
    slot.store(reinterpret_cast<std::uintptr_t>(extent) | granule_of(address) | kAlone, std::memory_order_release);
    ++size_;
    return true;
  }
  Page* page = page_for(slot);
  if (page == nullptr) return false;
  page->at[granule_of(address)].store(extent, std::memory_order_release);
  ++page->count;
  ++size_;
  return true;
}

void BlockTable::remove(const heap::Extent& extent) noexcept {
  const std::uint64_t address = extent.address;
  Slot& slot = (*top_[address >> kBranch_log2].load(std::memory_order_relaxed))[page_of(address)];
  const std::uintptr_t before = slot.load(std::memory_order_relaxed);
  --size_;
  if ((before & kAlone) != 0) {
    slot.store(0, std::memory_order_release);
    return;
  }
  auto* page = reinterpret_cast<Page*>(before);
  page->at[granule_of(address)].store(nullptr, std::memory_order_release);
  if (--page->count != 0) return;
  slot.store(0, std::memory_order_release);
  page->next_spare = spare_;
  spare_ = page;
}

}  // namespace cupool::device
