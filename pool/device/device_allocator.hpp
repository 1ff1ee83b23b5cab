// DeviceAllocator: the interface to whatever the blocks of one (device, context) come from.
//
// PageHeap and SegmentHeap (policies grow and preallocate) and NativeBlocks (platform, async, CUPOOL_IPC=native, the ladder's last rung) implement
// it. It knows nothing of deferred frees, captures or the ladder.
// Thread rule: every call is made with the device's lock held. Calls that may call the driver let go of the lock while they do and hold it again on
// return; their caller has pinned the context (ContextRegistry), so it cannot die meanwhile.
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
  std::uint64_t requested_bytes = 0;  ///< what the program asked for
  StreamName stream;                  ///< of a stream-ordered call; identity 0: a plain call
  std::uint32_t lane = 0;             ///< the lane that the stream may use besides what is free for everybody; 0: none
  bool lane_first = false;            ///< the lane is used before what is free for everybody, also where that would fit better
  std::uint8_t mempool = 0;           ///< index of the memory pool that the program named; 0: none
  BlockLife life = BlockLife::context;
  std::uint8_t keeper = 0;   ///< number of the magazine that asks for itself; 0: none
  bool is_anywhere = false;  ///< may lie in any zone (backing pages)
  bool may_strand = false;   ///< may leave the rest of its hole unusable for everybody else
  bool may_split = false;    ///< may split a free region that was made for another block and could be returned whole (backing segments)
};

/// What heap::Region::owner points to, for every region of the pool.
struct RegionInfo {
  ContextPool* home = nullptr;
  DeviceAllocator* allocator = nullptr;
  std::uint32_t sync_memops_blocks = 0;  ///< live blocks with SYNC_MEMOPS; the driver's flag is set while there are any
  bool is_native = false;                ///< the region is one block: the driver knows it as an allocation of its own
  bool is_paged = false;                 ///< the region is reserved addresses with pages mapped under them
  bool is_of_one_block = false;          ///< a region of segments, as large as the block that it was made for (RegionGrowth)
};

inline RegionInfo& info_of(const heap::Extent& extent) { return *static_cast<RegionInfo*>(extent.region->owner); }

/// The amount to ask release() and trim() for when everything may go.
inline constexpr std::uint64_t kEverything_bytes = std::numeric_limits<std::uint64_t>::max();

/// Appends one block, or one hole, to the address map. `region`: its index in `out`.
void append_block(const heap::Extent& extent, std::uint32_t region, const TickConverter& time, observe::DeviceSnapshot& out);

/// Sums over one allocator or several. In bytes, all exact.
struct HeapFigures {
  std::uint64_t region_bytes = 0;
  std::uint64_t free_bytes = 0;
  std::uint64_t largest_free_bytes = 0;
  std::uint64_t wholly_free_bytes = 0;
  std::uint64_t inactive_split_bytes = 0;
  std::uint64_t largest_free_remapped_bytes = 0;  ///< equals largest_free_bytes where nothing can be remapped
  std::uint64_t looks = 0;                        ///< holes that were looked at for these figures

  void add(const HeapFigures& other);
};

/// A block in new memory, and whether the allocator got less memory than it asked for first.
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
  /// New memory that joins what is free comes in multiples of this.
  virtual std::uint64_t unit_bytes() const { return kBlockAlignment_bytes; }
  /// Where memory moves in pieces larger than the block (pages): the bytes of empty pieces that a block of `bytes` would occupy where allocate()
  /// would place it.
  virtual std::uint64_t occupies_bytes([[maybe_unused]] DeviceState& device, [[maybe_unused]] std::uint64_t bytes) const
      CUPOOL_REQUIRES(device.lock) {
    return 0;
  }
  /// The same if the block lay where the given deferred block, of as many bytes or more, begins, and everything deferred beside that were free.
  virtual std::uint64_t occupies_bytes([[maybe_unused]] DeviceState& device, const heap::Extent&, [[maybe_unused]] std::uint64_t bytes) const
      CUPOOL_REQUIRES(device.lock) {
    return 0;
  }
  /// The block becomes another extent that lies with others of that magazine (`keeper`). Throws std::bad_alloc with nothing changed.
  virtual heap::Extent* rehome(heap::Extent* block, std::uint8_t) { return block; }
  /// live -> deferred.
  virtual void defer(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) = 0;
  /// live or deferred -> free. Precondition: no GPU work can touch it any more.
  virtual void recycle(DeviceState& device, heap::Extent* extent) CUPOOL_REQUIRES(device.lock) = 0;
  /// Makes two deferred blocks one, if they lie beside each other; nullptr: they do not.
  virtual heap::Extent* join(heap::Extent*, heap::Extent*) { return nullptr; }
  /// The live or deferred block that begins at `address`.
  virtual heap::Extent* find(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) = 0;
  /// The extent, free ones too, that contains `address`.
  virtual heap::Extent* find_containing(DeviceState& device, std::uint64_t address) CUPOOL_REQUIRES(device.lock) = 0;
  /// live or deferred -> free, for the users of `lane` only: later work of its stream may still follow work on it.
  virtual void recycle_in_lane(DeviceState& device, heap::Extent* extent, std::uint32_t) CUPOOL_REQUIRES(device.lock) { recycle(device, extent); }
  /// Makes a lane (see heap/extent_heap.hpp); 0 where the allocator has none. Throws std::bad_alloc.
  virtual std::uint32_t add_lane() { return 0; }
  virtual void remove_lane(std::uint32_t) {}
  virtual std::uint64_t lane_bytes(std::uint32_t) const { return 0; }
  /// Joins what is free in the lane and what is free for everybody side by side, until the lane has a hole of `bytes`; returns whether it has one
  /// now.
  virtual bool gather(std::uint32_t, std::uint64_t) { return false; }
  /// What is free in the lane becomes deferred and is pushed on the batch.
  virtual void drain_lane(std::uint32_t, Batch&) {}
  /// The range (address, bytes), which lies in one hole, becomes a deferred block; nullptr where it is not free. Throws std::bad_alloc.
  virtual heap::Extent* set_aside(std::uint64_t, std::uint64_t) { return nullptr; }
  /// The memory behind the live block must keep its address after the free too, as long as other memory will do for the next blocks.
  virtual void pin([[maybe_unused]] DeviceState& device, const heap::Extent&) CUPOOL_REQUIRES(device.lock) {}
  /// Bytes that nobody can have as one piece, or for another context, as long as this live block is not free: more than its own where it alone keeps
  /// free memory apart.
  virtual std::uint64_t withheld_bytes(const heap::Extent& extent) const { return extent.bytes; }
  virtual HeapFigures figures(DeviceState& device) const CUPOOL_REQUIRES(device.lock) = 0;
  /// figures() that count what is in lanes as free for everybody, as it is to a request that needs it; reports show these. Exact where `least_bytes`
  /// is 1; otherwise smaller holes in lanes are not joined with their neighbours.
  virtual HeapFigures figures_of_all_lanes(DeviceState& device, [[maybe_unused]] std::uint64_t least_bytes) const CUPOOL_REQUIRES(device.lock) {
    return figures(device);
  }
  /// figures() as if every deferred free had completed; adds to `evidence` what keeps free memory in pieces. O(blocks).
  virtual HeapFigures survey(DeviceState& device, observe::OomEvidence& evidence) const CUPOOL_REQUIRES(device.lock) = 0;
  /// The context is gone: forgets every region and takes it off the limit, with `visitor.lost(extent)` for each block.
  struct LossVisitor {
    virtual void lost(heap::Extent& extent) = 0;
    virtual void stays(heap::Extent& extent) = 0;  ///< called by outlive() for a block that stays

   protected:
    ~LossVisitor() = default;
  };
  virtual void abandon(DeviceState& device, LossVisitor& visitor) CUPOOL_REQUIRES(device.lock) = 0;
  /// As abandon(), but where memory does not belong to a context, live blocks of memory pools stay together with the memory they lie in; returns
  /// whether there are any. All the rest is free then, and is to be released. `also_deferred`: those whose free waits for its epoch stay as well.
  virtual bool outlive(DeviceState& device, LossVisitor& visitor, bool /*also_deferred*/) CUPOOL_REQUIRES(device.lock) {
    abandon(device, visitor);
    return false;
  }
  /// Can outlive() keep blocks?
  virtual bool can_outlive() const { return false; }
  /// After outlive(): can the memory serve another context beside the blocks that stayed?
  virtual bool can_serve_next() const { return false; }
  /// Is any block live or deferred? O(blocks).
  virtual bool holds_blocks() const { return true; }
  /// Appends this allocator's regions and blocks to the address map.
  virtual void append_map(DeviceState& device, const TickConverter& time, observe::DeviceSnapshot& out) const CUPOOL_REQUIRES(device.lock) = 0;
  /// Has a thread been in one driver call for so long that the call may be waiting for work that waits for the asking thread?
  virtual bool is_stalled([[maybe_unused]] DeviceState& device) const CUPOOL_REQUIRES(device.lock) { return false; }
  /// Bytes that should go back to the driver before a block of `bytes` gets new memory: much is free, and would not serve it.
  virtual std::uint64_t exchange_bytes([[maybe_unused]] DeviceState& device, [[maybe_unused]] std::uint64_t bytes) const
      CUPOOL_REQUIRES(device.lock) {
    return 0;
  }
  /// The driver has never granted access to mapped memory, and is not asked again: every block is a driver call of its own.
  virtual bool never_opens() const { return false; }
  /// At the last attempt there was memory, but the driver could not map it or open it (the kernel may be out of mappings).
  virtual bool is_out_of_mappings() const { return false; }
  /// Does free memory go back to the driver without waiting for running work?
  virtual bool releases_in_order([[maybe_unused]] const DeviceState& device) const { return false; }
  /// Can remap() ever serve?
  virtual bool can_move() const { return false; }
  /// A block had to lie among blocks of other sizes: the next ones may, too.
  virtual void open_zones() {}
  virtual std::string check(DeviceState& device) const CUPOOL_REQUIRES(device.lock) = 0;

  // --- may call the driver; the lock is not held meanwhile ----------------------------------------------
  /// A block for `request` in memory new from the driver, charged to the limit. CUDA_ERROR_OUT_OF_MEMORY when the limit or the driver refuses; any
  /// other error as the driver gave it. Precondition: `home.context` is current.
  virtual Result<Growth> grow(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock) = 0;
  /// About so many bytes of new memory for blocks to come; does nothing where another thread is bringing some. Preconditions as for grow().
  virtual Status grow_ahead([[maybe_unused]] DeviceState& device, ContextPool&, std::uint64_t) CUPOOL_REQUIRES(device.lock) { return {}; }
  /// As grow(), but by moving free memory to other addresses; takes only what is missing from the driver.
  virtual Result<Growth> remap([[maybe_unused]] DeviceState& device, ContextPool&, const AllocationRequest&) CUPOOL_REQUIRES(device.lock) {
    return Error{CUDA_ERROR_OUT_OF_MEMORY, "remap"};
  }
  /// As remap(), for a block whose hole allocate() refused because it would strand the rest: the block is placed elsewhere, and nothing is stranded.
  virtual Result<Growth> crack([[maybe_unused]] DeviceState& device, ContextPool&, const AllocationRequest&) CUPOOL_REQUIRES(device.lock) {
    return Error{CUDA_ERROR_OUT_OF_MEMORY, "crack"};
  }
  /// Brings `bytes` (a multiple of 2 MiB) of free memory, new from the driver and charged to the limit. Precondition: as for grow().
  virtual Status reserve([[maybe_unused]] DeviceState& device, ContextPool&, std::uint64_t) CUPOOL_REQUIRES(device.lock) {
    return Error{CUDA_ERROR_NOT_SUPPORTED, "reserve"};
  }
  /// Returns to the driver what abandon() has left behind.
  virtual void release_abandoned([[maybe_unused]] DeviceState& device) CUPOOL_REQUIRES(device.lock) {}
  /// Work of device `ordinal` may reach every block from now on, also those to come. cuMemAlloc memory needs nothing for it.
  virtual Status share([[maybe_unused]] DeviceState& device, int) CUPOOL_REQUIRES(device.lock) { return {}; }
  /// Gives wholly free memory back until at least `wanted_bytes` went (with `at_most`: no more than that), or none is left; returns the bytes that
  /// went. The driver synchronises the device for it: never while something captures.
  virtual std::uint64_t release(DeviceState& device, ContextPool& home, std::uint64_t wanted_bytes, bool at_most) CUPOOL_REQUIRES(device.lock) = 0;
  /// Is there memory that was taken from the driver for a request that then could not be served, and that nothing has used since?
  virtual bool has_unused() const { return false; }
  /// Gives that memory back; returns the bytes that went. Calls the driver.
  virtual std::uint64_t release_unused([[maybe_unused]] DeviceState& device) CUPOOL_REQUIRES(device.lock) { return 0; }
};

}  // namespace cupool::device
