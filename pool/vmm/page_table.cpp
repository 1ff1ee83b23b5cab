// PageTable: see page_table.hpp.
#include "pool/vmm/page_table.hpp"

#include <algorithm>

namespace cupool::vmm {

PageTable::PageTable(std::uint64_t address, std::uint64_t bytes, std::uint64_t page_bytes)
    : address_(address),
      page_bytes_(page_bytes),
      memory_(bytes / page_bytes * sizeof(Page)),
      pages_(static_cast<Page*>(memory_.get()), bytes / page_bytes) {}

void PageTable::enter(const MappedHandle& handle) {
  const std::size_t first = page_of(handle.address);
  const auto count = static_cast<std::uint32_t>(handle.bytes / page_bytes_);
  for (std::uint32_t i = 0; i < count; ++i) pages_[first + i] = {handle.handle, 0, i};
  entered_end_ = std::max(entered_end_, first + count);
  pages_[first].pages = count | (handle.is_pinned ? kPinned : 0);
}

void PageTable::remove(const MappedHandle& handle) {
  const std::size_t first = page_of(handle.address);
  for (std::size_t i = 0; i < handle.bytes / page_bytes_; ++i) pages_[first + i] = {};
}

void PageTable::pin(std::uint64_t address) {
  const std::size_t page = page_of(address);
  pages_[page - pages_[page].back].pages |= kPinned;
}

void PageTable::unpin(std::uint64_t address) {
  const std::size_t page = page_of(address);
  pages_[page - pages_[page].back].pages &= ~kPinned;
}

MappedHandle PageTable::at(std::uint64_t address) const {
  const std::size_t first = page_of(address) - pages_[page_of(address)].back;
  const Page& page = pages_[first];
  return {address_ + first * page_bytes_, (page.pages & ~kPinned) * page_bytes_, page.handle, (page.pages & kPinned) != 0};
}

/// The beginning of the first handle that begins at `address` or behind it. Precondition: what lies at `address` and behind it is mapped.
std::uint64_t PageTable::first_boundary(std::uint64_t address) const {
  const MappedHandle handle = at(address);
  return handle.address == address ? address : handle.end();
}

/// The end of the last handle that ends at `address` or before it. Precondition: what lies before `address` is mapped.
std::uint64_t PageTable::last_boundary(std::uint64_t address) const {
  const MappedHandle handle = at(address - 1);
  return handle.end() == address ? address : handle.address;
}

std::uint64_t PageTable::bytes_inside(std::uint64_t address, std::uint64_t bytes) const {
  const std::uint64_t first = first_boundary(address);
  const std::uint64_t last = last_boundary(address + bytes);
  return last > first ? last - first : 0;
}

std::string PageTable::check() const {
  for (std::size_t page = 0; page < pages_.size();) {
    const std::size_t count = pages_[page].pages & ~kPinned;
    if (pages_[page].back != 0) return "a page leads back to a handle that does not reach it";
    if (count == 0 && pages_[page].handle != 0) return "a page has a handle of no length";
    if (count != 0 && page + count > entered_end_) return "a handle lies where none was ever entered";
    for (std::size_t i = 1; i < count; ++i) {
      if (page + i >= pages_.size()) return "a handle reaches beyond its reservation";
      if (pages_[page + i].back != i || pages_[page + i].pages != 0 || pages_[page + i].handle != pages_[page].handle)
        return "a handle's page does not lead back to its first one";
    }
    page += count != 0 ? count : 1;
  }
  return {};
}

}  // namespace cupool::vmm
