// Reserving, reusing and trimming the memory of pools.
#include "tests/sim/mempool.hpp"

#include <algorithm>
#include <bit>
#include <iterator>
#include <map>
#include <set>
#include <vector>

#include "tests/sim/simulator.hpp"

namespace cusim {
namespace {

constexpr std::size_t kSmallestSlotBytes = 512;

constexpr std::size_t align_to(std::size_t bytes, std::size_t unit_bytes) { return (bytes + unit_bytes - 1) / unit_bytes * unit_bytes; }

/// Does a range of so many bytes share its granule with others?
bool is_slot(std::size_t bytes) { return bytes <= kGranuleBytes / 2; }

std::size_t rounded(std::size_t bytes) { return is_slot(bytes) ? std::max(std::bit_ceil(bytes), kSmallestSlotBytes) : whole_granules(bytes); }

/// Whether what `stream` waits for already waits for `earlier`; not looked for beyond so many operations.
bool is_ordered_behind(const OperationPtr& earlier, const Stream& stream) {
  constexpr std::size_t kReach = 64;
  if (stream.tail == nullptr || stream.tail->done) return false;
  std::vector<const Operation*> seen = {earlier.get()};
  for (std::size_t next = 0; next < seen.size() && next < kReach; ++next) {
    if (seen[next] == stream.tail.get()) return true;
    for (const OperationPtr& later : seen[next]->successors) {
      if (std::find(seen.begin(), seen.end(), later.get()) == seen.end()) seen.push_back(later.get());
    }
  }
  return false;
}

bool is_over(const PooledRange& range) { return range.freed == nullptr || range.freed->done; }

bool is_free_for(const PooledRange& range, const MemoryPool& pool, const Stream& stream) {
  if (is_over(range) || range.freed_on == stream.id) return true;
  return pool.follow_event_dependencies != 0 && is_ordered_behind(range.freed, stream);
}

/// Joins neighbours that are free for every stream.
void join_neighbours(VacantRanges& vacant) {
  std::map<std::pair<Allocation*, std::uint64_t>, PooledRange> by_place;
  for (auto range = vacant.begin(); range != vacant.end();) {
    const PooledRange& one = range->second;
    if (is_over(one)) by_place.emplace(std::pair(one.backing, one.offset), one);
    range = is_over(one) ? vacant.erase(range) : std::next(range);
  }
  for (auto range = by_place.begin(); range != by_place.end();) {
    PooledRange joined = range->second;
    while (++range != by_place.end() && range->second.backing == joined.backing && range->second.offset == joined.offset + joined.bytes)
      joined.bytes += range->second.bytes;
    joined.freed = nullptr;
    vacant.put(joined, vacant.upper_bound(joined.bytes));
  }
}

/// The first `bytes` of a vacant range; the rest stays vacant.
PooledRange take_part(VacantRanges& vacant, VacantRanges::Ranges::iterator range, std::size_t bytes) {
  PooledRange taken = vacant.take(range);
  if (taken.bytes == bytes) return taken;
  PooledRange rest = taken;
  rest.offset += bytes;
  rest.bytes -= bytes;
  vacant.put(rest, vacant.upper_bound(rest.bytes));
  taken.bytes = bytes;
  return taken;
}

}  // namespace

MemoryPool& Simulator::default_pool(int ordinal) {
  Device& device = *devices[static_cast<std::size_t>(ordinal)];
  if (device.default_pool == nullptr) {
    auto pool = std::make_unique<MemoryPool>();
    pool->handle = new_handle();
    pool->device = ordinal;
    pool->place.id = ordinal;
    pool->is_default = true;
    device.default_pool = pool.get();
    device.current_pool = pool.get();
    pools.emplace(pool->handle, std::move(pool));
  }
  return *device.default_pool;
}

PlacePools& Simulator::host_pools(const PoolPlace& place) {
  PlacePools& found = pools_of_hosts[place];
  if (found.standard == nullptr) {
    auto pool = std::make_unique<MemoryPool>();
    pool->handle = new_handle();
    pool->device = -1;
    pool->place = place;
    pool->is_default = true;
    found = {pool.get(), pool.get()};
    pools.emplace(pool->handle, std::move(pool));
  }
  return found;
}

/// As take_pooled, of a pool that grows by whole steps and divides them. [?] Where the device has no room for a step, the pool takes what the block
/// needs. Not modelled: a part of what a stream has freed and has not come to, whose earlier work touches all of it.
std::optional<PooledRange> Simulator::take_divided(MemoryPool& pool, std::size_t requested_bytes, const Stream& stream) {
  const std::size_t bytes = align_to(requested_bytes, kSmallestSlotBytes);
  const auto find = [&](bool may_wait) {
    auto range = pool.vacant.lower_bound(bytes);
    const auto serves = [&](const PooledRange& one) { return is_over(one) || (one.bytes == bytes && (may_wait || is_free_for(one, pool, stream))); };
    while (range != pool.vacant.end() && !serves(range->second)) ++range;
    return range;
  };
  auto range = find(false);
  if (range == pool.vacant.end()) {
    join_neighbours(pool.vacant);
    range = find(false);
  }
  for (const std::size_t step_bytes : {settings.pool_step_bytes, kGranuleBytes}) {
    if (range != pool.vacant.end()) break;
    Allocation* const backing = grow_pool(pool, align_to(bytes, step_bytes));
    if (backing == nullptr) continue;
    pool.vacant.put({backing, 0, backing->bytes, nullptr, 0}, pool.vacant.upper_bound(backing->bytes));
    range = find(false);
  }
  if (range == pool.vacant.end()) range = find(pool.allow_internal_dependencies != 0);
  if (range == pool.vacant.end()) return std::nullopt;
  return take_part(pool.vacant, range, bytes);
}

/// Takes `bytes` more of the device; null where it has no room, or the pool may not have so much.
Allocation* Simulator::grow_pool(MemoryPool& pool, std::size_t bytes) {
  DeviceMemory& memory = devices[static_cast<std::size_t>(pool.device)]->memory;
  const auto fits = [&] { return pool.max_bytes == 0 || pool.reserved + bytes <= pool.max_bytes; };
  if (!fits()) trim_pool(pool, 0);
  if (!fits()) return nullptr;
  Allocation* backing = memory.allocate(bytes);
  if (backing == nullptr && give_back_unused(pool.device)) backing = memory.allocate(bytes);
  if (backing == nullptr) return nullptr;
  pool.reserved += bytes;
  pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
  return backing;
}

std::optional<PooledRange> Simulator::take_pooled(MemoryPool& pool, std::size_t bytes, const Stream& stream) {
  if (bytes > devices[static_cast<std::size_t>(pool.device)]->memory.capacity_bytes()) return std::nullopt;  // and nothing below overflows
  if (settings.pool_step_bytes != 0) return take_divided(pool, bytes, stream);
  // Best fit, but never a range more than twice as large: the driver's pool splits, this one does not.
  auto waiting = pool.vacant.end();
  for (auto range = pool.vacant.lower_bound(bytes); range != pool.vacant.end(); ++range) {
    if (range->first > (is_slot(bytes) ? rounded(bytes) : 2 * std::max<std::size_t>(bytes, kGranuleBytes))) break;
    if (is_free_for(range->second, pool, stream)) return pool.vacant.take(range);
    if (waiting == pool.vacant.end()) waiting = range;
  }
  const std::size_t taken_bytes = std::max<std::size_t>(rounded(bytes), kGranuleBytes);
  if (Allocation* const backing = grow_pool(pool, taken_bytes)) {
    const std::size_t slot_bytes = rounded(bytes);
    const std::size_t others = taken_bytes / slot_bytes - 1;
    if (others != 0) pool.vacant.put({backing, slot_bytes, slot_bytes, nullptr, 0, others}, pool.vacant.upper_bound(slot_bytes));
    return PooledRange{backing, 0, slot_bytes, nullptr, 0};
  }
  if (waiting == pool.vacant.end() || pool.allow_internal_dependencies == 0) return std::nullopt;
  return pool.vacant.take(waiting);
}

void Simulator::return_to_pool(Allocation& allocation, const OperationPtr& freed) {
  MemoryPool& pool = *allocation.pool;
  pool.used -= allocation.bytes;
  if (allocation.host != nullptr) return;  // nothing is kept, see api_pool_host.cpp
  const std::size_t bytes = allocation.pooled_bytes;
  // Of slots, the last that was freed is the first to be looked at.
  const auto before = is_slot(bytes) ? pool.vacant.lower_bound(bytes) : pool.vacant.upper_bound(bytes);
  pool.vacant.put({allocation.backing, allocation.base - allocation.backing->base, bytes, freed, allocation.freed_on}, before);
}

bool Simulator::trim_pool(MemoryPool& pool, std::uint64_t keep_bytes) {
  // Only whole pieces of the device's memory go, and never what the host has not seen the end of.
  if (pool.reserved <= keep_bytes || !pool.vacant.has_whole_piece()) return false;
  std::map<Allocation*, std::uint64_t> idle_bytes;
  for (const auto& [bytes, range] : pool.vacant)
    if (is_over(range)) idle_bytes[range.backing] += bytes * range.count;
  DeviceMemory& memory = devices[static_cast<std::size_t>(pool.device)]->memory;
  std::set<Allocation*> gone;
  std::vector<Allocation*> pieces;  // the same, in order
  for (auto range = pool.vacant.begin(); range != pool.vacant.end();) {
    Allocation* backing = range->second.backing;
    const auto idle = idle_bytes.find(backing);
    // Never below what is to be kept.
    if (gone.count(backing) == 0 && idle != idle_bytes.end() && idle->second == backing->bytes && pool.reserved >= keep_bytes + backing->bytes) {
      pool.reserved -= backing->bytes;
      gone.insert(backing);
      pieces.push_back(backing);
    }
    range = gone.count(backing) != 0 ? pool.vacant.erase(range) : std::next(range);
  }
  for (Allocation* backing : pieces) memory.release(backing);
  return !pieces.empty();
}

bool Simulator::trim_pools(int device) {
  bool any = false;
  for (const auto& [handle, pool] : pools) {
    if (pool->device == device && trim_pool(*pool, 0)) any = true;
  }
  return any;
}

void Simulator::trim_to_thresholds(int device) {
  for (auto pool = pools.begin(); pool != pools.end();) {
    MemoryPool& each = *pool->second;
    if (each.device == device) trim_pool(each, each.destroyed ? 0 : each.release_threshold);
    pool = each.destroyed && each.reserved == 0 ? pools.erase(pool) : std::next(pool);
  }
}

}  // namespace cusim
