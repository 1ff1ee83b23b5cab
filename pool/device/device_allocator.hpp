// DeviceAllocator: where the blocks of one (device, context) come from. The interface that every policy is behind.
//
// Page heap and segment heap (grow, preallocate) and native blocks (platform, async, CUPOOL_IPC=native, the ladder's last rung)
// implement it. What it does not know: deferred frees, captures, the ladder.
// Thread rule: every call is made with the device's lock held. Calls that are said to call the driver let go of the lock
// while they do and hold it again on return; their caller has pinned the context (ContextRegistry), so it cannot die.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <limits>
#include <string>

#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/core/result.hpp"
#include "pool/core/thread_annotations.hpp"
#include "pool/device/block_flags.hpp"
#include "pool/device/block_life.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/stream_name.hpp"
#include "pool/heap/extent.hpp"
#include "pool/observe/snapshot.hpp"

namespace cupool::device {

struct Batch;
struct ContextPool;
class DeviceAllocator;

/// What one allocation asks for.
struct AllocationRequest {
  std::uint64_t bytes = 0;            ///< rounded to kBlockAlignment_bytes
  std::uint64_t requested_bytes = 0;  ///< what the program said
  StreamName stream;                  ///< of a stream-ordered call; identity 0: a plain one
  std::uint32_t lane = 0;             ///< of the heap, that the stream may use besides what is everybody's
  std::uint8_t mempool = 0;           ///< index of the memory pool that the program named; 0: none
  BlockLife life = BlockLife::context;
  std::uint8_t keeper = 0;   ///< number of the magazine that asks for itself; 0: none
  bool is_anywhere = false;  ///< in any zone (backing pages)
  bool may_strand = false;   ///< any hole will do, also one whose rest nobody could have elsewhere then
  bool may_split = false;    ///< and one in a region that was made for another block, which could go back (backing segments)
};

/// What hangs on heap::Region::owner for every region of ours.
struct RegionInfo {
  ContextPool* home = nullptr;
  DeviceAllocator* allocator = nullptr;
  std::uint32_t sync_memops_blocks = 0;  ///< live blocks with SYNC_MEMOPS; the driver's flag is on while > 0
  bool is_native = false;                ///< the region is one block: the driver knows it as an allocation of its own
  bool is_paged = false;                 ///< the region is reserved addresses with pages mapped under them
  bool is_of_one_block = false;          ///< a region of segments, as large as the block that it was made for (RegionGrowth)
};

inline RegionInfo& info_of(const heap::Extent& extent) { return *static_cast<RegionInfo*>(extent.region->owner); }

/// What is wanted of release() and trim() when all that there is may go.
inline constexpr std::uint64_t kEverything_bytes = std::numeric_limits<std::uint64_t>::max();

/// One row of the address map, free ones too. `region`: its index there.
void append_block(const heap::Extent& extent, std::uint32_t region, const TickConverter& time, observe::DeviceSnapshot& out);

/// Sums over one allocator, all exact; or over several.
struct HeapFigures {
  std::uint64_t region_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t largest_free_bytes = 0;
  std::uint64_t wholly_free_bytes = 0;
  std::uint64_t inactive_split_bytes = 0;
  std::uint64_t largest_free_remapped_bytes = 0;  ///< equals largest_free_bytes where nothing can be remapped
  std::uint64_t looks = 0;                        ///< so many holes were looked at for this

  void add(const HeapFigures& other);
};

/// A block that had to be made, and whether the allocator got less memory than it would have liked.
struct Growth {
  heap::Extent* extent = nullptr;
  bool backed_off = false;
};

class DeviceAllocator {
 public:
  DeviceAllocator() = default;
  virtual ~DeviceAllocator() = default;
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;

  // --- no driver call ---------------------------------------------------------------------------------
  /// A live block from memory that is free now, or nullptr. Throws std::bad_alloc.
  virtual heap::Extent* allocate(DeviceState& device, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) = 0;
  /// Bytes of the hole that allocate() would cut such a block from, where it is in no lane; 0: there is none.
  virtual std::uint64_t fit_bytes([[maybe_unused]] DeviceState& device, [[maybe_unused]] std::uint64_t bytes) const CUPOOL_REQUIRES(device.lock) {
    return 0;
  }
  /// Memory that moves in pieces larger than the block: Σ the empty pieces that are no longer empty once it lies where allocate() would cut it from;
  virtual std::uint64_t occupies_bytes([[maybe_unused]] DeviceState& device, [[maybe_unused]] std::uint64_t bytes) const
      CUPOOL_REQUIRES(device.lock) {
    return 0;
  }
  /// and if it lay where `deferred`, of as many bytes or more, begins, and all that is deferred beside it were free.
  virtual std::uint64_t occupies_bytes([[maybe_unused]] DeviceState& device, const heap::Extent&, [[maybe_unused]] std::uint64_t bytes) const
      CUPOOL_REQUIRES(device.lock) {
    return 0;
  }
  /// The block goes on as another extent, which lies with others of that keeper. Throws std::bad_alloc with nothing changed.
  virtual heap::Extent* rehome(heap::Extent* block, std::uint8_t) { return block; }
  /// live -> deferred.
  virtual void defer(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) = 0;
  /// live or deferred -> free: nothing on the GPU can touch it any more.
  virtual void recycle(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) = 0;
  /// The live or deferred block that begins at `address`.
  virtual heap::Extent* find(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) = 0;
  /// The extent, free ones too, that contains `address`.
  virtual heap::Extent* find_containing(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) = 0;
  /// live or deferred -> free, for the users of `lane` only.
  virtual void recycle_in_lane(DeviceState& device, heap::Extent* extent, std::uint32_t) CUPOOL_REQUIRES(device.lock) { recycle(device, extent); }
  /// A lane (see heap/extent_heap.hpp), or 0 where there are none. Throws std::bad_alloc.
  virtual std::uint32_t add_lane() { return 0; }
  virtual void remove_lane(std::uint32_t) {}
  virtual std::uint64_t lane_bytes(std::uint32_t) const { return 0; }
  /// Makes a hole of `bytes` in the lane out of what it and everybody have side by side: true when there is one now.
  virtual bool gather(std::uint32_t, std::uint64_t) { return false; }
  /// What is free in the lane becomes deferred, and is pushed on `batch`.
  virtual void drain_lane(std::uint32_t, Batch&) {}
  /// These bytes, free and part of one hole, become a deferred block of their own; nullptr where they are not. Throws std::bad_alloc.
  virtual heap::Extent* set_aside(std::uint64_t, std::uint64_t) { return nullptr; }
  /// The memory behind the live block `extent` keeps its address, also after its free, as long as other memory will do.
  virtual void pin([[maybe_unused]] DeviceState& device, const heap::Extent&) CUPOOL_REQUIRES(device.lock) {}
  /// What nobody can have as one piece, or as memory of another context, as long as the live block `extent` is not free: more than its own bytes
  /// where it alone keeps free memory apart.
  virtual std::uint64_t withheld_bytes(const heap::Extent& extent) const { return extent.bytes; }
  virtual HeapFigures figures(DeviceState& device) const CUPOOL_REQUIRES(device.lock) = 0;
  /// figures() with what streams keep for themselves as everybody's, which it is for a request that needs it: what reports show. Exact where
  /// `least_bytes` is 1; else what is in smaller holes stays theirs.
  virtual HeapFigures figures_of_all_lanes(DeviceState& device, [[maybe_unused]] std::uint64_t least_bytes) const CUPOOL_REQUIRES(device.lock) {
    return figures(device);
  }
  /// figures() if every deferred free had completed; adds to `evidence` what keeps free memory in pieces. One pass over all blocks: O(blocks).
  virtual HeapFigures survey(DeviceState& device, observe::OomEvidence& evidence) const CUPOOL_REQUIRES(device.lock) = 0;
  /// The context is gone: forgets every region, with `visitor.lost(extent)` for each block, and unbooks them.
  struct LossVisitor {
    virtual void lost(heap::Extent& extent) = 0;
    virtual void stays(heap::Extent& extent) = 0;  ///< of outlive()

   protected:
    ~LossVisitor() = default;
  };
  virtual void abandon(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) = 0;
  /// The same, but where memory is no context's live blocks of memory pools stay, with what they lie in: true when there are any. Everything else
  /// there is free then, and to be released.
  virtual bool outlive(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) {
    abandon(device, visitor);
    return false;
  }
  /// Would outlive() let blocks stay?
  virtual bool can_outlive() const { return false; }
  /// Is anything live or deferred? O(blocks).
  virtual bool holds_blocks() const { return true; }
  /// Appends this allocator's regions and blocks to the address map.
  virtual void append_map(DeviceState& device, const TickConverter& time, observe::DeviceSnapshot& out) const CUPOOL_REQUIRES(device.lock) = 0;
  /// A thread has been in one call of the driver's for so long that it may be waiting for work which waits for whoever asks.
  virtual bool is_stalled([[maybe_unused]] DeviceState& device) const CUPOOL_REQUIRES(device.lock) { return false; }
  /// So much should go back before a block of `bytes` has new memory: what is free would not serve it, and is much.
  virtual std::uint64_t exchange_bytes([[maybe_unused]] DeviceState& device, [[maybe_unused]] std::uint64_t bytes) const
      CUPOOL_REQUIRES(device.lock) {
    return 0;
  }
  /// The driver has never let it use what it mapped, and is not asked again: every block is a call of its own to the driver.
  virtual bool never_opens() const { return false; }
  /// The last time there was memory, and the driver did not map or open it (the kernel's count of mappings may be out).
  virtual bool is_out_of_mappings() const { return false; }
  /// What is free goes back to the driver without waiting for work that runs.
  virtual bool releases_in_order([[maybe_unused]] const DeviceState& device) const { return false; }
  /// Could remap() ever serve?
  virtual bool can_move() const { return false; }
  /// A block had to lie among blocks of other sizes: so may the next ones.
  virtual void open_zones() {}
  virtual std::string check(DeviceState& device) const CUPOOL_REQUIRES(device.lock) = 0;

  // --- may call the driver; the lock is not held meanwhile ----------------------------------------------
  /// A block of `request` in memory new from the driver, charged to the limit. CUDA_ERROR_OUT_OF_MEMORY when limit or
  /// driver refuse; any other error as the driver gave it. Precondition: `home.context` is current.
  virtual Result<Growth> grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) = 0;
  /// So much more memory, about, for blocks to come; not where another thread brings some. Preconditions as grow()'s.
  virtual Status grow_ahead([[maybe_unused]] DeviceState& device, ContextPool&, std::uint64_t) CUPOOL_REQUIRES(device.lock) { return {}; }
  /// The same by moving memory that nobody uses to other addresses, without taking more than is needed besides.
  virtual Result<Growth> remap([[maybe_unused]] DeviceState& device, ContextPool&, const AllocationRequest&) CUPOOL_REQUIRES(device.lock) {
    return Error{CUDA_ERROR_OUT_OF_MEMORY, "remap"};
  }
  /// The same for a block that has a hole which allocate() refused for what it would strand: elsewhere, with nothing stranded.
  virtual Result<Growth> crack([[maybe_unused]] DeviceState& device, ContextPool&, const AllocationRequest&) CUPOOL_REQUIRES(device.lock) {
    return Error{CUDA_ERROR_OUT_OF_MEMORY, "crack"};
  }
  /// `bytes` (a multiple of 2 MiB) of free memory, new from the driver and charged to the limit. Precondition: as grow's.
  virtual Status reserve([[maybe_unused]] DeviceState& device, ContextPool&, std::uint64_t) CUPOOL_REQUIRES(device.lock) {
    return Error{CUDA_ERROR_NOT_SUPPORTED, "reserve"};
  }
  /// What abandon() has left behind goes back to the driver.
  virtual void release_abandoned([[maybe_unused]] DeviceState& device) CUPOOL_REQUIRES(device.lock) {}
  /// Work of device `ordinal` may reach every block from now on, those to come as well. cuMemAlloc memory needs nothing for it.
  virtual Status share([[maybe_unused]] DeviceState& device, int) CUPOOL_REQUIRES(device.lock) { return {}; }
  /// Gives wholly free memory back until at least `wanted_bytes` (`at_most`: no more than that) went or none is left; returns what went. The driver
  /// synchronises the device for it: never while anything captures.
  virtual std::uint64_t release(DeviceState& device, ContextPool& home, std::uint64_t wanted_bytes, bool at_most) CUPOOL_REQUIRES(device.lock) = 0;
  /// Is anything there that was taken from the driver for a request which then could not be served, and that nothing has used since?
  virtual bool has_unused() const { return false; }
  /// Gives that back; returns what went. Calls the driver.
  virtual std::uint64_t release_unused([[maybe_unused]] DeviceState& device) CUPOOL_REQUIRES(device.lock) { return 0; }
};

}  // namespace cupool::device
