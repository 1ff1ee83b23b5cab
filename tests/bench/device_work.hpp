// Work on the simulated driver that touches blocks: the device is kept a fixed number of frees behind the host, as it is in a real
// job, so that a pool has to defer. Test kernels write into a block when it is allocated and look at it around its free; what
// they do they do when they complete, so that memory given away too early shows.
// Thread rule: one user; a thread of its own plays the device that goes on while the host waits inside a call.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <queue>
#include <thread>
#include <unordered_map>
#include <vector>

namespace bench {

class DeviceWork {
 public:
  /// At most `frees_behind` looks are pending, a microsecond of the device's time each. Throws AllocatorFailure where libcuda.so.1
  /// is not the simulated driver.
  explicit DeviceWork(std::uint64_t frees_behind);
  ~DeviceWork();
  DeviceWork(const DeviceWork&) = delete;
  DeviceWork& operator=(const DeviceWork&) = delete;

  /// The block is written, in the stream's order. Takes no time of the device.
  void write(void* stream, void* address, std::uint32_t slot);
  /// The block is looked at, by work that is still pending when this returns.
  void read(void* stream, void* address, std::uint32_t slot);
  /// Completes what is pending. Bytes that were not what had been written.
  std::uint64_t finish();

 private:
  using Ends = std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>>;

  void work_while_host_waits();

  struct Controls;  ///< the simulated driver's control surface
  const Controls& controls_;
  std::uint64_t frees_behind_;
  std::unordered_map<void*, std::uint64_t> stream_end_ns_;
  Ends pending_ends_ns_;
  std::atomic<std::uint64_t> steps_{0};
  std::atomic<bool> over_{false};
  std::thread device_;
};

}  // namespace bench
