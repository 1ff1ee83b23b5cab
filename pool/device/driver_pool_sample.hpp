// DriverPoolSample: what memory pools of the driver keep idle, as the driver said last.
//
// The contexts of a device share its default pool, and several threads may ask at once: of two answers that of whoever asked later stands, because
// the driver knew then what the other thread's calls had done. Thread-safe; a leaf lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "pool/core/bytes.hpp"
#include "pool/core/mutex.hpp"

namespace cupool::device {

class DriverPoolSample {
 public:
  /// Says who asks later: to be taken before the driver is asked, and given to update().
  std::uint64_t ticket() { return tickets_.fetch_add(1, std::memory_order_acq_rel) + 1; }
  /// The driver's answer. Ignored where there is one to a later ticket.
  void update(std::uint64_t ticket, std::uint64_t idle_bytes) {
    const MutexLock lock(mutex_);
    if (ticket < newest_) return;
    newest_ = ticket;
    idle_bytes_.store(idle_bytes, std::memory_order_relaxed);
  }
  /// Corrects the last answer by calls that were made since, without asking: `bytes` more are idle, or fewer if negative.
  void reckon(std::int64_t bytes) {
    const MutexLock lock(mutex_);
    const std::uint64_t idle_bytes = idle_bytes_.load(std::memory_order_relaxed);
    const std::uint64_t now_bytes =
        bytes < 0 ? saturating_sub(idle_bytes, static_cast<std::uint64_t>(-bytes)) : idle_bytes + static_cast<std::uint64_t>(bytes);
    idle_bytes_.store(now_bytes, std::memory_order_relaxed);
  }
  std::uint64_t idle_bytes() const { return idle_bytes_.load(std::memory_order_relaxed); }

  /// What a pool says is in use. A driver that counts the sizes that were asked for, and not what blocks are rounded up to, is recognised by the
  /// first number that is no multiple of a block (H100 and H200, driver 580, are such).
  void note_used(std::uint64_t used_bytes) {
    if (used_bytes % kBlockAlignment_bytes != 0) counts_requested_.store(true, std::memory_order_relaxed);
  }
  bool counts_requested() const { return counts_requested_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> tickets_{0};
  std::atomic<std::uint64_t> idle_bytes_{0};
  std::atomic<bool> counts_requested_{false};
  Mutex mutex_;
  std::uint64_t newest_ CUPOOL_GUARDED_BY(mutex_) = 0;  ///< the ticket of the answer that stands
};

}  // namespace cupool::device
