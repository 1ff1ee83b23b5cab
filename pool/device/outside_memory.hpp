// OutsideMemory: which handles of the program hold device memory that the pool did not serve.
//
// Keys are handles or addresses; sums and limits are the device pool's. Thread-safe; a leaf lock.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <unordered_map>

#include "pool/core/mutex.hpp"
#include "pool/device/pool_set.hpp"

namespace cupool::device {

class OutsideMemory {
 public:
  struct Entry { int device = 0; std::uint64_t bytes = 0; };

  /// Returns what stood under the same key before: a handle that was released behind our back and came again.
  std::optional<Entry> add(OutsideKind kind, std::uint64_t key, Entry entry) {
    const MutexLock lock(mutex_);
    const auto [found, added] = entries_[static_cast<std::size_t>(kind)].try_emplace(key, entry);
    if (added) return std::nullopt;
    const Entry before = found->second;
    found->second = entry;
    return before;
  }
  std::optional<Entry> remove(OutsideKind kind, std::uint64_t key) {
    const MutexLock lock(mutex_);
    auto& entries = entries_[static_cast<std::size_t>(kind)];
    const auto found = entries.find(key);
    if (found == entries.end()) return std::nullopt;
    const Entry entry = found->second;
    entries.erase(found);
    return entry;
  }

 private:
  Mutex mutex_;
  std::array<std::unordered_map<std::uint64_t, Entry>, static_cast<std::size_t>(OutsideKind::kCount)> entries_ CUPOOL_GUARDED_BY(mutex_);
};

}  // namespace cupool::device
