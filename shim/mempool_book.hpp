// MempoolBook: which memory pools cupool serves. The driver creates every pool and answers for its properties; blocks and statistics of a served pool
// are ours.
//
// Served are the default pool of each device, and pools that the program creates with memory of a device and without special properties (no
// exportable handles, no maximum size). The others stay the driver's. Thread-safe; no lock is held across a driver call. Pools are asked about by
// cuDeviceGet*MemPool and cuMemPoolGetAttribute.
#pragma once

#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "pool/device/pool_set.hpp"
#include "pool/driver/driver_api.hpp"
#include "pool/observe/live_page.hpp"

namespace cupool::shim {

/// Whose memory a pool gives. Only device memory is held to CUPOOL_LIMIT, and only pools of it are served.
enum class MempoolMemory : std::uint8_t { device, host, managed };

/// A served pool: the index under which PoolSet counts what was served in its name, unique among the pools of its device.
struct Mempool {
  int device = -1;
  std::uint8_t index = 0;
};

class MempoolBook {
 public:
  static constexpr std::uint8_t kDefault = 1;  ///< the index of every device's default pool

  explicit MempoolBook(const DriverApi& api);

  /// The index of the pool that cuMemAllocAsync takes from on `device`; 0: the driver serves it.
  std::uint8_t current(int device);
  /// The served pool behind `handle`; nullopt: it is the driver's, or no pool. Each thread remembers the few that it uses, so that the second use of
  /// one takes no lock.
  std::optional<Mempool> find(CUmemoryPool handle);
  /// The handle by which programs know a served pool, or knew it: blocks outlive a destroyed pool. nullptr: there was none.
  CUmemoryPool handle(Mempool mempool);

  /// From now on cuMemAllocAsync takes from the pool `handle` on `device`.
  void set_current(int device, CUmemoryPool handle);
  static constexpr int kNoDevice = -1;
  /// What is known of a pool, served or not.
  struct Made {
    MempoolMemory memory = MempoolMemory::device;
    int device = kNoDevice;       ///< whose memory it gives; kNoDevice: no device's
    std::uint64_t max_bytes = 0;  ///< 0: it has no maximum size
  };
  /// nullopt: the pool was neither created by a call that we saw, nor named by one.
  std::optional<Made> facts_of(CUmemoryPool handle);

  /// The maximum size that the program has given the pool, and how much the driver says is in use of it; empty where it has none, or is not known.
  MempoolBounds bounds(CUmemoryPool handle);
  MempoolBounds bounds_of_current(int device);

  /// The program has created a pool: keeps its facts, whoever serves it.
  void made(CUmemoryPool handle, const CUmemPoolProps& properties);
  /// The driver has named `handle` as a pool of `location` (cuMemGetMemPool, cuMemGetDefaultMemPool): pools of places other than a device are met
  /// only so.
  void given(CUmemoryPool handle, const CUmemLocation& location, CUmemAllocationType type);
  /// The pool is about to be destroyed: forgets its facts, and returns them for kept(), should the driver refuse.
  std::optional<Made> leave(CUmemoryPool handle);
  void kept(CUmemoryPool handle, const std::optional<Made>& made);
  /// The program has created a pool: serves it from now on, if its properties allow that and the device has an index left. `unused(index)`: does no
  /// block live that was served under that index? False: it stays the driver's.
  template <class Unused> bool created(CUmemoryPool handle, const CUmemPoolProps& properties, Unused&& unused);
  /// The served pool behind `handle`, without asking the driver: to be called before the driver destroys it, for destroyed().
  std::optional<Mempool> known(CUmemoryPool handle);
  /// The program has destroyed `handle`, which was `was`; the driver may have given the handle to a new pool since.
  void destroyed(CUmemoryPool handle, std::optional<Mempool> was);
  /// The primary context of `device` has ended: the driver is asked again for the device's pools (on an H100, driver 580, they are the same ones).
  void device_reset(int device);

 private:
  static bool is_plain(const CUmemPoolProps& properties);
  void learn(int device);
  std::optional<Mempool> look_up(CUmemoryPool handle);
  void changed() { version_.fetch_add(1, std::memory_order_release); }

  const DriverApi& api_;
  std::array<std::atomic<std::uint8_t>, observe::kMaxDevices> current_{};  ///< 0: not asked yet; else index + 1
  std::mutex mutex_;
  std::unordered_map<CUmemoryPool, Mempool> served_;
  std::atomic<std::uint64_t> version_;  ///< a new one after each change of served_; no two books ever have the same
  std::unordered_map<CUmemoryPool, Made> made_;
  std::vector<std::pair<CUmemoryPool, Mempool>> retired_;  ///< destroyed ones, kept while blocks may live: their index is not used again before
};

template <class Unused> bool MempoolBook::created(CUmemoryPool handle, const CUmemPoolProps& properties, Unused&& unused) {
  const int device = properties.location.id;
  if (!is_plain(properties) || device < 0 || static_cast<std::size_t>(device) >= observe::kMaxDevices) return false;
  const std::lock_guard lock(mutex_);
  for (std::uint8_t index = kDefault + 1; index < PoolSet::kMempools; ++index) {
    bool taken = !unused(index);
    for (const auto& [other, mempool] : served_) taken = taken || (mempool.device == device && mempool.index == index);
    if (taken) continue;
    std::erase_if(retired_, [&](const auto& one) { return one.second.device == device && one.second.index == index; });
    if (const auto old = served_.find(handle); old != served_.end()) retired_.emplace_back(handle, old->second);  // its destruction is not booked yet
    served_[handle] = {device, index};
    changed();
    return true;
  }
  return false;
}

}  // namespace cupool::shim
