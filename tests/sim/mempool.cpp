// Reserving, reusing and trimming the memory of pools.
#include "tests/sim/mempool.hpp"

#include <algorithm>

#include "tests/sim/simulator.hpp"

namespace cusim {
namespace {

std::uint64_t charged(const Allocation& backing) {
  return (backing.bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
}

bool is_free_for(const PooledRange& range, const Stream& stream) {
  return range.freed == nullptr || range.freed->done || range.freed_on == stream.id;
}

}  // namespace

MemoryPool& Simulator::default_pool(int ordinal) {
  Device& device = *devices[static_cast<std::size_t>(ordinal)];
  if (device.default_pool == nullptr) {
    auto pool = std::make_unique<MemoryPool>();
    pool->handle = new_handle();
    pool->device = ordinal;
    pool->is_default = true;
    device.default_pool = pool.get();
    device.current_pool = pool.get();
    pools.emplace(pool->handle, std::move(pool));
  }
  return *device.default_pool;
}

std::optional<PooledRange> Simulator::take_pooled(MemoryPool& pool, std::size_t bytes, const Stream& stream) {
  // Best fit, but never a range more than twice as large: the driver's pool splits, this one does not.
  auto waiting = pool.vacant.end();
  for (auto range = pool.vacant.lower_bound(bytes); range != pool.vacant.end(); ++range) {
    if (range->first > 2 * std::max<std::size_t>(bytes, kGranuleBytes)) break;
    if (is_free_for(range->second, stream)) {
      const PooledRange taken = range->second;
      pool.vacant.erase(range);
      return taken;
    }
    if (waiting == pool.vacant.end()) waiting = range;
  }
  DeviceMemory& memory = devices[static_cast<std::size_t>(pool.device)]->memory;
  if (bytes > memory.capacity_bytes()) return std::nullopt;  // and nothing below overflows
  const std::size_t rounded = (bytes + kGranuleBytes - 1) / kGranuleBytes * kGranuleBytes;
  const auto fits = [&] { return pool.max_bytes == 0 || pool.reserved + rounded <= pool.max_bytes; };
  if (!fits()) trim_pool(pool, 0);
  const bool allowed = fits();
  Allocation* backing = allowed ? memory.allocate(rounded) : nullptr;
  if (backing == nullptr && allowed && trim_pools(pool.device)) backing = memory.allocate(rounded);
  if (backing != nullptr) {
    pool.reserved += rounded;
    pool.reserved_high = std::max(pool.reserved_high, pool.reserved);
    return PooledRange{backing, nullptr, 0};
  }
  if (waiting == pool.vacant.end() || pool.allow_internal_dependencies == 0) return std::nullopt;
  const PooledRange taken = waiting->second;
  pool.vacant.erase(waiting);
  return taken;
}

void Simulator::return_to_pool(Allocation& allocation, const OperationPtr& freed) {
  MemoryPool& pool = *allocation.pool;
  pool.used -= allocation.bytes;
  pool.vacant.emplace(allocation.backing->bytes, PooledRange{allocation.backing, freed, allocation.freed_on});
}

bool Simulator::trim_pool(MemoryPool& pool, std::uint64_t keep_bytes) {
  bool any = false;
  DeviceMemory& memory = devices[static_cast<std::size_t>(pool.device)]->memory;
  for (auto range = pool.vacant.begin(); range != pool.vacant.end() && pool.reserved > keep_bytes;) {
    // Never below what is to be kept, nor what the host has not seen the end of.
    const bool is_needed = pool.reserved - charged(*range->second.backing) < keep_bytes;
    if (is_needed || (range->second.freed != nullptr && !range->second.freed->done)) {
      ++range;
      continue;
    }
    pool.reserved -= charged(*range->second.backing);
    memory.release(range->second.backing);
    range = pool.vacant.erase(range);
    any = true;
  }
  return any;
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
