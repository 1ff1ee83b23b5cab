// Orphans: blocks of memory pools whose context was destroyed. Natively they belong to no context, and the program may go on using and freeing them
// (CUDA Driver API 13.0, cuCtxDestroy). The ContextPool that they lie in is an orphan: what becomes empty there goes back to the driver, and
// nothing is allocated until a context goes on with it (DevicePool::place_for).
//
// Also what plain calls under `async` had there (free_left).
// Thread rule: the device's lock, let go of around every driver call.
#pragma once

#include <cstdint>

#include "pool/core/result.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/live_figures.hpp"
#include "pool/device/moves.hpp"

namespace cupool::device {

class Orphans {
 public:
  Orphans(const ContextPools& homes, LiveFigures& figures, Moves& moves) : homes_(homes), figures_(figures), moves_(moves) {}

  /// Returns empty memory of orphans to the driver; `again`: also what the driver has refused before. Returns the bytes that went.
  std::uint64_t empty(DeviceState& device, bool again = false) CUPOOL_REQUIRES(device.lock);
  /// The program gives device `ordinal` access to a memory pool of this device: it must reach blocks that outlived their context too.
  Status share(DeviceState& device, int ordinal) CUPOOL_REQUIRES(device.lock);
  /// Is `address` in a block that a destroyed context has left in the driver's pool?
  bool is_left(std::uint64_t address) const;
  /// Under `async` plain blocks lie in the driver's pool, which cuCtxDestroy leaves as it is; natively they would have ended with their context.
  /// Nobody can return them before another context of the device lives. Whether blocks went with a primary context is asked only while a context is
  /// new and alone: otherwise another thread could be given such an address between the answer and what is done with it.
  void free_left(DeviceState& device, bool is_new) CUPOOL_REQUIRES(device.lock);
  void forget_gone(CUdeviceptr address);

 private:
  static std::uint64_t empty_one(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);

  const ContextPools& homes_;
  LiveFigures& figures_;
  Moves& moves_;
};

}  // namespace cupool::device
