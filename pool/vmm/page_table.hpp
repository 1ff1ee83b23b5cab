// PageTable: which physical handle lies behind each page of one reservation. 16 bytes for each page (of the device's granularity).
//
// A handle is mapped whole, so it is described at its first page; its other pages say how far back that is. A pinned handle is one whose
// place something outside may know: it is moved last (pool/device/page_heap.hpp). Numbers only, no driver. Thread rule: the device pool's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <span>
#include <string>

#include "pool/core/mapped.hpp"

namespace cupool::vmm {

/// A physical handle and the addresses where it is mapped.
struct MappedHandle {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  CUmemGenericAllocationHandle handle = 0;
  bool is_pinned = false;
  std::uint64_t end() const { return address + bytes; }
};

class PageTable {
 public:
  /// For the reservation [address, address + bytes), of which nothing is mapped yet. Throws std::bad_alloc.
  PageTable(std::uint64_t address, std::uint64_t bytes, std::uint64_t page_bytes);

  std::uint64_t address() const { return address_; }
  std::uint64_t bytes() const { return pages_.size() * page_bytes_; }

  /// Preconditions: inside the reservation, in whole pages, and nothing is mapped there (enter), or such handles are (remove).
  void enter(const MappedHandle& handle);
  void remove(const MappedHandle& handle);
  /// Of the handle that lies at `address`.
  void pin(std::uint64_t address);
  void unpin(std::uint64_t address);
  /// The handle that lies at `address`; bytes 0: none. Precondition: `address` is inside the reservation.
  MappedHandle at(std::uint64_t address) const;
  /// Calls visit(MappedHandle) for each handle that lies wholly inside [address, address + bytes), in address order.
  /// Precondition: all of the range is mapped.
  template <class F> void for_each_inside(std::uint64_t address, std::uint64_t bytes, F&& visit) const;
  /// The same until `visit` answers true; then returns true.
  template <class F> bool any_inside(std::uint64_t address, std::uint64_t bytes, F&& visit) const;
  /// Calls visit(MappedHandle) for each handle of the table, in address order.
  template <class F> void for_each(F&& visit) const;
  /// Bytes of the handles that for_each_inside would visit. O(1).
  std::uint64_t bytes_inside(std::uint64_t address, std::uint64_t bytes) const;
  /// The first broken invariant as a sentence, or an empty string. O(pages).
  std::string check() const;

 private:
  static constexpr std::uint32_t kPinned = 1U << 31;
  struct Page {
    CUmemGenericAllocationHandle handle = 0;
    std::uint32_t pages = 0;  ///< at the handle's first page: how many it has, with kPinned; 0: another page of it, or nothing is mapped
    std::uint32_t back = 0;   ///< how many pages before this one the handle begins
  };
  static_assert(sizeof(Page) == 16);

  std::size_t page_of(std::uint64_t address) const { return (address - address_) / page_bytes_; }
  std::uint64_t first_boundary(std::uint64_t address) const;
  std::uint64_t last_boundary(std::uint64_t address) const;

  std::uint64_t address_;
  std::uint64_t page_bytes_;
  ZeroedTable memory_;
  std::span<Page> pages_;        ///< in memory_
  std::size_t entered_end_ = 0;  ///< from this page on no handle was ever entered: most of a reservation is never read
};

template <class F> bool PageTable::any_inside(std::uint64_t address, std::uint64_t bytes, F&& visit) const {
  const std::size_t end = page_of(address + bytes);
  for (std::size_t page = page_of(first_boundary(address)); page < end;) {
    const std::size_t pages = pages_[page].pages & ~kPinned;
    if (pages == 0 || page + pages > end) return false;
    if (visit(MappedHandle{address_ + page * page_bytes_, pages * page_bytes_, pages_[page].handle, (pages_[page].pages & kPinned) != 0}))
      return true;
    page += pages;
  }
  return false;
}

template <class F> void PageTable::for_each_inside(std::uint64_t address, std::uint64_t bytes, F&& visit) const {
  any_inside(address, bytes, [&](const MappedHandle& handle) {
    visit(handle);
    return false;
  });
}

template <class F> void PageTable::for_each(F&& visit) const {
  for (std::size_t page = 0; page < entered_end_;) {
    const std::size_t pages = pages_[page].pages & ~kPinned;
    if (pages != 0) visit(at(address_ + page * page_bytes_));
    page += pages != 0 ? pages : 1;
  }
}

}  // namespace cupool::vmm
