// StreamFrees: what streams free. What a free leaves in its stream's lane is that stream's at once, without an event.
//
// Others get it (a) when the lane is drained: its holes join the deferred frees, whose fence covers the whole context; (b) while memory is short,
// when the free was stamped with its own event: another stream is made to wait for that event on the device. An event that is recorded later than the
// free also covers later work, which may itself wait for what the other stream does next, so no stream is ever made to wait for such an event. A free
// that falls into another thread's capture is stamped too; where no event can be had, it takes the plain way and waits for the end of the capture. On
// drivers without events that cover a context no epoch would ever take it from there: its stream gets an event as soon as that can be recorded.
// stream_frees.cpp fills and drains lanes, idle_lanes.cpp opens those whose work is over, stamped_frees.cpp has frees with an event of their own,
// unstamped_frees.cpp those that still lack one.
// Thread rule: the device's lock, let go of around every driver call.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "pool/core/result.hpp"
#include "pool/device/backlog.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/deferral.hpp"
#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/giving_back.hpp"
#include "pool/device/live_figures.hpp"
#include "pool/device/magazines.hpp"
#include "pool/device/shortage.hpp"
#include "pool/device/stream_lanes.hpp"

namespace cupool::device {

class StreamFrees {
 public:
  enum class StampedPlace : std::uint8_t { lane, aside };  ///< where the block is while its event is pending

  StreamFrees(const ContextPools& homes, DeferredFrees& deferred, Shortage& shortage, Magazines& magazines, LiveFigures& figures,
              GivingBack& giving_back, const Backlog& backlog, Deferral& deferral)
      : homes_(homes),
        deferred_(deferred),
        shortage_(shortage),
        magazines_(magazines),
        figures_(figures),
        giving_back_(giving_back),
        backlog_(backlog),
        deferral_(deferral) {}

  // stream_frees.cpp
  /// Frees a block of a heap in the order of a stream of its context, while nothing captures.
  FreeOutcome free_in_lane(DeviceState& device, heap::Extent* extent, ContextPool& home, CUcontext context, StreamName stream, std::uint16_t thread)
      CUPOOL_REQUIRES(device.lock);
  /// Where no event covers a context, what is in a lane needs an event on its own stream before others may have it: so the lane that a new stream is
  /// about to get is emptied here, where the lock may be let go of.
  void make_place_for_lane(DeviceState& device, CUcontext context, StreamName stream) CUPOOL_REQUIRES(device.lock);
  /// Drains a stream's lane: its holes wait for what that stream has been given so far, and for nothing else. Where that cannot be recorded they wait
  /// like any plain free, for the next epoch, or (`only_own_events`) stay in the lane.
  void drain_stream(DeviceState& device, ContextPool& home, std::uint64_t identity, bool only_own_events) CUPOOL_REQUIRES(device.lock);
  /// On a miss: the lanes that their streams have not used for long join the deferred frees, and the next miss finds them free. All lanes where
  /// streams keep several times what was ever live: otherwise the pool would consist of what each of them keeps for itself.
  void drain_stale_lanes(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);
  /// Drains all lanes. `only_own_events`: a lane whose own stream cannot have an event stays as it is.
  void drain_lanes(DeviceState& device, bool only_own_events = false) CUPOOL_REQUIRES(device.lock);
  /// Is anything free in a lane?
  bool has_lanes() const;
  /// What a stream itself freed needs no event for it, wherever it is by now: it goes back into the stream's lane. True when there was any.
  bool take_own(DeviceState& device, ContextPool& home, StreamName stream, std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device.lock);
  /// Forgets whose the stamps are: their events outlive the stream, and its handle may come again.
  static void forget_stamps_of(ContextPool& home, std::uint64_t identity);
  /// Retires what is over of deferred and stamped frees. `may_wait`: see Deferral::retire_oldest.
  void retire_all(DeviceState& device, CUcontext asking, bool may_wait) CUPOOL_REQUIRES(device.lock);
  /// CUPOOL_RELEASE_THRESHOLD applies to what lies in lanes too.
  void give_back_surplus_of_lanes(DeviceState& device, CUcontext asking) CUPOOL_REQUIRES(device.lock);

  // idle_lanes.cpp
  /// Opens lanes that hold a good part of what the request needs and whose work is over. True when anything has become free for everybody.
  bool open_idle_lanes(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock);
  /// The program has waited for the stream (0: for the whole context) by a call of its own that began after `fills`: what was in the lane then is
  /// over, and free for everybody from now on, without a driver call. A lane that was filled since stays as it is.
  void open_waited_lanes(DeviceState& device, ContextPool& home, std::uint64_t identity, std::uint64_t fills) CUPOOL_REQUIRES(device.lock);

  // stamped_frees.cpp
  /// Frees a block with an event of its own, recorded on a stream of `context`. False where none could be recorded: nothing has happened then.
  bool free_stamped(DeviceState& device, heap::Extent* extent, ContextPool& home, CUcontext context, StreamName stream, std::uint16_t thread,
                    StampedPlace place) CUPOOL_REQUIRES(device.lock);
  /// Polls the oldest stamped free of each stream, and makes the first whose event is over free for everybody: true. Leaves out what `identity` has
  /// in its own lane anyway.
  bool retire_stamped(DeviceState& device, ContextPool& home, CUcontext asking, std::uint64_t identity, Error* error) CUPOOL_REQUIRES(device.lock);
  /// As retire_stamped() and retire_late(), for all contexts of the device: what one of them gives back the driver has for another.
  bool retire_any_stamped(DeviceState& device, CUcontext asking, Error* error) CUPOOL_REQUIRES(device.lock);
  bool has_stamped() const;
  /// The context of `home` has ended, and blocks of memory pools stay: what its stamps hold of them waits for the same events as epochs do.
  void leave_pool_blocks(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);
  /// A block for a stream out of what stamped frees hold: its own at once, another stream's behind the event of that free.
  Result<heap::Extent*> steal(DeviceState& device, ContextPool& home, CUcontext context, AllocationRequest& request) CUPOOL_REQUIRES(device.lock);

  // unstamped_frees.cpp
  /// No event could be recorded behind a free on this stream of `context`; its block is deferred.
  void leave_unstamped(DeviceState& device, heap::Extent* extent, CUcontext context, StreamName stream) CUPOOL_REQUIRES(device.lock);
  /// Records the events that are missing, unless something captures: one for each stream. `calling`: the stream of `context` that the program's call
  /// names, if it names one.
  void stamp_late(DeviceState& device, CUcontext context = nullptr, StreamName calling = {}) CUPOOL_REQUIRES(device.lock);
  /// Polls what stamp_late() has recorded, of each stream: one that is behind keeps nothing that another has freed. True: something is free for all.
  bool retire_late(DeviceState& device, CUcontext asking, Error* error) CUPOOL_REQUIRES(device.lock);
  /// May stamp_late() succeed, if not at this moment?
  bool may_stamp_late(const DeviceState& device) const CUPOOL_REQUIRES(device.lock);
  /// The program has waited for the stream (0: for the whole context of `home`) by a call that began at `fills`.
  void retire_waited(DeviceState& device, const ContextPool& home, std::uint64_t identity, std::uint64_t fills) CUPOOL_REQUIRES(device.lock);
  /// Does the stream use up what its own lane has before it takes what is free for everybody?
  static bool keeps_to_lane(DeviceState& device, ContextPool& home, const AllocationRequest& request) CUPOOL_REQUIRES(device.lock);

 private:
  static constexpr std::size_t kMostLooks = 4;        ///< streams whose oldest stamped free a miss polls
  static constexpr std::uint64_t kIdleLaneShare = 4;  ///< a lane with less than this part of the request is not asked about

  // stream_frees.cpp
  static bool needs_context_event(const DeviceState& device, const StreamLanes::Entry& entry);
  Epoch* record_lane(DeviceState& device, ContextPool& home, StreamLanes::Entry& entry, Batch& holes, bool looks, FenceResult* result)
      CUPOOL_REQUIRES(device.lock);
  void drain_streams(DeviceState& device, ContextPool& home, bool only_own_events,
                     bool (*is_due)(const StreamLanes& streams, const StreamLanes::Entry& entry)) CUPOOL_REQUIRES(device.lock);
  bool take_own_epochs(DeviceState& device, ContextPool& home, StreamName stream, std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device.lock);

  // unstamped_frees.cpp
  static FenceAnswer record_late(DeviceState& device, const UnstampedFrees::Free& freed, bool is_calling, Fence& fence, bool* gone)
      CUPOOL_EXCLUDES(device.lock);
  void close_late(DeviceState& device, const UnstampedFrees::Free& freed, Fence fence) CUPOOL_REQUIRES(device.lock);
  bool take_own_unstamped(DeviceState& device, ContextPool& home, StreamName stream) CUPOOL_REQUIRES(device.lock);

  // idle_lanes.cpp
  void hand_over(DeviceState& device, ContextPool& home, std::uint64_t identity) CUPOOL_REQUIRES(device.lock);
  void end_stamps_in(DeviceState& device, ContextPool& home, std::uint32_t lane) CUPOOL_REQUIRES(device.lock);
  static bool may_feed(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  bool may_be_missed(DeviceState& device, ContextPool& home, std::uint64_t identity, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  void open_lane(DeviceState& device, ContextPool& home, std::uint32_t lane) CUPOOL_REQUIRES(device.lock);
  bool open_lane_if_idle(DeviceState& device, ContextPool& home, std::uint64_t identity, std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device.lock);

  const ContextPools& homes_;
  DeferredFrees& deferred_;
  Shortage& shortage_;
  Magazines& magazines_;
  LiveFigures& figures_;
  GivingBack& giving_back_;
  const Backlog& backlog_;
  Deferral& deferral_;
  std::uint32_t lane_frees_ = 0;
};

}  // namespace cupool::device
