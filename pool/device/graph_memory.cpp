// Memory that the driver keeps for CUDA graphs: see graph_memory.hpp.
#include "pool/device/graph_memory.hpp"

#include <algorithm>

#include "pool/core/bytes.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

std::optional<std::uint64_t> GraphMemory::ask(DeviceState& device) {
  if (!device.services.graphs_take_memory.load(std::memory_order_relaxed) || device.services.gate.capturing() || !device.services.may_call_driver())
    return std::nullopt;
  if (!device.driver.has_cuDeviceGetGraphMemAttribute()) return std::nullopt;
  cuuint64_t bytes = 0;
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);  // a capture may begin meanwhile
    if (device.driver.cuDeviceGetGraphMemAttribute(device.ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) != CUDA_SUCCESS)
      return std::nullopt;
  }
  device.live.outside.graphs.store(bytes, std::memory_order_relaxed);
  device.graphs_asked_unix_ns.store(unix_now_ns(), std::memory_order_relaxed);
  return bytes;
}

std::uint64_t GraphMemory::bytes_beside(const DeviceState& device, std::uint64_t others_bytes) {
  return std::min(device.live.outside.graphs.load(std::memory_order_relaxed), saturating_sub(device.total_bytes, others_bytes));
}

void GraphMemory::notice_taken(DeviceState& device) {
  const bool has_graphs = device.live.outside.graphs.load(std::memory_order_relaxed) != 0;
  const bool has_idle = device.live.outside.mempools.load(std::memory_order_relaxed) != 0;
  if ((!has_graphs && !has_idle) || !device.has_given_more_than_free()) return;
  const bool is_asked = has_graphs ? ask(device).has_value() : device.services.may_call_driver() && !device.services.gate.capturing();
  if (is_asked && DriverFree::is_current(device)) static_cast<void>(driver_free_.sample(device));
}

void GraphMemory::renew(DeviceState& device) {
  const std::uint64_t before_bytes = device.live.outside.graphs.load(std::memory_order_relaxed);
  const std::optional<std::uint64_t> bytes = ask(device);
  // The driver's free memory is asked for at the same moment: otherwise the ledger would count what has moved twice, or not at all.
  if (bytes && *bytes != before_bytes && DriverFree::is_current(device)) static_cast<void>(driver_free_.sample(device));
}

std::uint64_t GraphMemory::living_graphs(const DeviceState& device) {
  const auto ordinal = static_cast<std::size_t>(device.ordinal);
  return static_cast<std::uint64_t>(std::max(device.services.living_graphs[ordinal].load(std::memory_order_relaxed), 0));
}

bool GraphMemory::trim_would_do(DeviceState& device, std::uint64_t bytes) {
  if (living_graphs(device) != 0) return false;
  const std::optional<std::uint64_t> graph_bytes = ask(device);
  if (!graph_bytes || *graph_bytes == 0) return false;
  const std::uint64_t idle_bytes = figures_.sum(device).wholly_free_bytes;
  const std::uint64_t headroom_bytes = device.limit.headroom_bytes();
  if (headroom_bytes < bytes && bytes - headroom_bytes > idle_bytes) return false;
  const std::uint64_t free_bytes = driver_free_.sample(device).value_or(device.total_bytes) + idle_bytes;
  return free_bytes >= bytes || bytes - free_bytes <= *graph_bytes;
}

std::uint64_t GraphMemory::trim(DeviceState& device) {
  if (policy_ == config::Policy::platform || !device.driver.has_cuDeviceGraphMemTrim()) return 0;
  if (living_graphs(device) != 0) return 0;
  const std::optional<std::uint64_t> before_bytes = ask(device);
  if (!before_bytes || *before_bytes == 0) return 0;
  Mover mover(moves_);
  {
    const MutexUnlock unlocked(device.lock);
    const RelaxedCaptureMode relaxed(device.driver);
    if (device.driver.cuDeviceGraphMemTrim(device.ordinal) != CUDA_SUCCESS) return 0;
  }
  const std::uint64_t after_bytes = ask(device).value_or(*before_bytes);
  const std::uint64_t trimmed_bytes = saturating_sub(*before_bytes, after_bytes);
  mover.note_given_back(device, trimmed_bytes);
  return trimmed_bytes;
}

}  // namespace cupool::device
