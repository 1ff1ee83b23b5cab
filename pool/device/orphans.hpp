// Orphans: blocks of memory pools whose context was destroyed: natively they are no context's, and the program may use and free them (CUDA Driver API
// 13.0, cuCtxDestroy). What they lie in is an orphan (ContextPool): nothing is allocated there any more, and what gets empty goes back to the driver.
//
// And what plain calls under `async` had there. Thread rule: the device's lock, let go of around every driver call.
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

  /// What is empty in orphans goes back to the driver; `again`: also what that has refused before. Returns bytes.
  std::uint64_t empty(DeviceState& device, bool again = false) CUPOOL_REQUIRES(device.lock);
  /// Access to a device's memory pools is access to what has outlived its context too.
  Status share(DeviceState& device, int ordinal) CUPOOL_REQUIRES(device.lock);
  /// In the driver's pool, where a context that is no more has left it.
  bool is_left(std::uint64_t address) const;
  /// Under `async` plain blocks lie in the driver's pool, which cuCtxDestroy leaves: natively they had gone with their context. Nobody can give them
  /// back before another context of the device lives. What may have gone with a primary context, the driver is asked about when a context is new and
  /// alone: another thread could else have been given an address between the answer and what is done with it.
  void free_left(DeviceState& device, bool is_new) CUPOOL_REQUIRES(device.lock);

 private:
  static std::uint64_t empty_one(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);

  const ContextPools& homes_;
  LiveFigures& figures_;
  Moves& moves_;
};

}  // namespace cupool::device
