// IdlePools: what memory pools of the driver's keep idle, as the limit knows it, and what of it serves a call of the driver's or goes back to the
// device.
//
// *Ours* is the device's own pool under `async`: there it is the pool (native_blocks.cpp). The *others* are those from which the driver serves the
// program itself: those that the program made, and the device's own where the driver serves that (`platform`, and on segments the streams of contexts
// that cuCtxDestroy may end). It is the program's to have kept, by a release threshold; to everybody else it is gone. So it counts as held, and goes
// back to the device before somebody is refused for it.
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

  /// Lock-free: nobody is asked before the driver has served something here.
  static bool are_others_asked(const DeviceState& device) {
    return device.has_driver_blocks.load(std::memory_order_relaxed) && device.services.may_call_driver();
  }
  bool is_ours(bool is_of_default_pool) const { return is_of_default_pool && policy_ == config::Policy::async; }

  /// Under `async`: what lies idle in the driver's pool after a call of the program's that put `freed_bytes` there, or took as much. Two questions
  /// cost 140 ns, the call 340 (H100, driver 580): most answers are reckoned from the last one; under a limit none is, nor where the driver refused
  /// something. `covered_bytes`: of a call that is over, and that counted them as held by what lay idle.
  void update_ours(DeviceState& device, std::int64_t freed_bytes, bool must_ask, std::uint64_t covered_bytes = 0) CUPOOL_EXCLUDES(device.lock);
  /// The same of the other pools from which the driver serves the program.
  void update_others(DeviceState& device, bool must_ask, std::uint64_t covered_bytes = 0) CUPOOL_EXCLUDES(device.lock);
  /// Asks and books; nothing, and no question, before the driver has served something here. `named`: a pool about which the caller wants to know.
  PoolIdle ask_others(DeviceState& device, CUmemoryPool named = nullptr) CUPOOL_REQUIRES(device.lock);
  /// What lies idle in pools that the driver serves, after the blocks there have changed.
  void book_rounding(DeviceState& device) CUPOOL_REQUIRES(device.lock);

  /// Charges of `bytes` what idle memory of ours does not cover, see NativeBlocks::charge(). Returns what it covers, which is to be booked by
  /// update_ours(), and is to stand in DeviceState::idle_covered_bytes until then.
  std::optional<std::uint64_t> charge_ours(DeviceState& device, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);
  /// The same of another pool, by update_others() and DeviceState::mempools_covered_bytes.
  std::optional<std::uint64_t> charge_named(DeviceState& device, CUmemoryPool pool, std::uint64_t bytes) CUPOOL_REQUIRES(device.lock);

  /// What the driver's own pool keeps under `async`, or as much of it as is wanted. Returns bytes.
  std::uint64_t trim_ours(DeviceState& device, std::uint64_t keep_bytes, std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device.lock);
  /// Returns bytes. Waits for nothing.
  std::uint64_t trim_others(DeviceState& device, std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device.lock);

 private:
  static constexpr std::uint32_t kUnaskedCalls = 31;

  /// What threads were covered by is in their blocks now, or free again: `covered_bytes`.
  void book_others(DeviceState& device, std::uint64_t covered_bytes = 0) CUPOOL_REQUIRES(device.lock);

  const ContextPools& homes_;
  const DriverBlocks& blocks_;
  Moves& moves_;
  const config::Policy policy_;
  std::uint32_t unasked_of_ours_ = 0;    ///< so many more may come before the driver is asked what lies idle
  std::uint32_t unasked_of_others_ = 0;  ///< likewise
};

}  // namespace cupool::device
