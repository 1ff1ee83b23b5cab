// Magazine: one thread's free blocks of one context (small ones, and those of a few larger sizes), and the blocks that it has freed lately.
//
// A hit takes no lock that other threads take, except to close the magazine (owner_lock.hpp). What the thread frees is not reused from here: it
// passes through an epoch of deferred frees like every block, in batches. Magazines hold addresses, and never memory that is short: a miss anywhere
// on the device closes all of them, unless what it wants is on its way back; then everything is where it would be without them.
// An operation that would set a new peak, and anything out of the ordinary, is left to the device's lock, so that reports stay exact.
// Lock order: the device's lock, then a magazine's. Source of the idea: Bonwick and Adams, Magazines and Vmem (2001).
#pragma once

#include <cuda.h>
#include <pthread.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>

#include "pool/core/bytes.hpp"
#include "pool/core/clock.hpp"
#include "pool/core/thread_annotations.hpp"
#include "pool/device/block_table.hpp"
#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_allocator.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/rack.hpp"
#include "pool/device/step_ends.hpp"
#include "pool/observe/event.hpp"
#include "pool/observe/live_page.hpp"
#include "pool/observe/timeline.hpp"

namespace cupool::device {

struct ContextPool;
struct Magazine;

inline constexpr std::size_t kSmallSizes = kLargestSmallBlock_bytes / kBlockAlignment_bytes;
inline std::size_t small_size_index(std::uint64_t bytes) { return static_cast<std::size_t>(bytes / kBlockAlignment_bytes - 1); }

inline constexpr std::uint64_t kLargestKept_bytes = 4 * kGiB;

/// The state of the device that its magazines read and do not change.
struct MagazineSurroundings {
  const observe::Counters& counters;
  const PoolServices& services;
  const std::atomic<bool>& peak_is_new;
  const StepEnds& steps;
  const std::atomic<bool>& has_several;  ///< the device has more than one magazine
  const MempoolUses& mempools;
};

/// The asking thread, and its magazine for the context in which it asks.
struct MagazineUser {
  bool may_keep = true;  ///< false: the thread is about to end
  Magazine*& magazine;
};

/// What the magazines of one context share.
struct KeptBlocks {
  BlockTable table;
  std::array<Rack, kSmallSizes> depot;  ///< blocks whose free is complete and that no thread keeps, for the next refill
  std::uint64_t bytes = 0;              ///< Σ depot
};

/// The three gauges of live blocks whose peaks are exact.
struct LiveSum {
  std::int64_t bytes = 0;
  std::int64_t requested_bytes = 0;
  std::int64_t blocks = 0;
};

struct alignas(128) Magazine {
  static constexpr std::uint32_t kMostFrees = 255;  ///< frees kept here; with the next one they join the deferred frees
  static constexpr std::uint32_t kMostBatch = 256;
  static constexpr std::uint64_t kMost_bytes = kGiB;  ///< bytes of frees kept here, but where one size goes round alone
  static constexpr std::uint64_t kMostBatch_bytes = kMiB;
  static constexpr std::size_t kStreams = 8;  ///< streams that one thread keeps blocks for
  static constexpr std::uint32_t kMostFreesWithLarge = 63;
  static constexpr std::uint64_t kKeptShare = 32;  ///< a thread may keep this part of the memory that the program has never needed
  static constexpr std::uint64_t kLeastLarge = 2;  ///< a large size is kept only if this many of its blocks fit into the budget
  /// A stream's blocks of a large size are kept once one was wanted soon after a free this many times in a row.
  static constexpr std::uint32_t kHot = 8;
  /// Of one small size for one stream: a stream that only frees would keep more from the others.
  static constexpr std::uint64_t kMostOfSize_bytes = 16 * kMiB;
  static constexpr std::uint64_t kSoon = 8;   ///< "soon", in operations of the magazine, with up to two streams
  static constexpr std::size_t kParcels = 8;  ///< batches of frees that may be under way at once

  Magazine(const MagazineSurroundings& seen, observe::LiveShard& counts, std::uint8_t number_of_it)
      : around(seen), shard(counts), number(number_of_it), timeline(seen.services.options.timeline_events) {
    for (Parcel& parcel : parcels) put(parcel, spare);
  }

  /// A block of `bytes` (rounded, at most kLargestKept_bytes) for a request of `requested_bytes`; 0: ask the device.
  CUdeviceptr allocate(CUcontext asking, std::uint64_t requested_bytes, std::uint64_t bytes, std::uint16_t thread) CUPOOL_EXCLUDES(lock);
  /// Keeps the block for the next batch of frees. False: nothing was done, ask the device.
  bool free(CUdeviceptr address, std::uint16_t thread) CUPOOL_EXCLUDES(lock);
  /// As allocate(), from what this thread freed on that stream; counted to a memory pool.
  CUdeviceptr allocate_on(CUcontext asking, std::uint64_t identity, std::uint8_t for_mempool, std::uint64_t requested_bytes, std::uint64_t bytes,
                          std::uint16_t thread) CUPOOL_EXCLUDES(lock);
  /// As free(), in the order of a stream of `asking`, which may have the block again at once.
  bool free_on(CUdeviceptr address, CUcontext asking, std::uint64_t identity, std::uint16_t thread) CUPOOL_EXCLUDES(lock);
  /// Puts the block into the rack of its size; false: there is none, or no room in it.
  bool keep(StreamRacks& racks_of_stream, heap::Extent* extent) CUPOOL_REQUIRES(lock);
  /// Moves one completed batch of frees into the racks. False: there is none.
  bool open_parcel() CUPOOL_REQUIRES(lock);
  /// The rack for a size; null for a large size that has none.
  Rack* rack_of(std::uint64_t bytes) CUPOOL_REQUIRES(lock) {
    if (bytes <= kLargestSmallBlock_bytes) return &racks[small_size_index(bytes)];
    SizedRack& large = large_racks.at(bytes);
    return large.bytes == bytes ? &large.rack : nullptr;
  }
  /// What this thread keeps for a stream; null: nothing.
  StreamRacks* racks_of(std::uint64_t identity) CUPOOL_REQUIRES(lock) {
    for (StreamRacks& one : streams)
      if (one.stream.identity == identity) return &one;
    return nullptr;
  }
  /// A large block whose size does not come and go becomes a hole at once: kept, it would push other blocks elsewhere.
  static bool is_cold(const SizedRack& sized, std::uint64_t bytes) {
    return bytes > kLargestSmallBlock_bytes && (sized.bytes != bytes || sized.heat < kHot);
  }
  /// A block is allocated: did that come soon after a free?
  void warm(SizedRack& sized) CUPOOL_REQUIRES(lock) { sized.heat = operations - sized.rack.used <= soon ? std::min(sized.heat + 1, kHot) : 0; }
  static void put(Parcel& parcel, Parcel*& list) {
    parcel.next = list;
    list = &parcel;
  }

  OwnerLock lock;
  CUcontext context CUPOOL_GUARDED_BY(lock) = nullptr;  ///< null: closed
  const BlockTable* table CUPOOL_GUARDED_BY(lock) = nullptr;
  std::uint64_t operations CUPOOL_GUARDED_BY(lock) = 0;  ///< the clock of its racks: allocations here, and calls that asked the device
  std::size_t aged CUPOOL_GUARDED_BY(lock) = 0;          ///< racks whose age was checked
  const MagazineSurroundings& around;
  observe::LiveShard& shard;  ///< what happened here since its counts were last flushed to the device
  const std::uint8_t number;  ///< from 1; the keeper number of the blocks that it takes from holes
  std::uint64_t next_buffer_id CUPOOL_GUARDED_BY(lock) = 0;
  std::uint64_t end_buffer_id CUPOOL_GUARDED_BY(lock) = 0;
  std::uint64_t budget_bytes = 0;       ///< at most kMost_bytes, less where memory is short. Written under both locks
  std::uint64_t kept_budget_bytes = 0;  ///< for what is kept: completed frees and streams' blocks. Likewise
  std::uint64_t free_budget_bytes = 0;  ///< for frees that have no event yet. Likewise
  /// Where there are several magazines: how much more than the device knows may be live through this one, its part of the distance between what is
  /// live and the peaks. Without it two magazines could together reach a peak that neither sees. Written under both locks.
  LiveSum allowance;
  std::uint64_t taken_bytes CUPOOL_GUARDED_BY(lock) = 0;  ///< taken out of the racks since the last flush, less what streams put in
  std::uint64_t freed_bytes CUPOOL_GUARDED_BY(lock) = 0;
  heap::Extent* freed CUPOOL_GUARDED_BY(lock) = nullptr;  ///< through bin_next, newest first
  std::uint32_t freed_count CUPOOL_GUARDED_BY(lock) = 0;
  Parcel* complete CUPOOL_GUARDED_BY(lock) = nullptr;
  Parcel* emptied CUPOOL_GUARDED_BY(lock) = nullptr;
  std::array<Rack, kSmallSizes> racks CUPOOL_GUARDED_BY(lock) = {};
  SizedRacks<32> large_racks CUPOOL_GUARDED_BY(lock) = {};
  heap::Extent* misfits CUPOOL_GUARDED_BY(lock) = nullptr;  ///< completed frees whose size has no rack any more; through bin_next
  std::array<StreamRacks, kStreams> streams = {};  ///< the racks are guarded by `lock`; which stream they are for is written under both locks
  std::uint64_t soon = kSoon;                      ///< kSoon, or more where more streams have racks, since they take turns. Likewise
  std::uint64_t ordered_bytes CUPOOL_GUARDED_BY(lock) = 0;  ///< Σ what is kept for streams
  std::uint8_t mempool = 0;                                 ///< the memory pool whose blocks are kept for streams. Written under both locks
  /// Change of the live bytes asked for in that pool since the last flush (may be below 0). Written as a shard's words.
  std::atomic<std::uint64_t> mempool_bytes{0};
  /// As long as the device's timeline, so that the newest events of all are known. Written inside the lock; read under the device's lock while
  /// closed.
  observe::Timeline timeline;

  // The rest is guarded by the device's lock.
  bool is_owned = false;
  pthread_t owner{};  ///< the owning thread; no other living thread has this handle
  ContextPool* home = nullptr;
  bool is_open = false;  ///< `context` is not null
  bool is_of_this_thread() const { return is_owned && pthread_equal(owner, pthread_self()) != 0; }
  std::uint64_t kept_bytes = 0;  ///< in racks and completed parcels at the last flush
  Parcel* returned = nullptr;    ///< completed, and not handed over yet
  Parcel* spare = nullptr;
  std::uint32_t turned_away = 0;          ///< streams' blocks that found no room since there last was some
  std::uint32_t streams_turned_away = 0;  ///< blocks of streams without racks here, since a stream last got some
  std::size_t next_stream = 0;            ///< index of the stream whose racks another stream gets next
  std::array<Parcel, kParcels> parcels;

 private:
  bool would_be_peak(const observe::Gauge& gauge, const std::atomic<std::uint64_t>& here, std::uint64_t more) const {
    const std::uint64_t now = gauge.now() + here.load(std::memory_order_relaxed) + more;
    return now > gauge.highest();
  }
  /// Would this free of `bytes` end a step of the job?
  bool would_end_step(std::uint64_t bytes) const {
    const std::uint64_t below_bytes = around.steps.below_bytes();
    return below_bytes != 0 && around.counters.live_bytes.now() + shard.live_bytes.load(std::memory_order_relaxed) < below_bytes + bytes;
  }
  static void add(std::atomic<std::uint64_t>& word, std::uint64_t delta) {
    word.store(word.load(std::memory_order_relaxed) + delta, std::memory_order_relaxed);
  }
  void note(observe::EventKind kind, std::uint64_t at_ticks, const heap::Extent& extent, std::uint16_t thread) CUPOOL_REQUIRES(lock) {
    timeline.record({at_ticks, extent.address, extent.bytes, extent.requested_bytes, extent.site, thread, kind,
                     static_cast<std::uint8_t>(mempool_of(extent) != 0)});
  }
  /// For a block that this thread has just claimed: is it still the block that was looked up? It may have gone back to the heap and come again as
  /// another.
  static bool is_block_at(const heap::Extent& extent, CUdeviceptr address) { return extent.address == address && extent.is_in_table; }
  bool may_be_peak(std::uint64_t requested_bytes, std::uint64_t bytes) const;
  bool may_be_mempool_peak(std::uint64_t requested_bytes) const;
  CUdeviceptr hand_out(Rack& rack, std::uint64_t requested_bytes, std::uint8_t flags, std::uint16_t thread) CUPOOL_REQUIRES(lock);
  void count_free(const heap::Extent& extent);
};

inline bool Magazine::open_parcel() {
  Parcel* parcel = complete;
  if (parcel == nullptr) return false;
  complete = parcel->next;
  for (heap::Extent* extent = parcel->first; extent != nullptr;) {
    heap::Extent* next = extent->bin_next;
    note(observe::EventKind::free_completed, parcel->completed_ticks, *extent, 0);
    if (Rack* rack = rack_of(extent->bytes)) {
      rack->push(extent);
    } else {
      extent->bin_next = misfits;
      misfits = extent;
    }
    extent = next;
  }
  put(*parcel, emptied);
  return true;
}

inline CUdeviceptr Magazine::allocate(CUcontext asking, std::uint64_t requested_bytes, std::uint64_t bytes, std::uint16_t thread) {
  if (!lock.lock_by_owner(around.services.fences)) return 0;
  const OwnerInside held(lock);
  if (context != asking || asking == nullptr) return 0;
  Rack* const rack_of_size = rack_of(bytes);
  if (rack_of_size == nullptr) return 0;
  Rack& rack = *rack_of_size;
  while (rack.first == nullptr && open_parcel()) {}
  if (rack.first == nullptr || next_buffer_id == end_buffer_id) return 0;
  return may_be_peak(requested_bytes, bytes) ? 0 : hand_out(rack, requested_bytes, 0, thread);
}

/// Could one more block be a new peak, together with what other magazines do?
inline bool Magazine::may_be_peak(std::uint64_t requested_bytes, std::uint64_t bytes) const {
  if (around.has_several.load(std::memory_order_relaxed)) {
    const auto is_above = [](const std::atomic<std::uint64_t>& here, std::uint64_t more, std::int64_t allowed) {
      return static_cast<std::int64_t>(here.load(std::memory_order_relaxed) + more) > allowed;
    };
    return is_above(shard.live_bytes, bytes, allowance.bytes) || is_above(shard.requested_bytes, requested_bytes, allowance.requested_bytes) ||
           is_above(shard.live_blocks, 1, allowance.blocks);
  }
  const observe::Counters& counters = around.counters;
  return would_be_peak(counters.live_bytes, shard.live_bytes, bytes) ||
         would_be_peak(counters.requested_bytes, shard.requested_bytes, requested_bytes) || would_be_peak(counters.live_blocks, shard.live_blocks, 1);
}

/// Where there are several magazines: would more be live in the memory pool than the device knows of?
inline bool Magazine::may_be_mempool_peak(std::uint64_t requested_bytes) const {
  const std::uint64_t here_bytes = mempool_bytes.load(std::memory_order_relaxed) + requested_bytes;
  if (around.has_several.load(std::memory_order_relaxed) && static_cast<std::int64_t>(here_bytes) > 0) return true;
  const MempoolUse& use = around.mempools[mempool];
  return use.used_bytes.load(std::memory_order_relaxed) + here_bytes > use.lower_high_bytes();
}

/// Hands out the next block of the rack. Precondition: there is one.
inline CUdeviceptr Magazine::hand_out(Rack& rack, std::uint64_t requested_bytes, std::uint8_t flags, std::uint16_t thread) {
  heap::Extent* extent = rack.pop();
  rack.used = ++operations;
  extent->requested_bytes = requested_bytes;
  extent->flags = flags;
  extent->buffer_id = next_buffer_id++;
  extent->allocated_ticks = ticks();
  observe::LiveShard& counts = shard;
  add(counts.allocations, 1);
  add(counts.rung_hole, 1);
  add(counts.live_bytes, extent->bytes);
  add(counts.requested_bytes, requested_bytes);
  add(counts.live_blocks, 1);
  taken_bytes += extent->bytes;
  note(observe::EventKind::allocate, extent->allocated_ticks, *extent, thread);
  extent->state = heap::ExtentState::live;
  return extent->address;
}

inline void Magazine::count_free(const heap::Extent& extent) {
  observe::LiveShard& counts = shard;
  add(counts.frees, 1);
  add(counts.live_bytes, std::uint64_t{0} - extent.bytes);
  add(counts.requested_bytes, std::uint64_t{0} - extent.requested_bytes);
  add(counts.live_blocks, ~std::uint64_t{0});
}

/// Left to the device: a double free, a foreign address, a block with properties of its own, any free while something captures, the first free after
/// a peak (which is sampled then), and the one that ends a step.
inline bool Magazine::free(CUdeviceptr address, std::uint16_t thread) {
  if (!lock.lock_by_owner(around.services.fences)) return false;
  const OwnerInside held(lock);
  if (context == nullptr) return false;
  const PoolServices& services = around.services;
  if (around.peak_is_new.load(std::memory_order_relaxed) || services.gate.capturing() || !services.has_context_events()) return false;
  heap::Extent* extent = table->find(address);
  // Nothing of the block is read before this thread has claimed it: in a double free the heap may be at work on it.
  if (extent == nullptr || !extent->state.change(heap::ExtentState::live, heap::ExtentState::cached)) return false;
  const std::uint32_t most_frees = extent->bytes <= kLargestSmallBlock_bytes ? kMostFrees : kMostFreesWithLarge;
  if (!is_block_at(*extent, address) || extent->flags != 0 || freed_count >= most_frees || freed_bytes + extent->bytes > free_budget_bytes ||
      would_end_step(extent->bytes)) {
    extent->state = heap::ExtentState::live;
    return false;
  }
  count_free(*extent);
  add(shard.deferred_bytes, extent->bytes);
  note(observe::EventKind::free_requested, ticks(), *extent, thread);
  extent->bin_next = freed;
  freed = extent;
  freed_bytes += extent->bytes;
  ++freed_count;
  return true;
}

inline CUdeviceptr Magazine::allocate_on(CUcontext asking, std::uint64_t identity, std::uint8_t for_mempool, std::uint64_t requested_bytes,
                                         std::uint64_t bytes, std::uint16_t thread) {
  if (!lock.lock_by_owner(around.services.fences)) return 0;
  const OwnerInside held(lock);
  if (context != asking || asking == nullptr || for_mempool != mempool) return 0;
  StreamRacks* const own = racks_of(identity);
  if (own == nullptr) return 0;
  SizedRack& sized = own->sizes.at(bytes);
  if (sized.bytes != bytes || sized.rack.first == nullptr || next_buffer_id == end_buffer_id) return 0;
  if (may_be_mempool_peak(requested_bytes) || may_be_peak(requested_bytes, bytes)) return 0;
  add(mempool_bytes, requested_bytes);
  ordered_bytes -= bytes;
  warm(sized);
  return hand_out(sized.rack, requested_bytes, static_cast<std::uint8_t>(mempool << kMempoolShift), thread);
}

inline bool Magazine::keep(StreamRacks& racks_of_stream, heap::Extent* extent) {
  const std::uint64_t bytes = extent->bytes;
  if (ordered_bytes + bytes > kept_budget_bytes || (bytes > kLargestSmallBlock_bytes && bytes > kept_budget_bytes / kLeastLarge)) return false;
  SizedRack& sized = racks_of_stream.sizes.at(bytes);
  if (is_cold(sized, bytes)) return false;
  if (bytes <= kLargestSmallBlock_bytes && sized.rack.count * bytes >= kMostOfSize_bytes) return false;
  if (sized.bytes != bytes && sized.rack.first == nullptr) sized.bytes = bytes;
  if (sized.bytes != bytes) return false;
  sized.rack.push(extent);
  sized.rack.used = operations;
  ordered_bytes += bytes;
  return true;
}

/// Left to the device: as for free(), and a block of another context, of another memory pool or of none, and one that no rack has room for.
inline bool Magazine::free_on(CUdeviceptr address, CUcontext asking, std::uint64_t identity, std::uint16_t thread) {
  if (!lock.lock_by_owner(around.services.fences)) return false;
  const OwnerInside held(lock);
  if (context != asking || asking == nullptr) return false;
  if (around.peak_is_new.load(std::memory_order_relaxed) || around.services.gate.capturing()) return false;
  StreamRacks* const own = racks_of(identity);
  heap::Extent* extent = own != nullptr ? table->find(address) : nullptr;
  if (extent == nullptr || !extent->state.change(heap::ExtentState::live, heap::ExtentState::cached)) return false;
  const bool is_ordinary = is_block_at(*extent, address) && extent->flags != 0 && extent->flags == mempool << kMempoolShift;
  if (!is_ordinary || !keep(*own, extent)) {
    extent->state = heap::ExtentState::live;
    return false;
  }
  add(mempool_bytes, std::uint64_t{0} - extent->requested_bytes);
  count_free(*extent);
  taken_bytes -= extent->bytes;
  ++own->pairs;
  const std::uint64_t now = ticks();
  note(observe::EventKind::free_requested, now, *extent, thread);
  note(observe::EventKind::free_completed, now, *extent, thread);
  return true;
}

}  // namespace cupool::device
