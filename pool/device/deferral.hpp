// Deferral: what happens to a block between its free and its reuse. Epochs of deferred frees are closed, queried, waited for and retired here.
//
// The lists themselves are DeferredFrees'; how much may wait is the Backlog's decision. deferral.cpp has the ordinary course, native_terms.cpp what
// an allocation that is short of memory may reuse because the native driver would have it free by now, capture_wait.cpp a plain free while something
// captures.
// Thread rule: the device's lock, which every driver call and every wait lets go of.
#pragma once

#include <cuda.h>

#include <array>
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
  /// Why an epoch is closed. `inside_free`: within the program's own free of a block of the asking context, so it may be waited for without end.
  /// `late`: memory is short. `early`: before the batch is due. The last two may only be polled.
  enum class Closing : std::uint8_t { inside_free, late, early };
  /// The driver's answer about the oldest epoch. `epoch` is null where the driver was not asked.
  struct Look {
    Epoch* epoch = nullptr;
    FenceResult result{};
  };
  /// What a wait for frees must bring: at least `least_bytes`; it ends when no more than `left_bytes` are still waiting.
  struct Awaited {
    std::uint64_t least_bytes = 0;
    std::uint64_t left_bytes = 0;
    bool inside_free = false;
  };

  /// `unpooled`: no block is cut from a pooled heap; each is a call of its own to the driver.
  Deferral(DeferredFrees& deferred, Backlog& backlog, Magazines& magazines, Orphans& orphans, GivingBack& giving_back, bool unpooled)
      : deferred_(deferred), backlog_(backlog), magazines_(magazines), orphans_(orphans), giving_back_(giving_back), unpooled_(unpooled) {}

  // deferral.cpp
  /// The program has freed this block: it joins the open batch.
  void defer(DeviceState& device, heap::Extent* extent, std::uint16_t thread) CUPOOL_REQUIRES(device.lock);
  /// The outcome of a free whose block is deferred. `late` is an error of earlier GPU work, which the program must hear of: it is stored in
  /// `*answer`. A driver that is shutting down is no error.
  static FreeOutcome outcome_of(Error late, Error* answer);
  /// The blocks of a batch whose fence is done become free, or go back to the magazine that freed them.
  void retire(DeviceState& device, Batch batch) CUPOOL_REQUIRES(device.lock);
  /// Counts a block that is about to join the open batch while something captures.
  void note_withheld(const heap::Extent& extent);
  /// So much is withheld that a free must wait (see kUnrecorded_bytes).
  bool withholds_much() const { return withheld_bytes_ >= kUnrecorded_bytes; }
  /// Closes the open batch and records its fence now. While something captures, or where no event can be recorded, the batch stays open.
  /// With `look`, the same visit to the driver also asks about the oldest epoch that no other thread is asking about.
  Error close_epoch(DeviceState& device, CUcontext asking, Closing closing, Look* look = nullptr) CUPOOL_REQUIRES(device.lock);
  Error close_epoch_or_synchronise(DeviceState& device, CUcontext asking) CUPOOL_REQUIRES(device.lock);
  /// Are there deferred blocks without an event that could have one, if not at this moment?
  bool may_record(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// Polls the oldest epoch that no other thread is asking about, and retires it when its fence is done; returns whether it did. A thread that is
  /// stopped while it asks thus holds up that one epoch only.
  /// `may_wait`: instead of polling, waits without end for the oldest epoch that this thread closed inside a free (natively that free would have
  /// waited), unless another thread is asking about the oldest of all. The epoch's events cover the work of all older ones. What another thread freed
  /// may depend on this thread, so it is never waited for here.
  bool retire_oldest(DeviceState& device, CUcontext asking, bool may_wait, Error* error) CUPOOL_REQUIRES(device.lock);
  /// Retires the open batch if the GPU is idle, at the cost of one event and one query; returns whether it did. Where work is running the batch stays
  /// open.
  bool retire_batch_if_idle(DeviceState& device, CUcontext asking, Error* error) CUPOOL_REQUIRES(device.lock);
  /// Waits without end for one epoch that may be waited for: the newest, unless an older one frees enough. Its events cover the work of all older
  /// epochs, so one call suffices. Returns whether blocks came back.
  /// What this thread freed may be waited for, since natively it would have waited itself. Inside a free the same holds for what other threads freed
  /// in the same context, except for the newest epoch, which is this very free's. Anything else may depend on work that this thread is still to
  /// submit.
  bool await_frees(DeviceState& device, CUcontext asking, const Awaited& awaited, Error* error) CUPOOL_REQUIRES(device.lock);
  /// There is a hole for the block, but one that this thread has freed and that is still deferred fits so much better that it pays to wait for it
  /// (natively the free would have waited). That matters where next to nothing is left: a block cut from a larger hole stays in the way of whatever
  /// needs that hole, and is not moved again. On pages it matters earlier: a small block on an empty page keeps the whole page for as long as it
  /// lives. See kChoosyFrom_bytes.
  bool is_better_on_its_way(DeviceState& device, const ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock);
  /// What a free does when the batch is due, and the first operation after a capture: one event per context is recorded, and one epoch is queried.
  Error upkeep(DeviceState& device, CUcontext asking, bool inside_free) CUPOOL_REQUIRES(device.lock);
  /// Synchronises, and retires all that was freed before the call. `done`: all work submitted before the call is over.
  FenceResult synchronise_and_retire(DeviceState& device, CUcontext asking) CUPOOL_REQUIRES(device.lock);
  /// May other devices' work touch a block of this device although the native free would not wait for it? Copies between devices need no peer access.
  /// Where the driver has events that cover a context, such a block is deferred until they say that this work is over.
  static bool others_may_touch(DeviceState& device) CUPOOL_REQUIRES(device.lock);

  // native_terms.cpp
  /// Frees what the native driver would have free by now; returns whether anything more is free, or will be. `began_ns`: when the caller began to
  /// poll.
  bool retire_on_native_terms(DeviceState& device, CUcontext asking, std::uint64_t began_ns, Error* error) CUPOOL_REQUIRES(device.lock);

  // capture_wait.cpp
  /// A plain free of a block of `asking` while something captures: natively it waits, so all that was freed so far becomes an epoch that is over. Where
  /// contexts that the wait leaves alone take part in the capture, that is so on native terms only, and for blocks of the contexts it is for. The
  /// blocks stay allocated until somebody needs them, because the graph being captured may name their addresses.
  Error wait_in_capture(DeviceState& device, CUcontext asking) CUPOOL_REQUIRES(device.lock);
  /// Frees a block that no work uses any more, for a call that does not wait natively: it is over at once where the driver would have served this
  /// thread during the capture.
  FreeOutcome free_unused_in_capture(DeviceState& device, heap::Extent* extent, std::uint16_t thread) CUPOOL_REQUIRES(device.lock);

 private:
  /// When is_better_on_its_way() may choose to wait. From kChoosyFrom_bytes on a block is worth a wait when next to nothing is left: the driver and
  /// the limit have less than 1/kChoosyRoomShare of everything to give, and the program's peak of live bytes leaves less than 1/kChoosySpareShare
  /// unused. On pages any size is worth it once the peak is that high, if the place leaves a larger handle empty. Figures: DECISIONS.md, "Deferred
  /// frees".
  static constexpr std::uint64_t kChoosyFrom_bytes = 512 * kKiB;
  static constexpr std::uint64_t kChoosyRoomShare = 32;
  static constexpr std::uint64_t kChoosySpareShare = 4;
  static constexpr std::size_t kChoosyLooks = 256;  ///< deferred blocks looked at for one decision
  /// While something captures, a plain free waits at the latest when this much is withheld without an event: an allocation cannot wait then, and must
  /// not fail because a block of 512 bytes keeps a handle of 256 MiB.
  static constexpr std::uint64_t kUnrecorded_bytes = 2 * kMiB;
  /// look_further(): so many epochs are no queue, so many looks follow, and so many turns are left out after one in vain.
  static constexpr std::size_t kShortQueue = 4;
  static constexpr std::uint32_t kFurtherLooks = 16;
  static constexpr std::uint32_t kLooksLeftOut = 16;
  static constexpr std::uint64_t kNativeTerms_ns = 200'000'000;  ///< how long an allocation that is short of memory waits for other contexts

  // deferral.cpp
  static heap::Extent* recycle_as_run(DeviceState& device, heap::Extent* run, heap::Extent* extent) CUPOOL_REQUIRES(device.lock);
  bool may_close(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  bool retire_if_over(DeviceState& device, Epoch* epoch, const FenceResult& result, Error* error) CUPOOL_REQUIRES(device.lock);
  static FenceResult synchronise_reachable(DeviceState& device, CUcontext asking, bool everywhere) CUPOOL_REQUIRES(device.lock);
  bool look_further(DeviceState& device, CUcontext asking, Error* error) CUPOOL_REQUIRES(device.lock);
  Error catch_up(DeviceState& device, CUcontext asking, bool may_be_over) CUPOOL_REQUIRES(device.lock);
  static bool is_own(const Epoch& epoch);

  // native_terms.cpp
  bool close_beside_ending(DeviceState& device, CUcontext asking, Error* error) CUPOOL_REQUIRES(device.lock);
  static bool is_free_natively(DeviceState& device, Epoch& epoch) CUPOOL_REQUIRES(device.lock);

  // capture_wait.cpp
  struct NativeWait {
    FenceResult result{};
    std::array<CUcontext, 2> awaited{};
    bool others_known = false;
  };
  static NativeWait wait_by_freeing(DeviceState& device, CUcontext asking, Fence& others) CUPOOL_EXCLUDES(device.lock);

  DeferredFrees& deferred_;
  Backlog& backlog_;
  Magazines& magazines_;
  Orphans& orphans_;
  GivingBack& giving_back_;
  const bool unpooled_;
  std::uint64_t withheld_bytes_ = 0;  ///< by blocks in the open batch that were freed while something captured
  std::uint32_t looks_owed_ = 0;      ///< looks at the oldest epoch that upkeep() still has to make
  std::uint32_t looks_left_out_ = 0;  ///< after a further look in vain, see look_further()
};

}  // namespace cupool::device
