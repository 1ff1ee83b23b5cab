// PagePool: find, provide, wait. See page_pool.hpp.
#include "tests/bench/page_model/page_pool.hpp"

#include <algorithm>
#include <bit>
#include <map>

namespace page_model {

namespace {

constexpr std::uint64_t kEpochFrees = 64;
constexpr std::uint64_t kEpochGranules = 64 * 2048;  // 64 MiB

/// Four classes per power of two above 8 granules.
std::uint64_t round_to_class(std::uint64_t size) {
  if (size <= 8) return size;
  const std::uint64_t step = (std::uint64_t{1} << floor_log2(size - 1)) / 4;
  return align_up(size, step);
}

}  // namespace

double* field(Rule* rule, const std::string& name) {
#define FIELD(member) \
  { #member, &rule->member }
  const std::map<std::string, double*> fields = {FIELD(candidates),   FIELD(bins),         FIELD(pages_first),       FIELD(both_ends),
                                                 FIELD(tail_sharing), FIELD(aligned),      FIELD(beside_older_from), FIELD(own_zone_below),
                                                 FIELD(slab_cutoff),  FIELD(largest_log2), FIELD(divisor),           FIELD(three_tiers),
                                                 FIELD(crack),        FIELD(remap_from),   FIELD(quarantine),        FIELD(wait_first),
                                                 FIELD(wait_part),    FIELD(defer_part),   FIELD(defer_floor),       FIELD(defer_keep)};
#undef FIELD
  const auto found = fields.find(name);
  return found == fields.end() ? nullptr : found->second;
}

PagePool::PagePool(const Rule& rule, std::uint64_t capacity_pages, std::uint64_t pending_frees)
    : rule_(rule), capacity_(capacity_pages), pending_frees_(pending_frees), space_(rule.bins != 0), open_slabs_(4096) {}

unsigned PagePool::zone_for(std::uint64_t size) const { return static_cast<double>(size) < rule_.own_zone_below ? 1 : 0; }

bool PagePool::allocate(std::uint64_t bytes, Block* block) {
  retire();
  const std::uint64_t size = std::max<std::uint64_t>((bytes + 511) / 512, 1);
  if (static_cast<double>(size) <= rule_.slab_cutoff) {
    live_ += round_to_class(size);
    return allocate_small(round_to_class(size), block);
  }
  block->slab_index = kNone;
  block->size = rule_.tail_sharing == 0 && size >= kPageGranules ? align_up(size, kPageGranules) : size;
  live_ += block->size;
  return obtain(block->size, &block->extent);
}

/// The ladder: a hole, growing, (waiting,) remapping, waiting.
bool PagePool::obtain(std::uint64_t size, std::uint32_t* extent) {
  const unsigned zone = zone_for(size);
  for (;;) {
    if (const Place place = find(size, zone); place.hole != kNone) {
      *extent = settle(place.hole, place.start, size);
      return true;
    }
    if (provide(size, zone, rule_.wait_first == 0 || pending_.empty(), extent)) return true;
    if (pending_.empty()) return false;
    wait(size);
  }
}

bool PagePool::prefers_high(const Extent& hole, std::uint64_t size) const {
  if (rule_.beside_older_from == 0 || static_cast<double>(size) < rule_.beside_older_from) return false;
  const auto birth = [&](std::uint32_t id) {
    if (id == kNone) return std::uint64_t{0};
    const Extent& extent = space_.at(id);
    return extent.kind == Kind::live ? extent.birth : extent.kind == Kind::deferred ? kNever : std::uint64_t{0};
  };
  if (hole.previous == kNone) return false;
  return birth(hole.next) < birth(hole.previous);
}

std::uint64_t PagePool::place_in(std::uint32_t id, std::uint64_t size, bool high) const {
  const Extent& hole = space_.at(id);
  const bool aligned = rule_.aligned != 0 && size >= kPageGranules;
  if (high) {
    const std::uint64_t start = hole.end() - size;
    const std::uint64_t down = aligned ? start / kPageGranules * kPageGranules : start;
    return down >= hole.start ? down : kNever;
  }
  const std::uint64_t start = aligned ? align_up(hole.start, kPageGranules) : hole.start;
  return start + size <= hole.end() ? start : kNever;
}

PagePool::Place PagePool::find(std::uint64_t size, unsigned zone) {
  const Holes& holes = space_.holes(zone);
  Place best;
  std::pair<std::uint64_t, std::uint64_t> best_cost{kNever, kNever};
  double looked = 0;
  for (auto at = holes.lower_bound({rule_.bins != 0 ? PageSpace::bin_of(size) : size, 0, 0}); at != holes.end(); ++at) {
    const std::uint32_t id = std::get<2>(*at);
    const Extent& hole = space_.at(id);
    if (hole.size < size) continue;
    const bool high = prefers_high(hole, size);
    for (const bool end : {high, !high}) {
      const std::uint64_t start = place_in(id, size, end);
      if (start == kNever || (end != high && rule_.both_ends == 0)) continue;
      const std::pair cost{rule_.pages_first != 0 ? space_.newly_busy(start, size, has_tiers()) : 0, hole.size};
      if (cost < best_cost) {
        best = {id, start};
        best_cost = cost;
      }
    }
    if (best.hole != kNone && (++looked >= rule_.candidates || best_cost.first == 0)) break;
  }
  return best;
}

std::uint32_t PagePool::settle(std::uint32_t hole, std::uint64_t start, std::uint64_t size) {
  const std::uint32_t id = space_.convert(hole, start, size, Kind::live);
  space_.at(id).birth = ++births_;
  space_.count(start, size, 1);
  return id;
}

/// Waits for the oldest frees: enough for `size`, and a part of all, so that the next miss need not wait again.
void PagePool::wait(std::uint64_t size) {
  ++costs_.waits;
  const auto part = static_cast<std::uint64_t>(rule_.wait_part * static_cast<double>(deferred_));
  const std::uint64_t aim = deferred_ - std::min(deferred_, std::max(size, part));
  while (!pending_.empty() && deferred_ > aim) free_oldest();
}

/// Deferred blocks push new ones into other pages and pin them there: so few may be deferred when little is left.
void PagePool::bound_deferred() {
  const double usable = (1 - rule_.defer_floor) * static_cast<double>(capacity_ * kPageGranules);
  const double bound = rule_.defer_part * std::max(usable - static_cast<double>(live_), 0.0);
  if (static_cast<double>(deferred_) <= bound) return;
  ++costs_.waits;
  while (!pending_.empty() && static_cast<double>(deferred_) > rule_.defer_keep * bound) free_oldest();
}

void PagePool::free_oldest() {
  const Block block = pending_.front().block;
  pending_.pop_front();
  open_ = std::min(open_, pending_.size());
  deferred_ -= block.size;
  really_free(block);
}

void PagePool::free(const Block& block) {
  live_ -= block.size;
  if (pending_frees_ == 0) {
    really_free(block);
    return;
  }
  ++frees_;
  if (block.slab_index == kNone) space_.convert(block.extent, space_.at(block.extent).start, block.size, Kind::deferred);
  pending_.push_back({block, kNever});
  deferred_ += block.size;
  ++open_;
  open_granules_ += block.size;
  bound_deferred();
  if (open_ < kEpochFrees && open_granules_ < kEpochGranules) return;
  for (std::size_t i = pending_.size() - open_; i < pending_.size(); ++i) pending_[i].ready_at = frees_ + pending_frees_;
  open_ = 0;
  open_granules_ = 0;
}

/// The epochs whose work is over: closed, and so many frees ago.
void PagePool::retire() {
  while (!pending_.empty() && pending_.front().ready_at <= frees_) free_oldest();
}

void PagePool::really_free(const Block& block) {
  if (block.slab_index != kNone) {
    free_small(block);
    return;
  }
  const std::uint64_t start = space_.at(block.extent).start;
  space_.count(start, block.size, -1);
  space_.convert(block.extent, start, block.size, Kind::free);
}

bool PagePool::allocate_small(std::uint64_t size, Block* block) {
  auto& open = open_slabs_[size];
  if (open.empty()) {
    const std::uint64_t slab_size = std::max<std::uint64_t>(128, std::bit_ceil(4 * size));
    std::uint32_t extent = kNone;
    if (!obtain(slab_size, &extent)) return false;
    std::uint32_t slab = static_cast<std::uint32_t>(slabs_.size());
    if (spare_slabs_.empty()) {
      slabs_.emplace_back();
    } else {
      slab = spare_slabs_.back();
      spare_slabs_.pop_back();
    }
    slabs_[slab] = {slab_size, extent, static_cast<std::uint32_t>(slab_size / size)};
    open.emplace(space_.at(extent).start, slab);
  }
  const auto [start, slab] = *open.begin();
  if (--slabs_[slab].free_blocks == 0) open.erase(open.begin());
  *block = {slabs_[slab].extent, slab, size};
  return true;
}

void PagePool::free_small(const Block& block) {
  Slab& slab = slabs_[block.slab_index];
  auto& open = open_slabs_[block.size];
  const std::uint64_t start = space_.at(slab.extent).start;
  if (slab.free_blocks++ == 0) open.emplace(start, block.slab_index);
  if (slab.free_blocks < slab.size / block.size) return;
  open.erase({start, block.slab_index});
  spare_slabs_.push_back(block.slab_index);
  space_.count(start, slab.size, -1);
  space_.convert(slab.extent, start, slab.size, Kind::free);
}

std::string PagePool::check() {
  if (reserved_ > capacity_) return "more pages were created than the device has";
  if (deferred_ > 0 && pending_.empty()) return "bytes are deferred by no free";
  return space_.check(reserved_ - loose_pages_);
}

}  // namespace page_model
