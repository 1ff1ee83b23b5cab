// PageSpace: split, join, count. See page_space.hpp.
#include "tests/bench/page_model/page_space.hpp"

#include <algorithm>
#include <bit>

namespace page_model {

namespace {

unsigned class_of(const Handle& handle) { return static_cast<unsigned>(std::countr_zero(handle.pages)); }
bool joins(Kind kind) { return kind == Kind::free || kind == Kind::unmapped; }

}  // namespace

PageSpace::PageSpace(bool bins) : bins_(bins) {
  std::fill(std::begin(coldest_), std::end(coldest_), kNone);
  std::fill(std::begin(warmest_), std::end(warmest_), kNone);
  for (unsigned zone = 0; zone < kZones; ++zone) {
    const std::uint32_t id = new_extent();
    at(id).start = std::uint64_t{zone} << kZone_log2;
    at(id).size = std::uint64_t{1} << (kZone_log2 - 1);
    at(id).kind = Kind::unmapped;
    note_start(id);
    enlist(id);
  }
}

/// Each power of two is cut into 64 bins, as in SizeBins.
std::uint64_t PageSpace::bin_of(std::uint64_t size) {
  const unsigned log2 = 63U - static_cast<unsigned>(std::countl_zero(size | 63));
  return (std::uint64_t{log2} << 6) + (size >> (log2 - 5));
}

Page& PageSpace::page_at(std::uint64_t number) {
  const std::uint64_t zone = number >> (kZone_log2 - 12);
  const std::uint64_t index = number & ((std::uint64_t{1} << (kZone_log2 - 12)) - 1);
  std::vector<Page>& pages = pages_[zone];
  if (index >= pages.size()) pages.resize(std::max<std::size_t>(index + 1, pages.size() * 2));
  return pages[index];
}

const Page& PageSpace::page(std::uint64_t number) { return page_at(number); }

std::uint32_t PageSpace::new_extent() {
  if (spare_extents_.empty()) {
    extents_.emplace_back();
    return static_cast<std::uint32_t>(extents_.size() - 1);
  }
  const std::uint32_t id = spare_extents_.back();
  spare_extents_.pop_back();
  extents_[id] = Extent{};
  return id;
}

void PageSpace::note_start(std::uint32_t id) {
  Page& page = page_at(at(id).start / kPageGranules);
  if (page.last_start == kNone || at(page.last_start).start < at(id).start) page.last_start = id;
}

void PageSpace::forget_start(std::uint32_t id) {
  const std::uint64_t number = at(id).start / kPageGranules;
  Page& page = page_at(number);
  if (page.last_start != id) return;
  const std::uint32_t previous = at(id).previous;
  page.last_start = previous != kNone && at(previous).start / kPageGranules == number ? previous : kNone;
}

void PageSpace::enlist(std::uint32_t id) {
  Extent& extent = at(id);
  if (extent.kind == Kind::free) {
    const std::uint64_t bin = bins_ ? bin_of(extent.size) : extent.size;
    extent.key_order = !bins_ ? extent.start : bin == extent.key_size ? extent.key_order : --order_;
    extent.key_size = bin;
    holes_[zone_of(extent.start)].emplace(bin, extent.key_order, id);
  }
  if (extent.kind == Kind::unmapped) unmapped_[zone_of(extent.start)].insert(id);
}

void PageSpace::delist(std::uint32_t id) {
  const Extent& extent = at(id);
  if (extent.kind == Kind::free) holes_[zone_of(extent.start)].erase({extent.key_size, extent.key_order, id});
  if (extent.kind == Kind::unmapped) unmapped_[zone_of(extent.start)].erase(id);
}

/// The extent ends at `at_granule`; a new one of the same kind, in no list, has the rest.
std::uint32_t PageSpace::split(std::uint32_t id, std::uint64_t at_granule) {
  const std::uint32_t rest = new_extent();
  Extent& left = at(id);
  Extent& right = at(rest);
  right = left;
  right.start = at_granule;
  right.size = left.end() - at_granule;
  right.previous = id;
  left.size = at_granule - left.start;
  left.next = rest;
  if (right.next != kNone) at(right.next).previous = rest;
  note_start(rest);
  return rest;
}

void PageSpace::join_next(std::uint32_t id) {
  const std::uint32_t gone = at(id).next;
  forget_start(gone);
  at(id).size += at(gone).size;
  at(id).next = at(gone).next;
  if (at(gone).next != kNone) at(at(gone).next).previous = id;
  at(gone).kind = Kind::spare;
  spare_extents_.push_back(gone);
}

std::uint32_t PageSpace::convert(std::uint32_t id, std::uint64_t start, std::uint64_t size, Kind kind) {
  delist(id);
  if (start > at(id).start) {
    const std::uint32_t rest = split(id, start);
    enlist(id);
    id = rest;
  }
  if (size < at(id).size) enlist(split(id, start + size));
  at(id).kind = kind;
  if (!joins(kind)) return id;
  if (const std::uint32_t next = at(id).next; next != kNone && at(next).kind == kind) {
    delist(next);
    join_next(id);
  }
  if (const std::uint32_t previous = at(id).previous; previous != kNone && at(previous).kind == kind) {
    delist(previous);
    join_next(previous);
    id = previous;
  }
  enlist(id);
  return id;
}

std::uint32_t PageSpace::covering(std::uint64_t granule) {
  std::uint64_t page = granule / kPageGranules;
  std::uint32_t id = page_at(page).last_start;
  if (id != kNone) {
    while (at(id).start > granule) id = at(id).previous;
    return id;
  }
  while (id == kNone) id = page_at(--page).last_start;
  return id;
}

void PageSpace::append_empty(std::uint32_t id) {
  Handle& handle = handles_[id];
  const unsigned size_class = class_of(handle);
  handle.colder = warmest_[size_class];
  handle.warmer = kNone;
  (handle.colder != kNone ? handles_[handle.colder].warmer : coldest_[size_class]) = id;
  warmest_[size_class] = id;
  empty_pages_ += handle.pages;
}

void PageSpace::unlink_empty(std::uint32_t id) {
  Handle& handle = handles_[id];
  const unsigned size_class = class_of(handle);
  (handle.colder != kNone ? handles_[handle.colder].warmer : coldest_[size_class]) = handle.warmer;
  (handle.warmer != kNone ? handles_[handle.warmer].colder : warmest_[size_class]) = handle.colder;
  empty_pages_ -= handle.pages;
}

void PageSpace::count_page(Page& page, std::uint64_t granules, int sign) {
  const bool was_busy = page.used > 0;
  page.used = static_cast<std::uint16_t>(page.used + (sign > 0 ? granules : -granules));
  if (was_busy == (page.used > 0)) return;
  Handle& handle = handles_[page.handle];
  if (sign > 0) {
    ++busy_pages_;
    if (handle.busy++ == 0) unlink_empty(page.handle);
  } else {
    --busy_pages_;
    if (--handle.busy == 0) append_empty(page.handle);
  }
}

void PageSpace::count(std::uint64_t start, std::uint64_t size, int sign) {
  for (const std::uint64_t end = start + size; start < end;) {
    const std::uint64_t number = start / kPageGranules;
    const std::uint64_t stop = std::min(end, (number + 1) * kPageGranules);
    count_page(page_at(number), stop - start, sign);
    start = stop;
  }
}

std::uint32_t PageSpace::make_handle(std::uint32_t pages) {
  std::uint32_t id = static_cast<std::uint32_t>(handles_.size());
  if (spare_handles_.empty()) {
    handles_.emplace_back();
  } else {
    id = spare_handles_.back();
    spare_handles_.pop_back();
  }
  handles_[id] = Handle{};
  handles_[id].pages = pages;
  return id;
}

void PageSpace::drop_handle(std::uint32_t id) { spare_handles_.push_back(id); }

void PageSpace::map(std::uint32_t id, std::uint64_t first_page) {
  Handle& handle = handles_[id];
  handle.first_page = first_page;
  handle.mapped = true;
  const std::uint32_t below = covering(first_page * kPageGranules);
  convert(below, first_page * kPageGranules, handle.pages * kPageGranules, Kind::free);
  for (std::uint64_t i = 0; i < handle.pages; ++i) {
    Page& page = page_at(first_page + i);
    page.handle = id;
    fresh_pages_ += page.was_bound ? 0 : 1;
    page.was_bound = true;
  }
  append_empty(id);
}

std::uint32_t PageSpace::unmap(std::uint32_t id, Kind kind) {
  Handle& handle = handles_[id];
  unlink_empty(id);
  handle.mapped = false;
  for (std::uint64_t i = 0; i < handle.pages; ++i) page_at(handle.first_page + i).handle = kNone;
  return convert(covering(handle.first_page * kPageGranules), handle.first_page * kPageGranules, handle.pages * kPageGranules, kind);
}

std::uint64_t PageSpace::newly_busy(std::uint64_t start, std::uint64_t size, bool whole_handles) {
  const std::uint64_t first = start / kPageGranules;
  const std::uint64_t last = (start + size - 1) / kPageGranules;
  if (!whole_handles) {
    std::uint64_t pages = last - first + 1;
    if (page_at(first).used > 0) --pages;
    if (last != first && page_at(last).used > 0) --pages;
    return pages;
  }
  std::uint64_t pages = 0;
  for (std::uint64_t number = first; number <= last;) {
    const std::uint32_t id = page_at(number).handle;
    if (id == kNone) {
      ++pages;
      ++number;
      continue;
    }
    if (handles_[id].busy == 0) pages += handles_[id].pages;
    number = handles_[id].first_page + handles_[id].pages;
  }
  return pages;
}

}  // namespace page_model
