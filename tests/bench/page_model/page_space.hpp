// PageSpace: the geometry of a page heap for page_model: extents over an address space, pages mapped under them, indivisible handles behind
// the pages. No device and no policy. Exact ordered sets where a real heap would have bins, because the model asks for "the best", too.
// Addresses count granules of 512 bytes. A zone is an address range of its own in which nothing coalesces with another zone's.
#pragma once

#include <bit>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

namespace page_model {

inline constexpr std::uint64_t kPageGranules = 4096;  ///< 2 MiB
inline constexpr std::uint32_t kNone = ~std::uint32_t{0};
inline constexpr unsigned kZones = 2;
inline constexpr unsigned kClasses = 16;  ///< handles of 2^n pages

inline std::uint64_t align_up(std::uint64_t value, std::uint64_t step) { return (value + step - 1) / step * step; }
inline unsigned floor_log2(std::uint64_t value) { return 63U - static_cast<unsigned>(std::countl_zero(value | 1)); }

enum class Kind : std::uint8_t { live, deferred, free, unmapped, quarantined, spare };

struct Extent {
  std::uint64_t start = 0;
  std::uint64_t size = 0;
  std::uint32_t previous = kNone;
  std::uint32_t next = kNone;
  Kind kind = Kind::spare;
  std::uint64_t birth = 0;
  std::uint64_t key_size = 0;  ///< as it stands in Holes
  std::uint64_t key_order = 0;
  std::uint64_t end() const { return start + size; }
};

struct Page {
  std::uint32_t handle = kNone;      ///< what is mapped there
  std::uint32_t last_start = kNone;  ///< the last extent that starts in it
  std::uint16_t used = 0;            ///< granules of live and deferred blocks
  bool was_bound = false;
};

struct Handle {
  std::uint64_t first_page = 0;  ///< where it is mapped
  std::uint32_t pages = 0;
  std::uint32_t busy = 0;        ///< pages with used > 0
  std::uint32_t colder = kNone;  ///< neighbours in its class's list of empty handles
  std::uint32_t warmer = kNone;
  bool mapped = false;
};

/// Free (mapped) extents: size and start, or bin and newest first.
using Holes = std::set<std::tuple<std::uint64_t, std::uint64_t, std::uint32_t>>;

class PageSpace {
 public:
  explicit PageSpace(bool bins);

  Extent& at(std::uint32_t id) { return extents_[id]; }
  const Extent& at(std::uint32_t id) const { return extents_[id]; }
  const Holes& holes(unsigned zone) const { return holes_[zone]; }
  const std::set<std::uint32_t>& unmapped(unsigned zone) const { return unmapped_[zone]; }
  const Handle& handle(std::uint32_t id) const { return handles_[id]; }
  std::uint32_t coldest(unsigned size_class) const { return coldest_[size_class]; }
  const Page& page(std::uint64_t number);
  static std::uint64_t bin_of(std::uint64_t size);
  std::uint64_t fresh_pages() const { return fresh_pages_; }  ///< addresses bound for the first time, ever
  std::uint64_t empty_pages() const { return empty_pages_; }  ///< of wholly empty mapped handles

  static unsigned zone_of(std::uint64_t granule) { return static_cast<unsigned>(granule >> kZone_log2); }

  /// Gives [start, start + size) of extent `id` another kind, splitting off and joining what is needed. Returns the extent that holds it.
  std::uint32_t convert(std::uint32_t id, std::uint64_t start, std::uint64_t size, Kind kind);
  /// The extent that covers `granule`.
  std::uint32_t covering(std::uint64_t granule);
  /// A block appears in (+1) or leaves (-1) the pages below it.
  void count(std::uint64_t start, std::uint64_t size, int sign);
  std::uint32_t make_handle(std::uint32_t pages);
  void drop_handle(std::uint32_t id);
  void map(std::uint32_t handle, std::uint64_t first_page);
  /// The handle's range becomes `kind`. Returns the extent that holds it.
  std::uint32_t unmap(std::uint32_t handle, Kind kind);
  /// Pages of [start, start + size) that hold nothing; with `whole_handles`, of the handles that hold nothing.
  std::uint64_t newly_busy(std::uint64_t start, std::uint64_t size, bool whole_handles);

  /// The first broken invariant as a sentence, or an empty string. `mapped_pages`: what its owner believes. O(addresses).
  std::string check(std::uint64_t mapped_pages);

 private:
  static constexpr unsigned kZone_log2 = 42;
  Page& page_at(std::uint64_t number);
  std::string check_zone(unsigned zone, std::uint64_t* mapped, std::uint64_t* busy);
  std::uint32_t new_extent();
  std::uint32_t split(std::uint32_t id, std::uint64_t at);
  void join_next(std::uint32_t id);
  void enlist(std::uint32_t id);
  void delist(std::uint32_t id);
  void note_start(std::uint32_t id);
  void forget_start(std::uint32_t id);
  void append_empty(std::uint32_t handle);
  void unlink_empty(std::uint32_t handle);
  void count_page(Page& page, std::uint64_t granules, int sign);

  std::vector<Extent> extents_;
  std::vector<std::uint32_t> spare_extents_;
  std::vector<Page> pages_[kZones];
  std::vector<Handle> handles_;
  std::vector<std::uint32_t> spare_handles_;
  std::uint32_t coldest_[kClasses];
  std::uint32_t warmest_[kClasses];
  Holes holes_[kZones];
  std::set<std::uint32_t> unmapped_[kZones];
  bool bins_;
  std::uint64_t order_ = ~std::uint64_t{0};
  std::uint64_t fresh_pages_ = 0;
  std::uint64_t busy_pages_ = 0;
  std::uint64_t empty_pages_ = 0;
};

}  // namespace page_model
