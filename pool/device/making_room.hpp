// MakingRoom: what is given back so that the program, its calls or a limit have room: waits for deferred frees included.
//
// What goes back, and how, is GivingBack's; what an allocation tries before it is refused is the ladder's.
// Thread rule: each call says which lock it needs. The device's is let go of around every driver call and every wait.
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
  /// `unpooled`: every block is a call of its own to the driver.
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

  /// What nobody uses goes back to the driver. `until_ns`: so long it polls for deferred frees; `may_wait`: natively they had waited, so longer
  /// (Patience).
  /// Nothing goes while that could block: whoever asks natively would not have waited. While something captures, nobody waits for its end.
  /// Returns bytes; where it may wait, what another thread gave back meanwhile counts as one, and so does what was given back before and is
  /// there only now.
  std::size_t give_back_idle(DeviceState& device, std::uint64_t until_ns, std::uint64_t keep_bytes, bool may_wait,
                             std::uint64_t wanted_bytes = kEverything_bytes) CUPOOL_EXCLUDES(device.lock);
  /// `bytes` of the limit, for a call that the driver is to serve: empty pool memory makes way for it. `take`: charges it, if it can be.
  /// False: there is no room.
  bool within_limit(DeviceState& device, std::uint64_t bytes, const std::function<bool()>& take) CUPOOL_EXCLUDES(device.lock);
  /// May the caller give up? Asks the driver, once it is late, whether what natively had been waited for is over: what this thread itself freed
  /// had been without end. Whatever else was freed before the call is waited for once.
  bool is_over(DeviceState& device, const Patience& patience) CUPOOL_REQUIRES(device.lock);

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
