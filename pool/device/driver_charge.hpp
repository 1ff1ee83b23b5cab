// DriverCharge: what is held of the limit for one stream-ordered allocation that the driver serves, unless that succeeds; and what the driver took
// beyond it.
//
// What lies idle in the pool that is to serve the call is held already, and covers as much of it. A call takes from the limit what idle memory does
// not cover; that is known for sure only afterwards, and what was too much is taken back.
// Thread rule: one call's, by its thread, with the device's lock not held.
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
  /// `rounded_bytes`: of the block.
  DriverCharge(DeviceState& device, IdlePools& idle_pools, const DriverServed& request, std::uint64_t rounded_bytes)
      : device_(device), idle_pools_(idle_pools), request_(request), bytes_(rounded_bytes) {}
  DriverCharge(const DriverCharge&) = delete;
  DriverCharge& operator=(const DriverCharge&) = delete;
  ~DriverCharge() { refund(); }

  /// Room within the limit for one of these calls: in full, or as much as what lies idle in the pool that is to serve it does not cover. A call that
  /// idle memory serves takes nothing; and who has freed in the order of a stream natively has it again on that stream, whatever runs there.
  bool take() CUPOOL_EXCLUDES(device_.lock);
  /// It is held, by take() or by who made room for it.
  void hold() { is_held_ = true; }
  /// The call, and what it has left idle. What was covered is held by itself from then on.
  CUresult run(const std::function<CUresult()>& call) CUPOOL_EXCLUDES(device_.lock);
  /// Idle memory that was to serve the call was in pieces, or another stream's, and the driver took more than the limit has; nothing that goes back
  /// makes up for it.
  bool is_beyond_limit() CUPOOL_EXCLUDES(device_.lock);
  /// Frees what the driver has just served, in the order of its stream: nobody has seen it. It goes back to the device when the stream has come to
  /// it, and until then it serves nobody (DeviceState::taken_back_bytes). False: the driver keeps it, and the program may have it.
  bool take_back(CUdeviceptr address) CUPOOL_EXCLUDES(device_.lock);
  /// It is the block's.
  void keep() { is_held_ = false; }
  /// Precondition: what was covered is booked: run() was called, or take() was not, or in vain.
  void refund();

 private:
  void cover(std::uint64_t by_bytes, std::uint64_t& all_bytes) CUPOOL_REQUIRES(device_.lock);
  void trim(std::uint64_t wanted_bytes) CUPOOL_REQUIRES(device_.lock);

  DeviceState& device_;
  IdlePools& idle_pools_;
  const DriverServed& request_;
  const std::uint64_t bytes_;
  std::uint64_t passed_bytes_ = 0;   ///< what was held beyond the limit before
  std::uint64_t covered_bytes_ = 0;  ///< until the call has been made, and books it
  bool was_covered_ = false;
  bool is_held_ = false;
};

}  // namespace cupool::device
