// OutsideMemory: which handles of the program hold device memory that the pool did not serve.
//
// Keys are handles or addresses; sums and limits are kept by the device pool.
// Thread rule: thread-safe; a leaf lock.
#pragma once

#include <cuda.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "pool/core/mutex.hpp"
#include "pool/device/pool_set.hpp"

namespace cupool::device {

class OutsideMemory {
 public:
  struct Entry {
    int device = 0;
    std::uint64_t bytes = 0;
    CUcontext context = nullptr;
    std::uint64_t serial = 0;
  };

  /// Returns what was listed under the same key before: a handle that was released behind our back and came again.
  std::optional<Entry> add(OutsideKind kind, std::uint64_t key, Entry entry) {
    const MutexLock lock(mutex_);
    entry.serial = ++serial_;
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

  /// A mark in time: what is added later belongs to a later context, should the handle of a context come again.
  std::uint64_t mark() {
    const MutexLock lock(mutex_);
    return serial_;
  }
  /// Takes out what ended with `context`, of what existed at `before`, in parts: returns how many were written to `gone`; fewer than fit means all.
  /// Needs no host memory.
  std::size_t remove_of(CUcontext context, std::uint64_t before, std::span<std::pair<OutsideKind, Entry>> gone) {
    const MutexLock lock(mutex_);
    std::size_t count = 0;
    for (std::size_t kind = 0; kind < entries_.size(); ++kind) {
      std::erase_if(entries_[kind], [&](const auto& one) {
        if (one.second.context != context || one.second.serial > before || count == gone.size()) return false;
        gone[count++] = {static_cast<OutsideKind>(kind), one.second};
        return true;
      });
    }
    return count;
  }

 private:
  Mutex mutex_;
  std::uint64_t serial_ CUPOOL_GUARDED_BY(mutex_) = 0;
  std::array<std::unordered_map<std::uint64_t, Entry>, static_cast<std::size_t>(OutsideKind::kCount)> entries_ CUPOOL_GUARDED_BY(mutex_);
};

}  // namespace cupool::device
