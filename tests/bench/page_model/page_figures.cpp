// Bisection, replay, and the list of rules. See page_figures.hpp.
#include "tests/bench/page_model/page_figures.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

namespace page_model {

namespace {

constexpr std::uint64_t kPageBytes = std::uint64_t{2} << 20;

bool replay(const trace::Trace& job, PagePool* pool, bool check) {
  std::vector<PagePool::Block> blocks(job.allocations);
  const std::size_t step = job.events.size() / 64 + 1;
  std::size_t done = 0;
  for (const trace::Event& event : job.events) {
    if (event.is_free) {
      pool->free(blocks[event.slot]);
    } else if (!pool->allocate(event.bytes, &blocks[event.slot])) {
      return false;
    }
    if (!check || ++done % step != 0) continue;
    if (const std::string broken = pool->check(); !broken.empty()) throw std::logic_error(broken);
  }
  return true;
}

/// In pages; 0 when four times the peak is not enough.
std::uint64_t smallest_capacity(const trace::Trace& job, const Rule& rule, std::uint64_t pending, bool check) {
  const std::uint64_t unit = std::max<std::uint64_t>(1, job.peak_live_bytes / 1000 / kPageBytes);
  const auto completes = [&](std::uint64_t units) {
    PagePool pool(rule, units * unit, pending);
    return replay(job, &pool, check);
  };
  const double peak_units = static_cast<double>(job.peak_live_bytes) / static_cast<double>(unit * kPageBytes);
  auto low = static_cast<std::uint64_t>(std::max(peak_units - 1, 0.0));
  std::uint64_t high = 0;
  for (const double ratio : {1.005, 1.02, 1.05, 1.1, 1.25, 1.5, 2.0, 4.0}) {
    const auto units = static_cast<std::uint64_t>(peak_units * ratio) + 2;
    if (completes(units)) {
      high = units;
      break;
    }
    low = units;
  }
  while (low + 1 < high) {
    const std::uint64_t middle = (low + high) / 2;
    (completes(middle) ? high : low) = middle;
  }
  return high * unit;
}

Rule varied(const Rule& best, const std::string& name, const std::vector<std::pair<std::string, double>>& changes) {
  Rule rule = best;
  rule.name = name;
  for (const auto& [member, value] : changes) *field(&rule, member) = value;
  return rule;
}

}  // namespace

Figures measure(const trace::Trace& job, const Rule& rule, std::uint64_t pending, bool check) {
  const std::uint64_t capacity = smallest_capacity(job, rule, pending, check);
  const auto peak = static_cast<double>(job.peak_live_bytes);
  Figures figures;
  figures.ratio = capacity == 0 ? std::nan("") : static_cast<double>(capacity * kPageBytes) / peak;
  figures.over_capacity = capacity == 0 || static_cast<double>(capacity * kPageBytes) > 1.02 * peak + 4.0 * static_cast<double>(kPageBytes);
  const auto roomy = static_cast<std::uint64_t>(static_cast<double>(capacity) * 1.05);
  PagePool pool(rule, roomy, pending);
  figures.completes = replay(job, &pool, check);
  const Costs& costs = pool.costs();
  const auto per_allocation = [&](std::uint64_t count) { return static_cast<double>(count) / static_cast<double>(job.allocations); };
  figures.calls = per_allocation(costs.calls());
  figures.later = per_allocation(costs.calls() - 2 * costs.created);
  figures.waits = per_allocation(costs.waits);
  figures.moved = per_allocation(costs.moved_pages);
  figures.fresh = static_cast<double>(pool.space().fresh_pages()) / static_cast<double>(std::max<std::uint64_t>(roomy, 1));
  return figures;
}

std::vector<Rule> rules_to_compare(const Rule& best) {
  const auto with = [&](const std::string& name, const std::vector<std::pair<std::string, double>>& changes) { return varied(best, name, changes); };
  return {
      with("best", {}),
      with("tightest hole only", {{"candidates", 1}, {"pages_first", 0}}),
      with("fewest pages of 16 holes", {{"candidates", 16}}),
      with("64 bins per power of two, 2 candidates", {{"bins", 1}}),
      with("either end of the hole", {{"both_ends", 1}}),
      with("2 MiB and more beside the older neighbour", {{"beside_older_from", 4096}}),
      with("2 MiB and more begin at a page", {{"aligned", 1}}),
      with("no tail sharing", {{"tail_sharing", 0}, {"own_zone_below", 4096}}),
      with("no slabs", {{"slab_cutoff", 0}}),
      with("slabs to 4 KiB", {{"slab_cutoff", 8}}),
      with("slabs to 128 KiB", {{"slab_cutoff", 256}}),
      with("slabs to 512 KiB", {{"slab_cutoff", 1024}}),
      with("one zone", {{"own_zone_below", 0}}),
      with("own zone below 1 MiB", {{"own_zone_below", 2048}}),
      with("own zone below 2 MiB", {{"own_zone_below", 4096}}),
      with("own zone below 16 MiB", {{"own_zone_below", 32768}}),
      with("remap before growing", {{"remap_from", 0}}),
      with("remap before growing from 25% empty", {{"remap_from", 0.25}}),
      with("no quarantine", {{"quarantine", 0}}),
      with("remap before waiting, no bound on deferral", {{"wait_first", 0}, {"wait_part", 0.25}, {"defer_part", 1e9}}),
      with("wait before remapping, no bound", {{"defer_part", 1e9}}),
      with("half of the rest may be deferred", {{"defer_part", 0.5}}),
      with("every free waits", {{"defer_part", 0}}),
      with("handles of 2^n pages to 256 MiB, 1/8 of what is left", {{"largest_log2", 7}, {"own_zone_below", 0}}),
      with("... 1/64", {{"largest_log2", 7}, {"own_zone_below", 0}, {"divisor", 64}}),
      with("... 1/256", {{"largest_log2", 7}, {"own_zone_below", 0}, {"divisor", 256}}),
      with("... 1/256, own zone", {{"largest_log2", 7}, {"divisor", 256}}),
      with("handles of 256, 32, 2 MiB, 1/64", {{"largest_log2", 7}, {"own_zone_below", 0}, {"divisor", 64}, {"three_tiers", 1}}),
      with("... without cracking", {{"largest_log2", 7}, {"own_zone_below", 0}, {"divisor", 64}, {"three_tiers", 1}, {"crack", 0}}),
  };
}

}  // namespace page_model
