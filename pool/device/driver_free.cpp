// Questions to the driver about its free memory: see driver_free.hpp.
#include "pool/device/driver_free.hpp"

#include "pool/driver/handles.hpp"

namespace cupool::device {

std::optional<std::uint64_t> DriverFree::sample(DeviceState& device) {
  static_cast<void>(idle_pools_.ask_others(device));  // at the same moment: memory that the pools have given back is part of the driver's free memory
  const MutexUnlock unlocked(device.lock);
  const RelaxedCaptureMode relaxed(device.driver);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  if (device.driver.cuMemGetInfo_v2(&free_bytes, &total_bytes) != CUDA_SUCCESS) return std::nullopt;
  device.publish_driver_free(free_bytes);
  return free_bytes;
}

std::optional<std::uint64_t> DriverFree::ask(DeviceState& device) {
  if (is_current(device)) return sample(device);
  for (std::size_t i = 0; i < homes_.size(); ++i) {  // by index: the list may grow while the lock is let go of
    ContextPool& home = *homes_[i];
    const CUcontext context = home.context;
    const PinnedContext pinned(device.services.contexts, &home, context);
    if (!pinned) continue;
    const ScopedContext inside(device.driver, context);
    if (inside.status().ok()) return sample(device);
  }
  return std::nullopt;
}

bool DriverFree::is_current(DeviceState& device) {
  const MutexUnlock unlocked(device.lock);
  CUcontext context = nullptr;
  if (device.driver.cuCtxGetCurrent(&context) != CUDA_SUCCESS || context == nullptr) return false;
  if (const ContextPool* home = device.services.contexts.find(context)) return &home->device == &device;
  CUdevice current = 0;
  unsigned version = 0;
  const bool lives = device.driver.has_cuCtxGetApiVersion() && device.driver.cuCtxGetApiVersion(context, &version) == CUDA_SUCCESS;
  return lives && device.driver.cuCtxGetDevice(&current) == CUDA_SUCCESS && current == device.ordinal;
}

void DriverFree::sample_first(DeviceState& device, bool is_of_device) {
  if (device.is_driver_sampled() || has_asked_ || device.services.gate.capturing() || !device.services.may_call_driver()) return;
  if (!is_of_device && !is_current(device)) return;
  has_asked_ = true;
  static_cast<void>(sample(device));
}

bool DriverFree::has_room(DeviceState& device, std::uint64_t bytes) {
  const std::uint64_t need_bytes = bytes + kDriversChunk_bytes;
  if (device.room_bytes() >= need_bytes || device.live.outside.mempools.load(std::memory_order_relaxed) >= bytes) return true;
  if (device.limit.headroom_bytes() < need_bytes || device.services.gate.capturing() || !device.services.may_call_driver()) return false;
  static_cast<void>(sample(device));
  return device.room_bytes() >= need_bytes;
}

bool DriverFree::has_much_room(DeviceState& device, std::uint64_t bytes) {
  if (device.services.gate.capturing() || !sample(device)) return false;
  return device.room_bytes() >= bytes + kDriversChunk_bytes;
}

}  // namespace cupool::device
