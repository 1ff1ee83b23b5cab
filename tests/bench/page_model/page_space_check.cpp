// PageSpace::check: the invariants of the geometry as sentences. See page_space.hpp.
#include "tests/bench/page_model/page_space.hpp"

namespace page_model {

std::string PageSpace::check_zone(unsigned zone, std::uint64_t* mapped, std::uint64_t* busy) {
  std::vector<std::uint64_t> used(pages_[zone].size());
  const std::uint64_t base = std::uint64_t{zone} << kZone_log2;
  std::uint64_t expected = base;
  for (std::uint32_t id = covering(base); id != kNone; id = at(id).next) {
    const Extent& extent = at(id);
    if (extent.start != expected || extent.size == 0) return "extents overlap or leave a gap";
    expected = extent.end();
    const bool joins = extent.kind == Kind::free || extent.kind == Kind::unmapped;
    if (joins && extent.next != kNone && at(extent.next).kind == extent.kind) return "two free neighbours were not joined";
    const bool needs_pages = extent.kind == Kind::live || extent.kind == Kind::deferred || extent.kind == Kind::free;
    for (std::uint64_t start = extent.start; start < extent.end() && (start - base) / kPageGranules < used.size();) {
      const std::uint64_t stop = std::min(extent.end(), (start / kPageGranules + 1) * kPageGranules);
      if ((page_at(start / kPageGranules).handle != kNone) != needs_pages) {
        return needs_pages ? "an extent has no page below it" : "an unmapped range has a page";
      }
      if (extent.kind == Kind::live || extent.kind == Kind::deferred) used[(start - base) / kPageGranules] += stop - start;
      start = stop;
    }
  }
  for (std::size_t i = 0; i < used.size(); ++i) {
    const Page& page = pages_[zone][i];
    if (page.used != used[i]) return "a page counts other bytes than lie on it";
    *busy += used[i] > 0;
    *mapped += page.handle != kNone;
  }
  return {};
}

std::string PageSpace::check(std::uint64_t mapped_pages) {
  std::uint64_t mapped = 0;
  std::uint64_t busy = 0;
  for (unsigned zone = 0; zone < kZones; ++zone) {
    if (std::string broken = check_zone(zone, &mapped, &busy); !broken.empty()) return broken;
  }
  if (mapped != mapped_pages) return "more or fewer pages are mapped than were created";
  if (busy != busy_pages_) return "the number of busy pages is wrong";
  std::uint64_t empty = 0;
  for (const std::uint32_t coldest : coldest_) {
    for (std::uint32_t id = coldest; id != kNone; id = handles_[id].warmer) {
      if (handles_[id].busy > 0 || !handles_[id].mapped) return "a handle in the list of empty ones is busy or not mapped";
      empty += handles_[id].pages;
    }
  }
  return empty == empty_pages_ ? std::string() : "the number of empty pages is wrong";
}

}  // namespace page_model
