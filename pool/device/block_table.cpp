// BlockTable: see block_table.hpp. A branch is mapped as 2 MiB, of which one host page is touched for every 32 MiB in which small blocks lie.
#include "pool/device/block_table.hpp"

#include <new>

#include "pool/core/mapped.hpp"

namespace cupool::device {

BlockTable::BlockTable() : top_(static_cast<std::atomic<Branch*>*>(map_zeroed(kTopEntries * sizeof(std::atomic<Branch*>)))) {
  if (top_ == nullptr) throw std::bad_alloc();
}

BlockTable::~BlockTable() {
  if (Line* lines = large_.load(std::memory_order_relaxed)) ::munmap(static_cast<void*>(lines), sizeof(Line) << kLines_log2);
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

bool BlockTable::insert_large(heap::Extent* extent) noexcept {
  Line* lines = large_.load(std::memory_order_relaxed);
  if (lines == nullptr) {
    lines = static_cast<Line*>(map_zeroed(sizeof(Line) << kLines_log2));
    if (lines == nullptr) return false;
    large_.store(lines, std::memory_order_release);
  }
  for (Large& entry : lines[line_of(extent->address)].at) {
    if (entry.address.load(std::memory_order_relaxed) != 0) continue;
    entry.address.store(extent->address, std::memory_order_release);
    entry.extent.store(extent, std::memory_order_release);
    ++size_;
    return true;
  }
  return false;
}

bool BlockTable::insert(heap::Extent* extent) noexcept {
  if (extent->bytes > kLargestSmallBlock_bytes) return insert_large(extent);
  if (extent->address >= kEnd) return false;
  Branch* branch = branch_of(extent->address);
  if (branch == nullptr) return false;
  std::atomic<Page*>& slot = (*branch)[(extent->address >> kPage_log2) & (kPagesPerBranch - 1)];
  Page* page = slot.load(std::memory_order_relaxed);
  if (page == nullptr) {
    page = take_page();
    if (page == nullptr) return false;
    slot.store(page, std::memory_order_release);
  }
  page->at[(extent->address >> kGranule_log2) & (kGranulesPerPage - 1)].store(extent, std::memory_order_release);
  ++page->count;
  ++size_;
  return true;
}

void BlockTable::remove(const heap::Extent& extent) noexcept {
  const std::uint64_t address = extent.address;
  if (extent.bytes > kLargestSmallBlock_bytes) {
    for (Large& entry : large_.load(std::memory_order_relaxed)[line_of(address)].at) {
      if (entry.address.load(std::memory_order_relaxed) != address) continue;
      entry.extent.store(nullptr, std::memory_order_release);
      entry.address.store(0, std::memory_order_release);
      --size_;
    }
    return;
  }
  std::atomic<Page*>& slot = (*top_[address >> kBranch_log2].load(std::memory_order_relaxed))[(address >> kPage_log2) & (kPagesPerBranch - 1)];
  Page* page = slot.load(std::memory_order_relaxed);
  page->at[(address >> kGranule_log2) & (kGranulesPerPage - 1)].store(nullptr, std::memory_order_release);
  --size_;
  if (--page->count != 0) return;
  slot.store(nullptr, std::memory_order_release);
  page->next_spare = spare_;
  spare_ = page;
}

}  // namespace cupool::device
