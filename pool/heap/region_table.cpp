// RegionTable: the two-level sorted array. See region_table.hpp.
#include "pool/heap/region_table.hpp"

#include <algorithm>

namespace cupool::heap {

/// The leaf to which `address` belongs: the last one that begins at or before it, else the first.
std::size_t RegionTable::leaf_of(std::uint64_t address) const noexcept {
  const auto after = std::upper_bound(leaves_.begin(), leaves_.end(), address,
                                      [](std::uint64_t a, const std::unique_ptr<Leaf>& leaf) { return a < leaf->front().address; });
  return after == leaves_.begin() ? 0 : static_cast<std::size_t>(after - leaves_.begin()) - 1;
}

/// A leaf for `address` with room for one more row. Throws std::bad_alloc with nothing visible changed.
std::size_t RegionTable::make_room(std::uint64_t address) {
  if (leaves_.empty()) {
    auto leaf = std::make_unique<Leaf>();
    leaf->reserve(4);
    leaves_.push_back(std::move(leaf));
    return 0;
  }
  const std::size_t position = leaf_of(address);
  Leaf& leaf = *leaves_[position];
  if (leaf.size() < kLeaf_count) {
    if (leaf.size() == leaf.capacity()) leaf.reserve(std::min(kLeaf_count, leaf.size() * 2));
    return position;
  }
  auto upper = std::make_unique<Leaf>();
  upper->reserve(kLeaf_count);
  if (leaves_.size() == leaves_.capacity()) leaves_.reserve(leaves_.size() * 2);
  upper->assign(leaf.begin() + kLeaf_count / 2, leaf.end());
  leaf.resize(kLeaf_count / 2, Row{});
  const bool goes_up = address >= upper->front().address;
  leaves_.insert(leaves_.begin() + static_cast<std::ptrdiff_t>(position) + 1, std::move(upper));
  return goes_up ? position + 1 : position;
}

RegionRecord* RegionTable::insert(std::unique_ptr<RegionRecord> record) {
  if (vacant_.empty()) {
    if (by_index_.size() == by_index_.capacity()) {
      const std::size_t capacity = std::max<std::size_t>(8, by_index_.size() * 2);
      vacant_.reserve(capacity);  // so that erase never allocates
      by_index_.reserve(capacity);
    }
  }
  const bool was_empty = leaves_.empty();
  const std::size_t position = make_room(record->address);
  Leaf& leaf = *leaves_[position];
  const auto at = std::upper_bound(leaf.begin(), leaf.end(), record->address, [](std::uint64_t a, const Row& row) { return a < row.address; });
  leaf.insert(was_empty ? leaf.begin() : at, Row{record->address, record.get()});
  if (vacant_.empty()) {
    record->index = static_cast<std::uint32_t>(by_index_.size());
    by_index_.push_back(std::move(record));
    return by_index_.back().get();
  }
  record->index = vacant_.back();
  vacant_.pop_back();
  auto& slot = by_index_[record->index];
  slot = std::move(record);
  return slot.get();
}

void RegionTable::erase(RegionRecord* record) noexcept {
  const std::size_t position = leaf_of(record->address);
  Leaf& leaf = *leaves_[position];
  const auto at = std::lower_bound(leaf.begin(), leaf.end(), record->address, [](const Row& row, std::uint64_t a) { return row.address < a; });
  leaf.erase(at);
  if (leaf.empty()) leaves_.erase(leaves_.begin() + static_cast<std::ptrdiff_t>(position));
  if (last_found_ == record) last_found_ = nullptr;
  const std::uint32_t index = record->index;
  by_index_[index].reset();
  vacant_.push_back(index);
}

RegionRecord* RegionTable::find(std::uint64_t address) const noexcept {
  if (last_found_ != nullptr && address - last_found_->address < last_found_->bytes) return last_found_;
  if (leaves_.empty()) return nullptr;
  const Leaf& leaf = *leaves_[leaf_of(address)];
  const auto after = std::upper_bound(leaf.begin(), leaf.end(), address, [](std::uint64_t a, const Row& row) { return a < row.address; });
  if (after == leaf.begin()) return nullptr;
  RegionRecord* record = (after - 1)->record;
  if (address - record->address >= record->bytes) return nullptr;
  last_found_ = record;
  return record;
}

std::size_t RegionTable::metadata_bytes() const {
  std::size_t bytes = leaves_.capacity() * sizeof(leaves_[0]) + by_index_.capacity() * sizeof(by_index_[0]) + vacant_.capacity() * sizeof(vacant_[0]);
  for (const auto& leaf : leaves_) bytes += sizeof(Leaf) + leaf->capacity() * sizeof(Row);
  for_each([&](const RegionRecord& record) { bytes += sizeof(RegionRecord) - sizeof(PageIndex) + record.pages.metadata_bytes(); });
  return bytes;
}

std::string RegionTable::check() const {
  std::uint64_t end = 0;
  std::size_t rows = 0;
  for (const auto& leaf : leaves_) {
    if (leaf->empty()) return "a leaf of the region table is empty";
    for (const Row& row : *leaf) {
      if (row.address != row.record->address) return "a region's row has another address than its record";
      if (row.address < end) return "two regions overlap or are out of order";
      if (by_index_[row.record->index].get() != row.record) return "a region's index names another region";
      end = row.address + row.record->bytes;
      ++rows;
    }
  }
  return rows == size() ? "" : "the region table has not as many rows as regions";
}

}  // namespace cupool::heap
