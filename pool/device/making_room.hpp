// MakingRoom: gives memory back so that the program, its calls or a limit have room, and waits for deferred frees for that.
//
// What goes back and how is up to GivingBack; what an allocation tries before it is refused, to the ladder.
// Thread rule: each call says which lock it needs. The device's lock is let go of around every driver call and every wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "config/options.hpp"
#include "pool/device/deferral.hpp"
#include "pool/device/deferred_frees.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/giving_back.hpp"
#include "pool/device/idle_pools.hpp"
#include "pool/device/live_figures.hpp"
#include "pool/device/magazines.hpp"
#include "pool/device/moves.hpp"
#include "pool/device/patience.hpp"
#include "pool/device/preallocation.hpp"
#include "pool/device/shortage.hpp"
#include "pool/device/stream_frees.hpp"

namespace cupool::device {

class MakingRoom {
 public:
  /// `unpooled`: every block is a driver call of its own.
  MakingRoom(DeferredFrees& deferred, Shortage& shortage, const Moves& moves, Magazines& magazines, const LiveFigures& figures, IdlePools& idle_pools,
             const Preallocation& preallocation, GivingBack& giving_back, Deferral& deferral, StreamFrees& stream_frees, config::Policy policy,
             bool unpooled)
      : deferred_(deferred),
        shortage_(shortage),
        moves_(moves),
        magazines_(magazines),
        figures_(figures),
        idle_pools_(idle_pools),
        preallocation_(preallocation),
        giving_back_(giving_back),
        deferral_(deferral),
        stream_frees_(stream_frees),
        policy_(policy),
        unpooled_(unpooled) {}

  /// Returns idle memory to the driver. Polls for deferred frees until `until_ns`; with `may_wait` (natively they would have waited) for longer, see
  /// Patience.
  /// Nothing goes while that could block, since the program's call would not have waited natively; while something captures, its end is not waited
  /// for.
  /// Returns the bytes that went. With `may_wait`, what another thread returned meanwhile counts as one byte, and so does what was returned before
  /// and is available only now.
  std::size_t give_back_idle(DeviceState& device, std::uint64_t until_ns, std::uint64_t keep_bytes, bool may_wait,
                             std::uint64_t wanted_bytes = kEverything_bytes) CUPOOL_EXCLUDES(device.lock);
  /// Makes room for `bytes` within the limit, for a call that the driver is to serve: empty pool memory goes. `take`: charges the limit, if it can be
  /// charged. False: there is no room.
  bool within_limit(DeviceState& device, std::uint64_t bytes, const std::function<bool()>& take) CUPOOL_EXCLUDES(device.lock);
  /// May the caller give up waiting? Once it is late the driver is asked whether what would have been waited for natively is over. What this thread
  /// itself freed would have been waited for without end; whatever else was freed before the call is waited for once. Where every call answers with
  /// an error nothing comes any more.
  bool is_over(DeviceState& device, Patience& patience) CUPOOL_REQUIRES(device.lock);

 private:
  bool make_way(DeviceState& device, std::uint64_t bytes) CUPOOL_EXCLUDES(device.lock);

  DeferredFrees& deferred_;
  Shortage& shortage_;
  const Moves& moves_;
  Magazines& magazines_;
  const LiveFigures& figures_;
  IdlePools& idle_pools_;
  const Preallocation& preallocation_;
  GivingBack& giving_back_;
  Deferral& deferral_;
  StreamFrees& stream_frees_;
  const config::Policy policy_;
  const bool unpooled_;
};

}  // namespace cupool::device
