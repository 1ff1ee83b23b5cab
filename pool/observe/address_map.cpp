// One pass per question. Sorting is partial where only the head is wanted.
#include "pool/observe/address_map.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <tuple>
#include <unordered_map>

#include "pool/observe/frequent_size.hpp"
#include "pool/observe/handle_pins.hpp"

namespace cupool::observe {

namespace {

constexpr std::size_t kBins = 64;

std::size_t bin_of(std::uint64_t bytes) { return bytes == 0 ? 0 : static_cast<std::size_t>(std::bit_width(bytes)) - 1; }

template <class T, class Before> void keep_first(std::vector<T>& items, std::size_t limit, Before before) {
  const std::size_t kept = std::min(limit, items.size());
  std::partial_sort(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(kept), items.end(), before);
  items.resize(kept);
}

/// Walks the rows of one region and collects its runs.
class PinFinder {
 public:
  explicit PinFinder(std::vector<Pin>& out) : out_(out) {}

  void add(const BlockRow& row) {
    if (row.state == BlockState::free) {
      close_run(row.bytes);
      left_free_ = row.bytes;
      region_free_ += row.bytes;
      return;
    }
    if (run_.blocks == 0) {
      run_ = Pin{};
      run_.address = row.address;
      run_.region = row.region;
      largest_block_ = 0;
    }
    run_.bytes += row.bytes;
    ++run_.blocks;
    if (row.state == BlockState::deferred) run_.deferred_bytes += row.bytes;
    if (row.bytes > largest_block_) {
      largest_block_ = row.bytes;
      run_.site = row.site;
    }
  }

  void end_region() {
    close_run(0);
    // A region's only run pins everything that is free there, on either side of it.
    if (runs_ == 1 && region_free_ > only_run_.bytes) {
      only_run_.pinned_free_bytes = region_free_;
      only_run_.holds_region = true;
      if (only_run_kept_) out_.pop_back();
      out_.push_back(only_run_);
    }
    runs_ = region_free_ = left_free_ = 0;
  }

 private:
  void close_run(std::uint64_t right_free) {
    if (run_.blocks == 0) return;
    run_.pinned_free_bytes = left_free_ + right_free;
    const bool keep = left_free_ > 0 && right_free > 0 && run_.pinned_free_bytes > run_.bytes;
    if (keep) out_.push_back(run_);
    if (++runs_ == 1) {
      only_run_ = run_;
      only_run_kept_ = keep;
    }
    run_.blocks = 0;
  }

  std::vector<Pin>& out_;
  Pin run_;
  Pin only_run_;
  std::uint64_t largest_block_ = 0;
  std::uint64_t left_free_ = 0;
  std::uint64_t region_free_ = 0;
  std::uint64_t runs_ = 0;
  bool only_run_kept_ = false;
};

}  // namespace

std::vector<HistogramBin> histogram_of(const std::vector<BlockRow>& rows) {
  std::array<HistogramBin, kBins> bins{};
  for (const BlockRow& row : rows) {
    if (row.state != BlockState::live) continue;
    HistogramBin& bin = bins[bin_of(row.bytes)];
    ++bin.blocks;
    bin.bytes += row.bytes;
    bin.requested_bytes += row.requested_bytes;
  }
  std::vector<HistogramBin> out;
  for (std::size_t i = 0; i < kBins; ++i) {
    bins[i].min_bytes = std::uint64_t{1} << i;
    if (bins[i].blocks > 0) out.push_back(bins[i]);
  }
  return out;
}

HoleList largest_holes(const std::vector<BlockRow>& rows, std::size_t limit) {
  HoleList list;
  for (const BlockRow& row : rows) {
    if (row.state != BlockState::free) continue;
    ++list.count;
    list.bytes += row.bytes;
    list.largest.push_back(row);
  }
  keep_first(list.largest, limit,
             [](const BlockRow& a, const BlockRow& b) { return a.bytes != b.bytes ? a.bytes > b.bytes : a.address < b.address; });
  return list;
}

std::vector<Pin> largest_pins(const std::vector<BlockRow>& rows, const std::vector<HandleRow>& handles, std::size_t limit) {
  std::vector<Pin> pins;
  PinFinder finder(pins);
  const HandleIndex index(handles);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (index.covers(rows[i].address)) continue;
    finder.add(rows[i]);
    if (i + 1 == rows.size() || rows[i + 1].region != rows[i].region) finder.end_region();
  }
  if (!handles.empty()) add_handle_pins(rows, index, pins);
  keep_first(pins, limit, [](const Pin& a, const Pin& b) {
    return std::tuple(b.pinned_free_bytes, a.bytes, a.address) < std::tuple(a.pinned_free_bytes, b.bytes, b.address);
  });
  return pins;
}

namespace {
/// The key of a group: its call site in the high half, or where that is not recorded its size class in the low half.
std::uint64_t group_key(const BlockRow& row) { return std::uint64_t{row.site} << 32 | (row.site == 0 ? bin_of(row.bytes) : 0); }

void add_to(LeakGroup& group, const BlockRow& row) {
  group.smallest_bytes = group.blocks == 0 ? row.requested_bytes : std::min(group.smallest_bytes, row.requested_bytes);
  group.largest_bytes = std::max(group.largest_bytes, row.requested_bytes);
  ++group.blocks;
  group.bytes += row.bytes;
  group.requested_bytes += row.requested_bytes;
  if (row.allocated_unix_ns != 0 && (group.first_allocated_unix_ns == 0 || row.allocated_unix_ns < group.first_allocated_unix_ns))
    group.first_allocated_unix_ns = row.allocated_unix_ns;
}
}  // namespace

std::vector<LeakGroup> leak_groups(const std::vector<BlockRow>& rows) {
  std::vector<LeakGroup> groups;
  std::vector<Majority> sizes;
  std::unordered_map<std::uint64_t, std::size_t> index;
  for (const BlockRow& row : rows) {
    if (row.state != BlockState::live) continue;
    const auto [at, is_new] = index.try_emplace(group_key(row), groups.size());
    if (is_new) {
      groups.push_back({.site = row.site, .size_class_bytes = row.site == 0 ? std::uint64_t{1} << bin_of(row.bytes) : 0});
      sizes.emplace_back();
    }
    add_to(groups[at->second], row);
    sizes[at->second].show(row.requested_bytes);
  }
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].common_bytes = sizes[i].candidate();
  for (const BlockRow& row : rows) {
    if (row.state != BlockState::live) continue;
    LeakGroup& group = groups[index.at(group_key(row))];
    group.common_blocks += row.requested_bytes == group.common_bytes ? 1 : 0;
  }
  for (LeakGroup& group : groups)
    if (2 * group.common_blocks <= group.blocks) group.common_bytes = group.common_blocks = 0;
  std::sort(groups.begin(), groups.end(), [](const LeakGroup& a, const LeakGroup& b) {
    return std::tuple(b.bytes, a.site, a.size_class_bytes) < std::tuple(a.bytes, b.site, b.size_class_bytes);
  });
  return groups;
}

}  // namespace cupool::observe
