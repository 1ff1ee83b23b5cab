// IdlePools: what the driver's memory pools keep idle, as far as the limit knows, and what of it serves a driver call or goes back to the device.
//
// *Ours* is the device's own pool under `async`, where it is the pool (native_blocks.cpp). The *others* are those from which the driver serves the
// program itself: those that the program made, and the device's own where the driver serves it (under `platform`, and on segments for streams of
// contexts that cuCtxDestroy may end). The program may keep memory there by a release threshold; to everybody else it is gone. So it counts as held,
// and goes back to the device before anybody is refused for it.
// Thread rule: each call says which lock it needs. Those that call the driver let go of the device's lock meanwhile.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>

#include "config/options.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/driver_blocks.hpp"
#include "pool/device/driver_pools.hpp"
#include "pool/device/moves.hpp"

namespace cupool::device {

class IdlePools {
 public:
  IdlePools(const ContextPools& homes, const DriverBlocks& blocks, Moves& moves, config::Policy policy)
      : homes_(homes), blocks_(blocks), moves_(moves), policy_(policy) {}

  /// Has the driver served anything here that could leave memory idle? Lock-free; before that it is not asked.
  static bool are_others_asked(const DeviceState& device) {
    return device.has_driver_blocks.load(std::memory_order_relaxed) && device.services.may_call_driver();
  }
  bool is_ours(bool is_of_default_pool) const { return is_of_default_pool && policy_ == config::Policy::async; }

  /// Under `async`: updates what lies idle in the driver's pool after a call of the program that put `freed_bytes` there, or took as much (negative).
  /// Two questions cost 140 ns, the program's call 340 (H100, driver 580), so most answers are derived from the last one; under a limit, and where
  /// the driver has refused something, it is always asked. `covered_bytes`: what a call that is over counted as covered by idle memory.
  void update_ours(DeviceState& device, std::int64_t freed_bytes, bool must_ask, std::uint64_t covered_bytes = 0) CUPOOL_EXCLUDES(device.lock);
  /// As update_ours(), for the other pools from which the driver serves the program.
  void update_others(DeviceState& device, bool must_ask, std::uint64_t covered_bytes = 0) CUPOOL_EXCLUDES(device.lock);
  /// Asks the driver and books the answer; does nothing before the driver has served something here. `named`: a pool that the caller wants to know
  /// about.
  PoolIdle ask_others(DeviceState& device, CUmemoryPool named = nullptr) CUPOOL_REQUIRES(device.lock);
  /// Books the idle memory of the others anew, after their blocks have changed.
  void book_rounding(DeviceState& device) CUPOOL_REQUIRES(device.lock);

  /// Charges the part of `bytes` that our idle memory does not cover; see NativeBlocks::charge(). Returns what is covered: update_ours() is to book
  /// it, and until then it must be counted in DeviceState::idle_covered_bytes.
  std::optional<std::uint64_t> charge_ours(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// As charge_ours(), for another pool; booked by update_others(), counted in DeviceState::mempools_covered_bytes.
  std::optional<std::uint64_t> charge_named(DeviceState& device, CUmemoryPool pool, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);

  /// Returns what the driver's own pool keeps under `async` to the device: down to `keep_bytes`, or as much as is wanted. Returns the bytes that
  /// went.
  std::uint64_t trim_ours(DeviceState& device, std::uint64_t keep_bytes, std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device.lock);
  /// Trims the others likewise; returns the bytes that went. Waits for nothing.
  std::uint64_t trim_others(DeviceState& device, std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device.lock);

 private:
  static constexpr std::uint32_t kUnaskedCalls = 31;

  /// `covered_bytes` that calls counted as covered are part of their blocks by now, or idle again.
  void book_others(DeviceState& device, std::uint64_t covered_bytes = 0) CUPOOL_REQUIRES(device.lock);

  const ContextPools& homes_;
  const DriverBlocks& blocks_;
  Moves& moves_;
  const config::Policy policy_;
  std::uint32_t unasked_of_ours_ = 0;    ///< calls that may still come before the driver is asked about our pool again
  std::uint32_t unasked_of_others_ = 0;  ///< the same for the others
};

}  // namespace cupool::device
