// DriverCharge: the part of the limit that is held for one stream-ordered allocation by the driver until it has succeeded or failed, and what the
// driver took beyond it.
//
// Memory that lies idle in the pool that is to serve the call is charged already, and covers as many bytes of it. The call charges what idle memory
// does not cover; how much the driver takes turns out only afterwards, and what passes the limit goes back.
// Thread rule: used by one call in its own thread, with the device's lock not held.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>

#include "pool/device/device_state.hpp"
#include "pool/device/idle_pools.hpp"
#include "pool/device/pool_set.hpp"

namespace cupool::device {

class DriverCharge {
 public:
  /// `rounded_bytes`: the size of the block as the driver rounds it.
  DriverCharge(DeviceState& device, IdlePools& idle_pools, const DriverServed& request, std::uint64_t rounded_bytes)
      : device_(device), idle_pools_(idle_pools), request_(request), bytes_(rounded_bytes) {}
  DriverCharge(const DriverCharge&) = delete;
  DriverCharge& operator=(const DriverCharge&) = delete;
  ~DriverCharge() { refund(); }

  /// Charges the limit for the call: in full, or only what idle memory of the serving pool does not cover. A call that idle memory serves completely
  /// charges nothing. A thread that has freed in stream order natively gets that memory again on the same stream, whatever runs there. False: the
  /// limit refuses. Otherwise the call has its turn (PoolGrowth) until keep() or refund().
  bool take() CUPOOL_EXCLUDES(device_.lock);
  /// The bytes are charged: by take(), or by whoever made room for the call.
  void hold() { is_held_ = true; }
  /// Makes the call, then asks what it has left idle. What was covered is charged in its own right from then on.
  CUresult run(const std::function<CUresult()>& call) CUPOOL_EXCLUDES(device_.lock);
  /// Did the driver take more than the limit allows, because the idle memory was in pieces or another stream's, or its pool grows by a step; and can
  /// nothing be given back to make up for it? Or does the block at `address` lie in what is to go back?
  bool is_beyond_limit(CUdeviceptr address) CUPOOL_EXCLUDES(device_.lock);
  /// Frees what the driver has just served, in the order of its stream; the program has not seen it. It goes back to the device when the stream has
  /// come to the free, and serves nobody until then (PoolGrowth::note_late). False: the driver refuses the free, and the program may have the block.
  bool take_back(CUdeviceptr address) CUPOOL_EXCLUDES(device_.lock);
  /// The charge belongs to the block from now on.
  void keep();
  /// Returns the charge. Precondition: run() was called, or take() was not or has failed, so nothing counts as covered.
  void refund();

 private:
  bool charge() CUPOOL_EXCLUDES(device_.lock);
  void begin_turn() CUPOOL_EXCLUDES(device_.lock);
  void end_turn();
  void cover(std::uint64_t by_bytes, std::uint64_t& all_bytes) CUPOOL_REQUIRES(device_.lock);
  void trim(std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device_.lock);
  std::uint64_t beyond_bytes() const { return saturating_sub(device_.limit.passed_bytes(), passed_bytes_); }

  DeviceState& device_;
  IdlePools& idle_pools_;
  const DriverServed& request_;
  const std::uint64_t bytes_;
  PoolGrowth::Turn turn_;
  std::uint64_t held_bytes_ = 0;     ///< of the limit, without this call, when it was made
  std::uint64_t passed_bytes_ = 0;   ///< how far the limit was passed already then
  std::uint64_t grown_bytes_ = 0;    ///< by so much it has made its pool grow
  std::uint64_t covered_bytes_ = 0;  ///< bytes that idle memory covers, until the call is over and books them
  bool has_turn_ = false;
  bool is_held_ = false;
};

}  // namespace cupool::device
