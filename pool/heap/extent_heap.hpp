// ExtentHeap: where blocks lie inside regions. Geometry only: addresses are numbers, there is no device behind them.
//
// O(1): two-level bitmap bins over free extents (TLSF), host-side boundary tags (neighbour links), coalescing
// inside a region, never across regions. Owns every Extent; extents come from a slab arena and are recycled.
// Thread rule: none of its own; the device pool's lock protects it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace cupool::heap {

enum class ExtentState : std::uint8_t { free, live, deferred };

struct Region;

/// A run of bytes in one region: a free hole, a live block, or a block whose free waits for the GPU.
/// The neighbour links are owned by the heap. The owner's fields are for the device pool; the heap never reads them.
struct Extent {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;                 ///< multiple of kBlockAlignment_bytes
  Extent* previous = nullptr;              ///< neighbour by address in the same region
  Extent* next = nullptr;
  Extent* bin_previous = nullptr;          ///< free: bin list; deferred: the owner's batch list
  Extent* bin_next = nullptr;
  Region* region = nullptr;
  std::uint64_t requested_bytes = 0;       ///< owner's
  std::uint64_t buffer_id = 0;             ///< owner's
  std::uint64_t allocated_ticks = 0;       ///< owner's
  std::uint32_t site = 0;                  ///< owner's
  ExtentState state = ExtentState::free;
  std::uint8_t flags = 0;                  ///< owner's
};

/// One contiguous range that came from the driver as a whole and goes back as a whole.
struct Region {
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  Extent* first = nullptr;
  std::uint64_t free_bytes = 0;            ///< Σ free extents; == bytes when wholly free
  std::uint32_t index = 0;                 ///< stable while the region lives; reused afterwards
  void* owner = nullptr;                   ///< the device pool's
};

class ExtentHeap {
 public:
  ExtentHeap();
  ~ExtentHeap();
  ExtentHeap(const ExtentHeap&) = delete;
  ExtentHeap& operator=(const ExtentHeap&) = delete;

  /// Adds [address, address + bytes) as one free extent. Preconditions: 512-aligned, disjoint from every other region.
  Region* add_region(std::uint64_t address, std::uint64_t bytes, void* owner);
  /// Forgets a wholly free region. Precondition: region->free_bytes == region->bytes.
  void remove_region(Region* region);
  /// Forgets a region whatever it holds, calling `on_extent` for each live or deferred extent first.
  template <class F> void abandon_region(Region* region, F&& on_extent);

  /// A block of exactly round(bytes) carved from the best of a few candidates: the tightest, then the lowest
  /// address; nullptr when no hole fits. State live on return. O(1).
  Extent* allocate(std::uint64_t bytes);
  /// live or deferred -> free, coalesced with free neighbours. Returns the resulting hole. O(1).
  Extent* free(Extent* extent);
  /// live -> deferred: its bytes stay out of every bin.
  void defer(Extent* extent);

  /// The block that begins at `address` (live or deferred), or nullptr. O(1).
  Extent* find(std::uint64_t address) const;
  /// The extent (any state) that contains `address`, or nullptr when no region does. O(log64 region).
  Extent* find_containing(std::uint64_t address) const;

  std::uint64_t region_bytes() const;
  std::uint64_t free_bytes() const;
  std::uint64_t largest_free_bytes() const;     ///< exact, from the highest non-empty bin
  std::uint64_t wholly_free_bytes() const;      ///< Σ bytes of regions with nothing in them
  std::uint64_t inactive_split_bytes() const;   ///< free bytes in regions that hold something
  std::uint64_t metadata_bytes() const;         ///< host memory held by this heap
  /// Largest hole if every deferred extent were free, and bytes of regions that would then be wholly free. O(extents).
  struct Projection { std::uint64_t largest_free_bytes; std::uint64_t wholly_free_bytes; };
  Projection project_deferred_free() const;

  template <class F> void for_each_region(F&& visit) const;           ///< in address order
  template <class F> void for_each_extent(const Region& region, F&& visit) const;
  /// The first broken invariant as a sentence, or an empty string. O(extents).
  std::string check() const;
};

}  // namespace cupool::heap
