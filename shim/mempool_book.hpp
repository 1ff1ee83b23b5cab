// MempoolBook: which of the driver's memory pools cupool serves. The driver makes them and answers for their properties; blocks and
// statistics of a served one are ours.
//
// Served: every device's default pool, and pools that the program makes without special properties (no exportable handles, no
// size of their own, memory of a device). The others stay the driver's. Thread-safe; no lock is held across a driver call.
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

/// What a pool's memory is. Only a device's is held to the limit; of the others nothing is served.
enum class MempoolMemory : std::uint8_t { device, host, managed };

/// A served pool: the index under which PoolSet counts what was served in its name.
struct Mempool {
  int device = -1;
  std::uint8_t index = 0;
};

class MempoolBook {
 public:
  static constexpr std::uint8_t kDefault = 1;

  explicit MempoolBook(const DriverApi& api);

  /// The index of the pool that cuMemAllocAsync takes from on `device`; 0: the driver's.
  std::uint8_t current(int device);
  /// The served pool behind `handle`; nullopt: the driver's, or nobody's. Each thread remembers the few that it uses: no lock on the second use.
  std::optional<Mempool> find(CUmemoryPool handle);
  /// The handle that programs know (or knew: blocks outlive a destroyed pool) pool `index` of `device` by.
  CUmemoryPool handle(Mempool mempool);

  /// `handle` is what cuMemAllocAsync takes from on `device` from now on.
  void set_current(int device, CUmemoryPool handle);
  static constexpr int kNoDevice = -1;
  /// What is known of a pool, of whatever kind.
  struct Made {
    MempoolMemory memory = MempoolMemory::device;
    int device = kNoDevice;  ///< whose memory it gives; kNoDevice: no device's
    std::uint64_t max_bytes = 0;
  };
  /// Served or not. nullopt: nobody here has seen it made, nor given.
  std::optional<Made> facts_of(CUmemoryPool handle);

  /// Of a pool that the program made with a maxSize, whose use the driver is asked for; else, or where nobody here has seen it made, nothing.
  MempoolBounds bounds(CUmemoryPool handle);
  MempoolBounds bounds_of_current(int device);

  void made(CUmemoryPool handle, const CUmemPoolProps& properties);
  /// The driver has told that `handle` is a pool of `location` (cuMemGetDefaultMemPool): of what is not all of a device's nobody else tells.
  void given(CUmemoryPool handle, const CUmemLocation& location, CUmemAllocationType type);
  /// It is about to be destroyed; the answer is for kept(), should the driver refuse.
  std::optional<Made> leave(CUmemoryPool handle);
  void kept(CUmemoryPool handle, const std::optional<Made>& made);
  /// The program made a pool. `unused(index)`: nothing that was served under it lives. False when it stays the driver's.
  template <class Unused> bool created(CUmemoryPool handle, const CUmemPoolProps& properties, Unused&& unused);
  /// What `handle` is now, without a question to the driver: for destroyed(), before the driver's part of it.
  std::optional<Mempool> known(CUmemoryPool handle);
  /// The program has destroyed `handle`, which was `was`; the driver may have given the handle to a new pool since.
  void destroyed(CUmemoryPool handle, std::optional<Mempool> was);
  /// The primary context of `device` has ended: the driver is asked again what the device's pools are (the same on an H100, driver 580).
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
  std::atomic<std::uint64_t> version_;  ///< another one after each change of served_, and never one of another book
  std::unordered_map<CUmemoryPool, Made> made_;
  std::vector<std::pair<CUmemoryPool, Mempool>> retired_;  ///< destroyed; their index is handed out again when no block is left
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
    if (const auto old = served_.find(handle); old != served_.end()) retired_.emplace_back(handle, old->second);  // destroyed, and not booked yet
    served_[handle] = {device, index};
    changed();
    return true;
  }
  return false;
}

}  // namespace cupool::shim
