// OwnerLock: a lock that one thread, its owner, takes all the time and others hardly ever. It costs the owner two plain stores and a load.
//
// The owner says that it is inside and then looks whether another thread wants it out; the other thread says that it wants it out and then looks
// whether it is inside. One of the two must see the other, which takes a full fence on both sides. The other side pays for both, by membarrier(2),
// which makes every running thread of the process pass a fence. Where the kernel has no such call (seccomp; before 4.14) the owner fences itself.
// Thread rule: lock_by_owner() and unlock_by_owner() by the owner; begin()...end() by one thread at a time, which another lock ensures, and which may
// be the owner itself.
// Source: membarrier(2), MEMBARRIER_CMD_PRIVATE_EXPEDITED; Dice et al., Quickly reacquirable locks (2003).
#pragma once

#include <atomic>

#include "pool/core/thread_annotations.hpp"

namespace cupool::device {

/// Decides who executes the fences; one per PoolSet.
class OwnerFences {
 public:
  /// Registers the process with the kernel, which is immediate while it has one thread, and takes some milliseconds later. Until then owners fence
  /// themselves.
  void prepare();
  /// Call between OwnerLock::begin() and wait(), once for any number of locks.
  void fence_all();
  bool are_owners_on_their_own() const { return owners_on_their_own_.load(std::memory_order_relaxed); }

 private:
  std::atomic<bool> owners_on_their_own_{true};
};

class CUPOOL_CAPABILITY("mutex") OwnerLock {
 public:
  /// False: another thread holds it, or is about to; or the owner itself is inside and was interrupted by a signal handler.
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

  /// Keeps the owner from coming in; after fence_all() and wait() it is out.
  void begin() { is_wanted_.store(true, std::memory_order_seq_cst); }
  void wait() CUPOOL_ACQUIRE();
  /// As wait(), without waiting. False: the owner is inside. A caller that gives up leaves the lock wanted, so that the owner does not come back once
  /// it is out.
  bool is_out() const CUPOOL_TRY_ACQUIRE(true) { return !is_inside_.load(std::memory_order_seq_cst); }
  void end() CUPOOL_RELEASE() { is_wanted_.store(false, std::memory_order_release); }
  /// Called by the owner under the lock that orders begin()...end(): nobody is between those two, but somebody may have given up there.
  void forget_wish() { is_wanted_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> is_inside_{false};
  std::atomic<bool> is_wanted_{false};
};

/// The owner is inside for this scope. Precondition: it has locked.
class CUPOOL_SCOPED_CAPABILITY OwnerInside {
 public:
  explicit OwnerInside(OwnerLock& lock) CUPOOL_REQUIRES(lock) : lock_(lock) {}
  ~OwnerInside() CUPOOL_RELEASE() { lock_.unlock_by_owner(); }
  OwnerInside(const OwnerInside&) = delete;
  OwnerInside& operator=(const OwnerInside&) = delete;

 private:
  OwnerLock& lock_;
};

/// The owner stays outside for this scope. Precondition: wait() has returned, or is_out() was true.
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
