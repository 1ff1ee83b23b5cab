// Deferral: what happens between a free and reuse: epochs of deferred frees are closed, queried, waited for and retired.
//
// The lists are DeferredFrees'; how much may wait is the Backlog's to say. native_terms.cpp: what natively were free by now, when memory is out;
// capture_wait.cpp: a plain free while something captures.
// Thread rule: the device's lock, let go of around every driver call and every wait.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "pool/core/bytes.hpp"
#include "pool/device/backlog.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/fence.hpp"
#include "pool/device/giving_back.hpp"
#include "pool/device/magazines.hpp"
#include "pool/device/orphans.hpp"
#include "pool/device/pool_set.hpp"

namespace cupool::device {

class Deferral {
 public:
  /// In the program's free of a block of the asking context, so that it may be waited for; because memory is short; or before it is due.
  enum class Closing : std::uint8_t { inside_free, late, early };
  /// What the driver said about an epoch: the oldest there was. Null: it was not asked.
  struct Look {
    Epoch* epoch = nullptr;
    FenceResult result{};
  };
  /// A wait for frees: not for less than `least_bytes`, nor for more than leaves `left_bytes` waiting.
  struct Awaited {
    std::uint64_t least_bytes = 0;
    std::uint64_t left_bytes = 0;
    bool inside_free = false;
  };

  /// `unpooled`: every block is a call of its own to the driver.
  Deferral(DeferredFrees& deferred, Backlog& backlog, Magazines& magazines, Orphans& orphans, GivingBack& giving_back, bool unpooled)
      : deferred_(deferred), backlog_(backlog), magazines_(magazines), orphans_(orphans), giving_back_(giving_back), unpooled_(unpooled) {}

  // deferral.cpp
  /// The program has freed it: it joins the open batch.
  void defer(DeviceState& device, heap::Extent* extent, std::uint16_t thread) CUPOOL_REQUIRES(device.lock);
  /// Of a free whose block is deferred: an error of earlier work is the program's to hear.
  static FreeOutcome outcome_of(Error late, Error* answer);
  /// What waited is free.
  void retire(DeviceState& device, Batch batch) CUPOOL_REQUIRES(device.lock);
  /// The block is about to join the open batch while something captures.
  void note_withheld(const heap::Extent& extent);
  /// So much is withheld that a free waits.
  bool withholds_much() const { return withheld_bytes_ >= kUnrecorded_bytes; }
  /// Closes the open batch with a fence recorded now.
  /// While something captures, or when nothing can be recorded, the batch stays open.
  /// With `look`: the driver is asked about the oldest epoch that no other thread is at, on the same way.
  Error close_epoch(DeviceState& device, CUcontext asking, Closing closing, Look* look = nullptr) CUPOOL_REQUIRES(device.lock);
  Error close_epoch_or_synchronise(DeviceState& device, CUcontext asking) CUPOOL_REQUIRES(device.lock);
  /// Is there something without an event that may get one, if not at this moment?
  bool may_record(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Looks at the oldest epoch that no other thread is at, and retires it when its fence is done: true. A thread that is stopped while it asks about
  /// one keeps none but that one. `may_wait`: waits without end where that is safe, which is for the first that this thread closed inside a free,
  /// unless another thread is at the oldest of all. Its events cover the work of the older ones. What another thread freed may be waiting for this
  /// one.
  bool retire_oldest(DeviceState& device, CUcontext asking, bool may_wait, Error* error) CUPOOL_REQUIRES(device.lock);
  /// What was freed since the last epoch, when nothing runs any more: true. One event and one look; the batch stays as it is when there is work.
  bool retire_batch_if_idle(DeviceState& device, CUcontext asking, Error* error) CUPOOL_REQUIRES(device.lock);
  /// Waits for one epoch that may be waited for, the newest unless enough is over before: its events cover the work of the older ones, so one call is
  /// enough. True when blocks came back. What this thread freed may, since natively it had waited itself; inside a free so may what others freed in
  /// the same context, but for the newest of all, which is this very free's. Else another's work may be waiting for this thread.
  bool await_frees(DeviceState& device, CUcontext asking, const Awaited& awaited, Error* error) CUPOOL_REQUIRES(device.lock);
  /// A hole for the block is there, but something that this thread freed is so much better that a wait pays; natively the free of it had waited.
  /// Where nothing is left, what fits: what is cut from a larger hole stays in the way of what needs that one, and is not moved again. On pages,
  /// earlier, what lies beside blocks that stay: a small block on an empty page keeps all of it, for as long as it lives.
  bool is_better_on_its_way(DeviceState& device, const ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock);
  /// What a due free does, and the first operation after a capture: one record per context, one query.
  Error upkeep(DeviceState& device, CUcontext asking, bool inside_free) CUPOOL_REQUIRES(device.lock);
  /// Synchronises, and retires what was freed before that. `done`: everything submitted before the call is over.
  FenceResult synchronise_and_retire(DeviceState& device, CUcontext asking) CUPOOL_REQUIRES(device.lock);
  /// Peer copies need no link between devices, so other devices' work may touch a block although a free does not wait for it. Where
  /// the driver has events that cover a context, such a block is deferred until they say that it is over.
  static bool others_may_touch(DeviceState& device) CUPOOL_REQUIRES(device.lock);

  // native_terms.cpp
  /// Something more is free, or will be, as natively it were. `began_ns`: when the caller began to poll.
  bool retire_on_native_terms(DeviceState& device, CUcontext asking, std::uint64_t began_ns, Error* error) CUPOOL_REQUIRES(device.lock);

  // capture_wait.cpp
  /// In the program's free of a block of `asking`, while something captures: what was freed so far becomes an epoch that is over. Its blocks stay
  /// where they are until somebody needs them: the graph that is being captured may name them.
  Error wait_in_capture(DeviceState& device, CUcontext asking) CUPOOL_REQUIRES(device.lock);
  /// Of memory that nothing uses any more, by a call that does not wait: over, where the driver would have served this thread.
  FreeOutcome free_unused_in_capture(DeviceState& device, heap::Extent* extent, std::uint16_t thread) CUPOOL_REQUIRES(device.lock);

 private:
  /// From so many bytes on a block is worth a wait when next to nothing is left: less than the first share of everything is to be had from the
  /// driver, and the program has needed all but the second at once; not on pages that may be scattered. On pages any block is, once the program has
  /// needed so much, for a place that leaves a larger handle empty.
  static constexpr std::uint64_t kChoosyFrom_bytes = 512 * kKiB;
  static constexpr std::uint64_t kChoosyRoomShare = 32;
  static constexpr std::uint64_t kChoosySpareShare = 4;
  static constexpr std::size_t kChoosyLooks = 256;  ///< blocks that wait
  /// While something captures, a free that would have waited natively waits at the latest when so much is withheld without an event: an
  /// allocation cannot wait, and must not be told that memory is out for what is a block's of 512 bytes in a handle of 256 MiB.
  static constexpr std::uint64_t kUnrecorded_bytes = 2 * kMiB;
  static constexpr std::uint64_t kNativeTerms_ns = 200'000'000;  ///< so long what is short of memory waits for other contexts

  // deferral.cpp
  bool retire_if_over(DeviceState& device, Epoch* epoch, const FenceResult& result, Error* error) CUPOOL_REQUIRES(device.lock);
  static FenceResult synchronise_reachable(DeviceState& device, CUcontext asking, bool everywhere) CUPOOL_REQUIRES(device.lock);
  Error catch_up(DeviceState& device, CUcontext asking, bool may_be_over) CUPOOL_REQUIRES(device.lock);
  static bool is_own(const Epoch& epoch);

  // native_terms.cpp
  bool close_beside_ending(DeviceState& device, CUcontext asking, Error* error) CUPOOL_REQUIRES(device.lock);
  static bool is_free_natively(DeviceState& device, Epoch& epoch) CUPOOL_REQUIRES(device.lock);

  // capture_wait.cpp
  static FenceResult wait_by_freeing(DeviceState& device, CUcontext asking, Fence& others) CUPOOL_EXCLUDES(device.lock);

  DeferredFrees& deferred_;
  Backlog& backlog_;
  Magazines& magazines_;
  Orphans& orphans_;
  GivingBack& giving_back_;
  const bool unpooled_;
  std::uint64_t withheld_bytes_ = 0;  ///< by what is in the open batch and was freed while something captured
  std::uint32_t looks_owed_ = 0;      ///< at the oldest epoch
};

}  // namespace cupool::device
