// OwnerLock: a lock that one thread, its owner, takes all the time and others hardly ever. For the owner it is two plain stores and a load.
//
// The owner says that it is inside and then looks whether somebody wants it out; somebody who wants it out says so and then looks whether it is
// inside. One of the two must see the other, which takes a full fence on both sides: the other side pays for both, by membarrier(2),
// which makes every running thread of the process pass a fence. Where the kernel has none (seccomp; before 4.14) the owner fences itself.
// Thread rule: lock_by_owner() and unlock_by_owner() by the owner; begin()...end() by one thread at a time, which some other lock sees to. The owner
// may be that thread. Source: membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED; Dice et al., Quickly reacquirable locks (2003).
#pragma once

#include <atomic>

#include "pool/core/thread_annotations.hpp"

namespace cupool::device {

/// Who pays for the fences; one per PoolSet.
class OwnerFences {
 public:
  /// Registers the process with the kernel: at once while it has one thread, else within some milliseconds. Until then owners fence themselves.
  void prepare();
  /// Between OwnerLock::begin() and wait(), once for any number of locks.
  void fence_all();
  bool are_owners_on_their_own() const { return owners_on_their_own_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> owners_on_their_own_{true};
};

class CUPOOL_CAPABILITY("mutex") OwnerLock {
 public:
  /// False: somebody else is here, or about to be; or the owner itself, whom a signal handler has interrupted.
  bool lock_by_owner(const OwnerFences& fences) CUPOOL_TRY_ACQUIRE(true) {
    if (is_inside_.load(std::memory_order_relaxed)) [[unlikely]]
      return false;
    if (fences.are_owners_on_their_own()) [[unlikely]] {
      is_inside_.exchange(true, std::memory_order_seq_cst);
    } else {
      is_inside_.store(true, std::memory_order_relaxed);
      std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the order, fence_all() does the rest
    }
    if (!is_wanted_.load(std::memory_order_seq_cst)) [[likely]]
      return true;
    is_inside_.store(false, std::memory_order_release);
    return false;
  }
  void unlock_by_owner() CUPOOL_RELEASE() { is_inside_.store(false, std::memory_order_release); }

  /// The owner does not come in any more; after fence_all() and wait() it is out.
  void begin() { is_wanted_.store(true, std::memory_order_seq_cst); }
  void wait() CUPOOL_ACQUIRE();
  /// The same without waiting. False: it is inside; whoever gives up leaves it wanted, so that it goes out and does not come back meanwhile.
  bool is_out() const CUPOOL_TRY_ACQUIRE(true) { return !is_inside_.load(std::memory_order_seq_cst); }
  void end() CUPOOL_RELEASE() { is_wanted_.store(false, std::memory_order_release); }
  /// By the owner, under the lock that orders begin()...end(): nobody is between them, but somebody may have given up there.
  void forget_wish() { is_wanted_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> is_wanted_{false};
};

/// The owner's scope. Precondition: it is locked.
class CUPOOL_SCOPED_CAPABILITY OwnerInside {
 public:
  explicit OwnerInside(OwnerLock& lock) CUPOOL_REQUIRES(lock) : lock_(lock) {}
  ~OwnerInside() CUPOOL_RELEASE() { lock_.unlock_by_owner(); }
  OwnerInside(const OwnerInside&) = delete;
  OwnerInside& operator=(const OwnerInside&) = delete;

 private:
  OwnerLock& lock_;
};

/// Somebody else's: out of the scope the owner may come in again. Precondition: wait() is over, or is_out().
class CUPOOL_SCOPED_CAPABILITY OwnerOutside {
 public:
  explicit OwnerOutside(OwnerLock& lock) CUPOOL_REQUIRES(lock) : lock_(lock) {}
  ~OwnerOutside() CUPOOL_RELEASE() { lock_.end(); }
  OwnerOutside(const OwnerOutside&) = delete;
  OwnerOutside& operator=(const OwnerOutside&) = delete;

 private:
  OwnerLock& lock_;
};

}  // namespace cupool::device
