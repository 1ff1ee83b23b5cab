// Mailbox: a bounded list that any thread may add to, also under a device's lock, and that is taken out as a whole later, under none.
//
// Thread-safe; a leaf lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>
#include <vector>

#include "pool/core/mutex.hpp"

namespace cupool::device {

/// When it is full the oldest item makes room.
template <class T> class Mailbox {
 public:
  explicit Mailbox(std::size_t capacity) : capacity_(capacity) {}
  void add(T item) {
    const MutexLock lock(mutex_);
    if (items_.size() == capacity_) items_.erase(items_.begin());
    items_.push_back(std::move(item));
    is_empty_.store(false, std::memory_order_release);
  }
  /// Drops the item when half of the room is taken: the rest is for items of add(), which these must not push out.
  void add_while_half_empty(T item) {
    {
      const MutexLock lock(mutex_);
      if (items_.size() >= capacity_ / 2) return;
    }
    add(std::move(item));
  }
  bool empty() const { return is_empty_.load(std::memory_order_acquire); }  ///< lock-free
  /// Takes all items out, oldest first; none while another thread has the lock: they stay for later.
  std::vector<T> take() {
    if (!mutex_.try_lock()) return {};
    const AdoptedLock lock(mutex_);
    is_empty_.store(true, std::memory_order_release);
    return std::exchange(items_, {});
  }

 private:
  const std::size_t capacity_;
  Mutex mutex_;
  std::vector<T> items_ CUPOOL_GUARDED_BY(mutex_);
  std::atomic<bool> is_empty_{true};
};

}  // namespace cupool::device
