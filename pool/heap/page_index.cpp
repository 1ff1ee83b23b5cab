// PageIndex: entries, dense tables and the bitmap of pages. See page_index.hpp.
#include "pool/heap/page_index.hpp"

#include <bit>
#include <cstring>
#include <new>

#include "pool/heap/bits.hpp"

namespace cupool::heap {

namespace {
std::size_t words_for(std::size_t bits) { return (bits + 63) / 64; }
std::uint64_t bit(std::size_t index) { return std::uint64_t{1} << (index & 63); }
}  // namespace

struct PageIndex::DensePage {
  std::array<std::uint64_t, kGranulesPerPage / 64> starts{};
  std::array<Extent*, kGranulesPerPage> extents{};
  DensePage* next = nullptr;
  DensePage* previous = nullptr;

  void enter(unsigned granule, Extent* extent) {
    starts[granule / 64] |= bit(granule);
    extents[granule] = extent;
  }
  void clear(unsigned granule) {
    starts[granule / 64] &= ~bit(granule);
    extents[granule] = nullptr;
  }
  Extent* first() const {
    const std::size_t word = starts[0] != 0 ? 0 : 1;
    return extents[word * 64 + lowest_bit(starts[word])];
  }
  /// The last extent that starts at or before `granule`, or nullptr.
  Extent* at_or_before(unsigned granule) const {
    std::size_t word = granule / 64;
    std::uint64_t candidates = starts[word] & (~std::uint64_t{0} >> (63 - (granule & 63)));
    if (candidates == 0 && word == 1) candidates = starts[word = 0];
    return candidates == 0 ? nullptr : extents[word * 64 + highest_bit(candidates)];
  }
};

std::size_t PageIndex::table_bytes(std::size_t page_count) {
  std::size_t words = page_count;
  for (std::size_t level = 0, level_words = page_count; level < kLevels; ++level) {
    level_words = words_for(level_words);
    words += level_words;
  }
  return words * sizeof(std::uint64_t) + page_count;
}

PageIndex::PageIndex(std::uint64_t address, std::uint64_t bytes)
    : address_(address), page_count_((bytes + (std::size_t{1} << kPage_log2) - 1) >> kPage_log2), block_(table_bytes(page_count_)) {
  entries_ = static_cast<std::uintptr_t*>(block_.get());
  auto* next = static_cast<std::uint64_t*>(block_.get()) + page_count_;
  for (std::size_t level = 0, words = page_count_; level < kLevels; ++level) {
    words = words_for(words);
    marks_[level] = next;
    next += words;
  }
  counts_ = reinterpret_cast<std::uint8_t*>(next);
}

PageIndex::~PageIndex() {
  while (DensePage* table = first_dense_) {
    first_dense_ = table->next;
    delete table;
  }
}

void PageIndex::give_back(std::uint64_t from, std::uint64_t to) noexcept {
  const std::size_t first = page_of(from) + 1;
  const std::size_t last = page_of(to - 1);  // its entry stays: something may start in the same page behind `to`
  if (first >= last) return;
  block_.give_back(&entries_[first], &entries_[last]);
  block_.give_back(&counts_[first], &counts_[last]);
}

PageIndex::DensePage* PageIndex::dense(std::size_t page) const noexcept {
  const std::uintptr_t entry = entries_[page];
  return (entry & kDenseTag) != 0 ? reinterpret_cast<DensePage*>(entry & ~kDenseTag) : nullptr;
}

void PageIndex::mark(std::size_t page) noexcept {
  for (std::uint64_t* level : marks_) {
    std::uint64_t& word = level[page / 64];
    const bool was_empty = word == 0;
    word |= bit(page);
    if (!was_empty) return;
    page /= 64;
  }
}

void PageIndex::unmark(std::size_t page) noexcept {
  for (std::uint64_t* level : marks_) {
    std::uint64_t& word = level[page / 64];
    word &= ~bit(page);
    if (word != 0) return;
    page /= 64;
  }
}

/// The last page before `page` in which an extent starts. Page 0 always has one.
std::size_t PageIndex::marked_before(std::size_t page) const noexcept {
  unsigned level = 0;
  for (; level < kLevels; ++level, page /= 64) {
    const std::uint64_t below = marks_[level][page / 64] & (bit(page) - 1);
    if (below != 0) {
      page = page / 64 * 64 + highest_bit(below);
      break;
    }
  }
  if (level == kLevels) {  // only regions over 1 TiB come here: `page` is now a word of the top level
    while (marks_[kLevels - 1][--page] == 0) {}
    page = page * 64 + highest_bit(marks_[kLevels - 1][page]);
    level = kLevels - 1;
  }
  while (level-- > 0) page = page * 64 + highest_bit(marks_[level][page]);
  return page;
}

void PageIndex::insert(Extent* extent) noexcept {
  const std::size_t page = page_of(extent->address);
  const unsigned count = ++counts_[page];
  if (DensePage* table = dense(page); table != nullptr) {
    table->enter(granule_of(extent->address), extent);
    return;
  }
  if (count == 1) mark(page);
  const bool is_first = count == 1 || extent->previous == nullptr || page_of(extent->previous->address) != page;
  if (is_first) entries_[page] = reinterpret_cast<std::uintptr_t>(extent);
  if (count > kDenseAbove_count) make_dense(page);
}

void PageIndex::remove(const Extent* extent) noexcept {
  const std::size_t page = page_of(extent->address);
  const unsigned count = --counts_[page];
  if (DensePage* table = dense(page); table != nullptr) {
    table->clear(granule_of(extent->address));
    if (count <= kSparseAt_count) make_sparse(page, table);
    return;
  }
  if (count == 0) {
    entries_[page] = 0;
    unmark(page);
  } else if (entries_[page] == reinterpret_cast<std::uintptr_t>(extent)) {
    entries_[page] = reinterpret_cast<std::uintptr_t>(extent->next);
  }
}

void PageIndex::replace(const Extent* old, Extent* fresh) noexcept {
  const std::size_t page = page_of(old->address);
  if (DensePage* table = dense(page); table != nullptr) {
    table->enter(granule_of(old->address), fresh);
  } else if (entries_[page] == reinterpret_cast<std::uintptr_t>(old)) {
    entries_[page] = reinterpret_cast<std::uintptr_t>(fresh);
  }
}

/// Where host memory is out the page stays sparse: lookups there walk further, and the next insert tries again.
void PageIndex::make_dense(std::size_t page) noexcept {
  auto* table = new (std::nothrow) DensePage;
  if (table == nullptr) return;
  auto* extent = reinterpret_cast<Extent*>(entries_[page]);
  for (; extent != nullptr && page_of(extent->address) == page; extent = extent->next) {
    table->enter(granule_of(extent->address), extent);
  }
  entries_[page] = reinterpret_cast<std::uintptr_t>(table) | kDenseTag;
  table->next = first_dense_;
  if (first_dense_ != nullptr) first_dense_->previous = table;
  first_dense_ = table;
  ++dense_count_;
}

void PageIndex::make_sparse(std::size_t page, DensePage* table) noexcept {
  static_assert(kSparseAt_count != 0, "an empty table has no first");
  entries_[page] = reinterpret_cast<std::uintptr_t>(table->first());
  (table->previous != nullptr ? table->previous->next : first_dense_) = table->next;
  if (table->next != nullptr) table->next->previous = table->previous;
  delete table;
  --dense_count_;
}

Extent* PageIndex::find(std::uint64_t address) const noexcept {
  const std::size_t page = page_of(address);
  if (const DensePage* table = dense(page); table != nullptr) {
    Extent* extent = table->extents[granule_of(address)];
    return extent != nullptr && extent->address == address ? extent : nullptr;
  }
  auto* extent = reinterpret_cast<Extent*>(entries_[page]);
  while (extent != nullptr && extent->address < address) extent = extent->next;
  return extent != nullptr && extent->address == address ? extent : nullptr;
}

/// The last extent that starts in `page` and not after `address`, or nullptr.
Extent* PageIndex::last_at_or_before(std::size_t page, std::uint64_t address) const noexcept {
  if (const DensePage* table = dense(page); table != nullptr) {
    return table->at_or_before(page_of(address) == page ? granule_of(address) : kGranulesPerPage - 1);
  }
  auto* extent = reinterpret_cast<Extent*>(entries_[page]);
  if (extent == nullptr || extent->address > address) return nullptr;
  while (extent->next != nullptr && extent->next->address <= address) extent = extent->next;
  return extent;
}

Extent* PageIndex::find_containing(std::uint64_t address) const noexcept {
  const std::size_t page = page_of(address);
  if (Extent* extent = last_at_or_before(page, address); extent != nullptr) return extent;
  return last_at_or_before(marked_before(page), address);
}

std::size_t PageIndex::metadata_bytes() const { return sizeof(PageIndex) + block_.bytes() + dense_count_ * sizeof(DensePage); }

std::string PageIndex::check() const {
  std::size_t dense_count = 0;
  const std::array<std::uintptr_t, 64> nothing{};
  for (std::size_t page = 0; page < page_count_; ++page) {
    // Nearly everywhere nothing starts in 64 pages in a row: they are checked together.
    if (page % 64 == 0 && page + 64 <= page_count_ && marks_[0][page / 64] == 0 && std::memcmp(counts_ + page, nothing.data(), 64) == 0 &&
        std::memcmp(entries_ + page, nothing.data(), sizeof nothing) == 0) {
      page += 63;
      continue;
    }
    const bool marked = (marks_[0][page / 64] & bit(page)) != 0;
    if (marked != (counts_[page] != 0)) return "a page's bit says otherwise than its count of starts";
    if (marked != (entries_[page] != 0)) return "a page's entry says otherwise than its count of starts";
    const DensePage* table = dense(page);
    if (table == nullptr) continue;
    ++dense_count;
    const int starts = std::popcount(table->starts[0]) + std::popcount(table->starts[1]);
    if (starts != counts_[page]) return "a dense page's bits say otherwise than its count of starts";
  }
  std::size_t listed_count = 0;
  for (const DensePage* table = first_dense_; table != nullptr; table = table->next) ++listed_count;
  if (dense_count != dense_count_ || listed_count != dense_count_) return "dense pages are not as many as counted";
  for (std::size_t level = 1, words = words_for(page_count_); level < kLevels; ++level, words = words_for(words)) {
    for (std::size_t word = 0; word < words; ++word) {
      const bool marked = (marks_[level][word / 64] & bit(word)) != 0;
      if (marked != (marks_[level - 1][word] != 0)) return "a bitmap's upper level says otherwise than the level below";
    }
  }
  return {};
}

}  // namespace cupool::heap
