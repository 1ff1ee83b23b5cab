// Preallocation: takes CUPOOL_PREALLOCATE at a device's first pooled allocation, for the context that makes it.
//
// The memory ends with that context, and is taken again by the first allocation of the next one.
// Thread rule: the device's lock, let go of around every driver call.
#pragma once

#include "config/options.hpp"
#include "pool/device/context_pool.hpp"
#include "pool/device/device_state.hpp"
#include "pool/device/driver_free.hpp"

namespace cupool::device {

class Preallocation {
 public:
  Preallocation(DriverFree& driver_free, config::Policy policy) : driver_free_(driver_free), policy_(policy) {}

  /// Was it taken, or is a thread taking it?
  bool is_done() const { return is_done_; }
  /// A thread is taking it; the others wait for it.
  bool is_under_way() const { return is_under_way_; }
  /// Waits for that thread, unless the driver keeps it: it may wait for work that waits for this thread.
  void await(DeviceState& device) CUPOOL_REQUIRES(device.lock);
  /// Takes it; done at once where nothing is asked for. Precondition: `home.context` is current.
  void take(DeviceState& device, ContextPool& home) CUPOOL_REQUIRES(device.lock);
  /// The context took it along: the first allocation of the next context takes it again.
  void forget(const ContextPool& home);

 private:
  /// `free_bytes`: what the driver had reported as free before.
  struct Taken {
    std::uint64_t bytes = 0;
    std::uint64_t asked_bytes = 0;
    std::uint64_t free_bytes = 0;
  };

  CUresult reserve(DeviceState& device, ContextPool& home, std::uint64_t bytes) const CUPOOL_REQUIRES(device.lock);
  static void warn_of_less(DeviceState& device, const Taken& taken, CUresult code);

  DriverFree& driver_free_;
  const config::Policy policy_;
  bool is_done_ = false;
  bool is_under_way_ = false;
  const ContextPool* home_ = nullptr;
};

}  // namespace cupool::device
