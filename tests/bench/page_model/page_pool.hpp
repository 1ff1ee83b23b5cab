// PagePool: the rules of a page heap, as page_model compares them: where a block goes, when pages are created, moved, or waited for.
#pragma once

#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "tests/bench/page_model/page_space.hpp"

namespace page_model {

inline constexpr std::uint64_t kNever = ~std::uint64_t{0};

/// The defaults are the best that was found with handles of one page.
struct Rule {
  std::string name;
  // Where a block goes.
  double candidates = 2;   ///< holes looked at, from the tightest
  double bins = 0;         ///< 64 bins per power of two, newest first, instead of exact order
  double pages_first = 1;  ///< fewest pages without a live byte, then tightest; else tightest
  double both_ends = 0;    ///< at either end of a hole, whichever costs fewer such pages
  double tail_sharing = 1;
  double aligned = 0;            ///< blocks of a page or more begin at a page
  double beside_older_from = 0;  ///< granules; 0: never
  double own_zone_below = 8192;  ///< granules
  double slab_cutoff = 64;       ///< granules
  // Pages.
  double largest_log2 = 0;  ///< largest handle: 2^n pages
  double divisor = 8;       ///< a handle is at most this part of what may still be created
  double three_tiers = 0;   ///< handles of 1, 16 and 128 pages only
  double crack = 1;         ///< an empty handle that is larger than needed is released and created again in parts
  double remap_from = 2;    ///< remap before growing when this part of the reserved pages is empty; > 1: grow first
  double quarantine = 1;
  // Deferred frees.
  double wait_first = 1;      ///< wait before remapping
  double wait_part = 1;       ///< of the deferred bytes that a miss waits for, at least
  double defer_part = 0.25;   ///< of what is neither live nor floor, at most, may be deferred; else a free waits for all
  double defer_floor = 0.03;  ///< of the capacity
  double defer_keep = 0;      ///< of that bound, what may stay deferred after such a wait
};

/// A field by its name, for the command line; nullptr when there is none.
double* field(Rule* rule, const std::string& name);

struct Costs {
  std::uint64_t created = 0, released = 0, mapped = 0, unmap_runs = 0, access_runs = 0, waits = 0, moved_pages = 0;
  std::uint64_t calls() const { return created + released + mapped + unmap_runs + access_runs + waits; }
};

class PagePool {
 public:
  PagePool(const Rule& rule, std::uint64_t capacity_pages, std::uint64_t pending_frees);
  struct Block {
    std::uint32_t extent = kNone;
    std::uint32_t slab_index = kNone;  ///< of a small block: which of the extent's
    std::uint64_t size = 0;
  };
  /// False: out of memory.
  bool allocate(std::uint64_t bytes, Block* block);
  void free(const Block& block);
  const Costs& costs() const { return costs_; }
  const PageSpace& space() const { return space_; }
  /// The first broken invariant as a sentence, or an empty string. O(addresses).
  std::string check();

 private:
  struct Place {
    std::uint32_t hole = kNone;
    std::uint64_t start = 0;
  };
  struct Run {
    std::uint64_t first_page, pages, room;
  };
  struct Window {
    std::uint64_t start = 0, newly = 0, unmapped = 0;
    std::vector<Run> runs;
  };
  struct Keep {
    std::uint64_t first_page, last_page;
  };  ///< pages that the block itself will use
  struct Pending {
    Block block;
    std::uint64_t ready_at;
  };
  struct Slab {
    std::uint64_t size;
    std::uint32_t extent;
    std::uint32_t free_blocks;
  };

  unsigned zone_for(std::uint64_t size) const;
  bool obtain(std::uint64_t size, std::uint32_t* extent);
  Place find(std::uint64_t size, unsigned zone);
  std::uint64_t place_in(std::uint32_t hole, std::uint64_t size, bool high) const;
  bool prefers_high(const Extent& hole, std::uint64_t size) const;
  std::uint32_t settle(std::uint32_t hole, std::uint64_t start, std::uint64_t size);
  bool provide(std::uint64_t size, unsigned zone, bool may_steal, std::uint32_t* extent);
  bool window_at(std::uint64_t start, std::uint32_t extent, std::uint64_t size, Window* window);
  std::vector<Window> windows(std::uint64_t size, unsigned zone);
  bool fill(const Window& window, std::uint64_t size, bool may_steal);
  bool fill_run(Run run, bool may_steal, const Keep& keep);
  std::uint32_t steal(std::uint64_t want, std::uint64_t room, const Keep& keep);
  std::uint32_t take(unsigned size_class, const Keep& keep);
  std::uint32_t take_off(std::uint32_t handle);
  std::uint32_t crack(std::uint32_t handle, std::uint64_t want);
  std::uint32_t create(std::uint64_t room);
  std::uint64_t available(const Window& window, bool may_steal) const;
  void count_unmaps();
  void bound_deferred();
  void free_oldest();
  void wait(std::uint64_t size);
  void retire();
  void really_free(const Block& block);
  void expire_quarantine();
  bool allocate_small(std::uint64_t size, Block* block);
  void free_small(const Block& block);
  bool has_tiers() const { return rule_.largest_log2 > 0; }
  std::uint64_t left_to_create() const { return capacity_ - reserved_; }

  Rule rule_;
  std::uint64_t capacity_;
  std::uint64_t pending_frees_;
  PageSpace space_;
  Costs costs_;
  std::uint64_t reserved_ = 0;
  std::uint64_t births_ = 0;
  std::vector<std::uint32_t> loose_[kClasses];  ///< handles that are mapped nowhere
  std::uint64_t loose_pages_ = 0;
  std::deque<Pending> pending_;
  std::uint64_t deferred_ = 0;  ///< granules
  std::size_t open_ = 0;        ///< of pending_, the newest whose epoch is open
  std::uint64_t open_granules_ = 0;
  std::uint64_t frees_ = 0;
  std::uint64_t live_ = 0;  ///< granules
  std::deque<std::pair<std::uint32_t, std::uint64_t>> quarantine_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> taken_;  ///< first pages and lengths unmapped by one miss
  std::vector<Slab> slabs_;
  std::vector<std::uint32_t> spare_slabs_;
  std::vector<std::set<std::pair<std::uint64_t, std::uint32_t>>> open_slabs_;  ///< by size class: with a free block, lowest address first
};

}  // namespace page_model
