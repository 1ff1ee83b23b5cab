// MemoryPool: stream-ordered memory (cuMemPool*, cuMemAllocAsync).
//
// A range that was freed on a stream may serve the same stream at once, whose order protects the bytes; a stream that has waited for the free by an
// event; any stream once the free has completed; and any other stream behind the free, where the pool allows internal dependencies. What no
// allocation holds stays reserved, and at the next synchronisation up to the release threshold. Small ranges share device memory: a granule is cut
// into slots of one size, a power of two. Thread rule: guarded by the simulator's lock.
#pragma once

#include <cuda.h>

#include <compare>
#include <cstdint>
#include <map>
#include <unordered_map>

#include "tests/sim/allocation.hpp"

namespace cusim {

/// Bytes of a pool that no allocation holds; they stay reserved until trimmed.
struct PooledRange {
  Allocation* backing = nullptr;  ///< the device memory behind it
  std::uint64_t offset = 0;       ///< in that
  std::size_t bytes = 0;
  OperationPtr freed;          ///< completes when the last holder's stream has passed its free
  std::uint64_t freed_on = 0;  ///< id of that stream
  std::size_t count = 1;       ///< the entry stands for so many ranges, one behind the other; more than one only if they were never allocated
};

/// The vacant ranges of a pool, and how much of each piece of the device's memory they are: synchronisations ask whether a whole piece could go.
class VacantRanges {
 public:
  using Ranges = std::multimap<std::size_t, PooledRange>;  ///< by bytes

  Ranges::iterator begin() { return ranges_.begin(); }
  Ranges::iterator end() { return ranges_.end(); }
  Ranges::iterator lower_bound(std::size_t bytes) { return ranges_.lower_bound(bytes); }
  Ranges::iterator upper_bound(std::size_t bytes) { return ranges_.upper_bound(bytes); }
  bool has_whole_piece() const { return whole_pieces_ != 0; }

  void put(const PooledRange& range, Ranges::iterator before) {
    std::size_t& bytes = bytes_of_[range.backing];
    bytes += range.bytes * range.count;
    if (bytes == range.backing->bytes) ++whole_pieces_;
    ranges_.emplace_hint(before, range.bytes, range);
  }
  /// Takes one of the ranges that the entry stands for.
  PooledRange take(Ranges::iterator range) {
    PooledRange taken = range->second;
    if (taken.count == 1) {
      erase(range);
      return taken;
    }
    take_from_piece(taken.backing, taken.bytes);
    range->second.offset += taken.bytes;
    --range->second.count;
    taken.count = 1;
    return taken;
  }
  /// Removes the entry with all its ranges; returns the one behind it.
  Ranges::iterator erase(Ranges::iterator range) {
    take_from_piece(range->second.backing, range->second.bytes * range->second.count);
    return ranges_.erase(range);
  }

 private:
  void take_from_piece(Allocation* backing, std::size_t bytes) {
    const auto piece = bytes_of_.find(backing);
    if (piece->second == backing->bytes) --whole_pieces_;
    piece->second -= bytes;
    if (piece->second == 0) bytes_of_.erase(piece);
  }

  Ranges ranges_;
  std::unordered_map<Allocation*, std::size_t> bytes_of_;
  std::size_t whole_pieces_ = 0;
};

/// Of what kind a pool's memory is, and where.
struct PoolPlace {
  CUmemAllocationType type = CU_MEM_ALLOCATION_TYPE_PINNED;
  CUmemLocationType where = CU_MEM_LOCATION_TYPE_DEVICE;
  int id = 0;  ///< 0 where the location has none
  auto operator<=>(const PoolPlace&) const = default;
  bool is_managed() const { return type == CU_MEM_ALLOCATION_TYPE_MANAGED; }
  /// Pages of the host, which no device is charged for.
  bool is_of_host() const { return is_managed() || where != CU_MEM_LOCATION_TYPE_DEVICE; }
};

struct MemoryPool {
  std::uint64_t handle = 0;
  int device = 0;  ///< -1: pages of the host
  PoolPlace place;
  bool is_default = false;
  bool destroyed = false;  ///< lives until its last allocation is freed
  std::uint64_t release_threshold = 0;
  std::uint64_t max_bytes = 0;  ///< 0: none
  unsigned handle_types = 0;    ///< what it could be shared as
  unsigned usage = 0;           ///< CU_MEM_POOL_CREATE_USAGE_*
  int follow_event_dependencies = 1;
  int allow_opportunistic = 1;
  int allow_internal_dependencies = 1;
  std::uint64_t used = 0, used_high = 0, reserved = 0, reserved_high = 0;
  std::map<int, CUmemAccess_flags> access;  ///< of devices other than its own
  VacantRanges vacant;                      ///< never of pages of the host
};

/// The pools of one place.
struct PlacePools {
  MemoryPool* standard = nullptr;
  MemoryPool* current = nullptr;
};

}  // namespace cusim
