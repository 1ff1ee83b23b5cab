// PagePool, the miss: windows of addresses, and where the pages below them come from. See page_pool.hpp.
#include <algorithm>
#include <bit>
#include <tuple>

#include "tests/bench/page_model/page_pool.hpp"

namespace page_model {

namespace {

constexpr std::uint64_t kQuarantineCapacities = 64;

}  // namespace

/// What [start, start + size) would take, beginning in `extent`. False when something other than free and unmapped memory is in the way.
bool PagePool::window_at(std::uint64_t start, std::uint32_t extent, std::uint64_t size, Window* window) {
  window->start = start;
  window->unmapped = 0;
  window->runs.clear();
  const std::uint64_t end = start + size;
  for (std::uint64_t at = start; at < end; extent = space_.at(extent).next) {
    if (extent == kNone) return false;
    const Extent& part = space_.at(extent);
    if (part.kind != Kind::free && part.kind != Kind::unmapped) return false;
    const std::uint64_t stop = std::min(end, part.end());
    if (part.kind == Kind::unmapped) {
      const std::uint64_t first = at / kPageGranules;
      const std::uint64_t pages = (stop + kPageGranules - 1) / kPageGranules - first;
      window->runs.push_back({first, pages, part.end() / kPageGranules - first});
      window->unmapped += pages;
    }
    at = stop;
  }
  window->newly = space_.newly_busy(start, size, has_tiers());
  return true;
}

std::vector<PagePool::Window> PagePool::windows(std::uint64_t size, unsigned zone) {
  std::vector<Window> found;
  Window window;
  const bool aligned = rule_.aligned != 0 && size >= kPageGranules;
  for (const std::uint32_t id : space_.unmapped(zone)) {
    const Extent& gap = space_.at(id);
    const std::uint32_t left = gap.previous;
    if (left != kNone && space_.at(left).kind == Kind::free) {
      const std::uint64_t start = aligned ? align_up(space_.at(left).start, kPageGranules) : space_.at(left).start;
      if (start < gap.start && window_at(start, left, size, &window)) found.push_back(window);
    }
    if (window_at(gap.start, id, size, &window)) found.push_back(window);
    const std::uint32_t right = gap.next;
    if (right == kNone || space_.at(right).kind != Kind::free || space_.at(right).end() < size + gap.start) continue;
    std::uint64_t start = space_.at(right).end() - size;
    if (aligned) start = start / kPageGranules * kPageGranules;
    if (start >= gap.start && start < gap.end() && window_at(start, id, size, &window)) found.push_back(window);
  }
  std::sort(found.begin(), found.end(),
            [](const Window& a, const Window& b) { return std::tie(a.newly, a.unmapped, a.start) < std::tie(b.newly, b.unmapped, b.start); });
  return found;
}

/// Pages that could go below the window without waiting.
std::uint64_t PagePool::available(const Window& window, bool may_steal) const {
  const std::uint64_t in_place = window.newly - std::min(window.newly, window.unmapped);
  return loose_pages_ + (may_steal ? space_.empty_pages() - std::min(space_.empty_pages(), in_place) : 0);
}

/// Maps pages so that `size` granules fit, and places the block there.
bool PagePool::provide(std::uint64_t size, unsigned zone, bool may_steal, std::uint32_t* extent) {
  for (const Window& window : windows(size, zone)) {
    if (window.unmapped > available(window, may_steal) + left_to_create()) continue;
    if (!fill(window, size, may_steal)) continue;
    *extent = settle(space_.covering(window.start), window.start, size);
    return true;
  }
  return false;
}

bool PagePool::fill(const Window& window, std::uint64_t size, bool may_steal) {
  const Keep keep{window.start / kPageGranules, (window.start + size - 1) / kPageGranules};
  const std::uint64_t had = available(window, may_steal);
  const bool plenty = had >= window.unmapped && static_cast<double>(had) >= rule_.remap_from * static_cast<double>(reserved_);
  const bool remap = left_to_create() < window.unmapped ? may_steal : plenty;
  taken_.clear();
  bool filled = true;
  for (const Run& run : window.runs) filled = filled && fill_run(run, remap, keep);
  ++costs_.access_runs;
  count_unmaps();
  expire_quarantine();
  return filled;
}

/// One call unmaps neighbours.
void PagePool::count_unmaps() {
  std::sort(taken_.begin(), taken_.end());
  std::uint64_t end = kNever;
  for (const auto& [first, pages] : taken_) {
    if (first != end) ++costs_.unmap_runs;
    end = first + pages;
  }
}

bool PagePool::fill_run(Run run, bool may_steal, const Keep& keep) {
  while (run.pages > 0) {
    std::uint32_t handle = kNone;
    if (may_steal) handle = steal(run.pages, run.room, keep);
    if (handle == kNone) handle = create(run.room);
    if (handle == kNone) return false;
    const std::uint64_t pages = space_.handle(handle).pages;
    space_.map(handle, run.first_page);
    ++costs_.mapped;
    run.first_page += pages;
    run.room -= pages;
    run.pages -= std::min(run.pages, pages);
  }
  return true;
}

/// A handle of the class: a loose one, else the coldest empty one, taken from where it is.
std::uint32_t PagePool::take(unsigned size_class, const Keep& keep) {
  if (!loose_[size_class].empty()) {
    const std::uint32_t id = loose_[size_class].back();
    loose_[size_class].pop_back();
    loose_pages_ -= std::uint64_t{1} << size_class;
    return id;
  }
  for (std::uint32_t id = space_.coldest(size_class); id != kNone; id = space_.handle(id).warmer) {
    const Handle& handle = space_.handle(id);
    if (handle.first_page + handle.pages <= keep.first_page || handle.first_page > keep.last_page) return take_off(id);
  }
  return kNone;
}

/// An unmapped handle of at most `room` pages: the largest class that fits into `want`, else the smallest above it.
std::uint32_t PagePool::steal(std::uint64_t want, std::uint64_t room, const Keep& keep) {
  const unsigned fits = std::min(floor_log2(want), kClasses - 1);
  for (unsigned size_class = fits + 1; size_class-- > 0;) {
    if (const std::uint32_t id = take(size_class, keep); id != kNone) return id;
  }
  for (unsigned size_class = fits + 1; size_class < kClasses; ++size_class) {
    if ((std::uint64_t{1} << size_class) > room && rule_.crack == 0) break;
    if (const std::uint32_t id = take(size_class, keep); id != kNone) return rule_.crack != 0 ? crack(id, want) : id;
  }
  return kNone;
}

std::uint32_t PagePool::take_off(std::uint32_t id) {
  const Handle handle = space_.handle(id);
  taken_.emplace_back(handle.first_page, handle.pages);
  costs_.moved_pages += handle.pages;
  const std::uint32_t extent = space_.unmap(id, rule_.quarantine != 0 ? Kind::quarantined : Kind::unmapped);
  if (rule_.quarantine != 0) quarantine_.emplace_back(extent, space_.fresh_pages());
  return id;
}

/// Releases a handle and creates smaller ones that add up to it. Returns one of at most `want` pages; the others are loose.
std::uint32_t PagePool::crack(std::uint32_t id, std::uint64_t want) {
  ++costs_.released;
  unsigned size_class = floor_log2(space_.handle(id).pages);
  space_.drop_handle(id);
  const auto loosen = [&](unsigned piece) {
    loose_[piece].push_back(space_.make_handle(1U << piece));
    loose_pages_ += std::uint64_t{1} << piece;
    ++costs_.created;
  };
  while ((std::uint64_t{1} << size_class) > want) {
    const unsigned smaller = rule_.three_tiers != 0 ? (size_class > 4 ? 4 : 0) : size_class - 1;
    for (unsigned i = 1; i < (1U << (size_class - smaller)); ++i) loosen(smaller);
    size_class = smaller;
  }
  ++costs_.created;
  return space_.make_handle(1U << size_class);
}

/// A handle as large as allowed: no more than is reserved (the pool doubles), and finer towards the end of the device.
std::uint32_t PagePool::create(std::uint64_t room) {
  const std::uint64_t left = std::min(left_to_create(), room);
  if (left == 0) return kNone;
  const auto part = static_cast<std::uint64_t>(static_cast<double>(left_to_create()) / rule_.divisor);
  unsigned log2 = std::min({static_cast<unsigned>(rule_.largest_log2), floor_log2(part), floor_log2(reserved_), floor_log2(left)});
  if (rule_.three_tiers != 0) log2 = log2 >= 7 ? 7 : log2 >= 4 ? 4 : 0;
  reserved_ += std::uint64_t{1} << log2;
  ++costs_.created;
  return space_.make_handle(1U << log2);
}

void PagePool::expire_quarantine() {
  while (!quarantine_.empty() && space_.fresh_pages() - quarantine_.front().second >= kQuarantineCapacities * capacity_) {
    const Extent range = space_.at(quarantine_.front().first);
    space_.convert(quarantine_.front().first, range.start, range.size, Kind::unmapped);
    quarantine_.pop_front();
  }
}

}  // namespace page_model
