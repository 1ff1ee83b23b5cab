// What the driver keeps for CUDA graphs: memory that their allocation nodes took at a launch stays with the device's graphs, also when all of them
// are gone, until it is trimmed (CUDA Programming Guide 13.0, "Graph Memory Nodes"). Only the driver knows how much that is, and nobody else can have it.
#include <algorithm>

#include "pool/device/device_pool.hpp"
#include "pool/driver/handles.hpp"

namespace cupool::device {

/// As the driver says; not while something captures, and only once the program has made such a graph. What is told of it is as old as the last answer.
std::optional<std::uint64_t> DevicePool::ask_graph_memory() {
  if (!device_.services.graphs_take_memory.load(std::memory_order_relaxed) || capturing() || !may_call_driver()) return std::nullopt;
  if (!device_.driver.has_cuDeviceGetGraphMemAttribute()) return std::nullopt;
  cuuint64_t bytes = 0;
  {
    const MutexUnlock unlocked(device_.lock);
    const RelaxedCaptureMode relaxed(device_.driver);  // a capture may begin meanwhile
    if (device_.driver.cuDeviceGetGraphMemAttribute(device_.ordinal, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &bytes) != CUDA_SUCCESS) return std::nullopt;
  }
  device_.live.outside.graphs.store(bytes, std::memory_order_relaxed);
  device_.graphs_asked_unix_ns.store(unix_now_ns(), std::memory_order_relaxed);
  return bytes;
}

std::uint64_t DevicePool::graph_bytes_beside(std::uint64_t others_bytes) const {
  return std::min(device_.live.outside.graphs.load(std::memory_order_relaxed), device_.total_bytes - std::min(others_bytes, device_.total_bytes));
}

/// A call was served by what the driver kept for graphs, which it gives to its own calls: then it keeps less, and has something else free.
void DevicePool::notice_taken_from_graphs() {
  if (device_.live.outside.graphs.load(std::memory_order_relaxed) == 0 || !device_.has_given_more_than_free()) return;
  if (ask_graph_memory() && DriverFree::is_current(device_)) static_cast<void>(driver_free_.sample(device_));
}

void DevicePool::note_graph_memory() {
  const MutexLock lock(device_.lock);
  const std::uint64_t before_bytes = device_.live.outside.graphs.load(std::memory_order_relaxed);
  const std::optional<std::uint64_t> bytes = ask_graph_memory();
  // What the driver has free is of the same moment then: else the ledger would count what has moved twice, or not at all.
  if (bytes && *bytes != before_bytes && DriverFree::is_current(device_)) static_cast<void>(driver_free_.sample(device_));
}

std::uint64_t DevicePool::living_graphs() const {
  const auto ordinal = static_cast<std::size_t>(device_.ordinal);
  return static_cast<std::uint64_t>(std::max(device_.services.living_graphs[ordinal].load(std::memory_order_relaxed), 0));
}

/// Would the driver have `bytes` together with what it keeps for graphs, and what the pool can give back?
bool DevicePool::trim_would_do(std::uint64_t bytes) {
  if (living_graphs() != 0) return false;
  const std::optional<std::uint64_t> graph_bytes = ask_graph_memory();
  if (!graph_bytes || *graph_bytes == 0) return false;
  const std::uint64_t idle_bytes = figures_.sum(device_).wholly_free_bytes;
  const std::uint64_t headroom_bytes = device_.limit.headroom_bytes();
  if (headroom_bytes < bytes && bytes - headroom_bytes > idle_bytes) return false;
  const std::uint64_t free_bytes = driver_free_.sample(device_).value_or(device_.total_bytes) + idle_bytes;
  return free_bytes >= bytes || bytes - free_bytes <= *graph_bytes;
}

/// What graphs keep that are gone goes back to the device. Not while an executable one lives: the call leaves alone only what a graph uses that runs or waits to run
/// (H100 and H200, driver 580), and a launch that finds its memory gone may be refused, which natively it never is. Only where the program
/// would be refused otherwise, and not under `platform`, where every answer is the driver's own. Returns bytes. The call waits for nothing.
std::uint64_t DevicePool::trim_graphs() {
  if (policy_ == config::Policy::platform || !device_.driver.has_cuDeviceGraphMemTrim()) return 0;
  if (living_graphs() != 0) return 0;
  const std::optional<std::uint64_t> before_bytes = ask_graph_memory();
  if (!before_bytes || *before_bytes == 0) return 0;
  Mover mover(moves_);
  {
    const MutexUnlock unlocked(device_.lock);
    const RelaxedCaptureMode relaxed(device_.driver);
    if (device_.driver.cuDeviceGraphMemTrim(device_.ordinal) != CUDA_SUCCESS) return 0;
  }
  const std::uint64_t after_bytes = ask_graph_memory().value_or(*before_bytes);
  const std::uint64_t trimmed_bytes = *before_bytes - std::min(*before_bytes, after_bytes);
  mover.note_given_back(device_, trimmed_bytes);
  return trimmed_bytes;
}

std::size_t DevicePool::give_back_graph_memory() {
  const MutexLock lock(device_.lock);
  return trim_graphs();
}

}  // namespace cupool::device
