// Mutex: a pthread mutex that clang's thread-safety analysis knows, and the guards for it.
//
// Lock order of the pool, outermost first: whoever holds one may take those below it, never those above. (The shim has two locks above these, see
// ARCHITECTURE.md, "Lock order"; and a device is created under PoolSet's birth_lock, which is above them all.)
//   1. CaptureGate (shared by recorders, exclusive for BeginCapture)
//   2. DeviceState::memops_lock (orders SYNC_MEMOPS calls of one device)
//   3. DeviceState::lock, one per device; two devices' locks are never held together
//   4. Magazine::lock: that of the calling thread's own magazine, or those of other threads' magazines that it closes
//   5. leaves, under which nothing else is taken: those of ContextRegistry, OutsideMemory, DriverPools, AsyncBlocks and VirtualMemory,
//      DeviceState::driver_free_mutex, the list of OOMs and that of messages
// No driver call that may block is made under 3 to 5; a new device or context is asked its size and granularity there, which does not block.
#pragma once

#include <pthread.h>

#include "pool/core/thread_annotations.hpp"
#include "pool/core/uncancelled.hpp"

namespace cupool {

class CUPOOL_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  // These calls cannot fail: the mutex is neither error-checking nor robust, and is never destroyed while in use.
  void lock() CUPOOL_ACQUIRE() { pthread_mutex_lock(&native_); }
  void unlock() CUPOOL_RELEASE() { pthread_mutex_unlock(&native_); }
  bool try_lock() CUPOOL_TRY_ACQUIRE(true) { return pthread_mutex_trylock(&native_) == 0; }
  pthread_mutex_t* native() { return &native_; }

 private:
  pthread_mutex_t native_ = PTHREAD_ADAPTIVE_MUTEX_INITIALIZER_NP;
};

/// Holds a Mutex for a scope; may release it in between (unlock, then lock again).
class CUPOOL_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) CUPOOL_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() CUPOOL_RELEASE() {
    if (held_) mutex_.unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() CUPOOL_RELEASE() {
    held_ = false;
    mutex_.unlock();
  }
  void lock() CUPOOL_ACQUIRE() {
    mutex_.lock();
    held_ = true;
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

/// Unlocks a Mutex, which try_lock has locked, at the end of a scope.
class CUPOOL_SCOPED_CAPABILITY AdoptedLock {
 public:
  explicit AdoptedLock(Mutex& mutex) CUPOOL_REQUIRES(mutex) : mutex_(mutex) {}
  ~AdoptedLock() CUPOOL_RELEASE() { mutex_.unlock(); }
  AdoptedLock(const AdoptedLock&) = delete;
  AdoptedLock& operator=(const AdoptedLock&) = delete;

 private:
  Mutex& mutex_;
};

/// Releases a Mutex that the caller holds and takes it again at the end of the scope: for the time of a driver call.
class CUPOOL_SCOPED_CAPABILITY MutexUnlock {
 public:
  explicit MutexUnlock(Mutex& mutex) CUPOOL_RELEASE(mutex) : mutex_(mutex) { mutex_.unlock(); }
  ~MutexUnlock() CUPOOL_RELEASE() { mutex_.lock(); }  // to clang the scope ends here: what it released is held again
  MutexUnlock(const MutexUnlock&) = delete;
  MutexUnlock& operator=(const MutexUnlock&) = delete;

 private:
  Mutex& mutex_;
};

/// Waits for a change of what a Mutex guards.
class Condition {
 public:
  Condition() = default;
  Condition(const Condition&) = delete;
  Condition& operator=(const Condition&) = delete;
  /// Precondition: the caller holds `mutex`, and holds it again on return. Spurious returns happen.
  void wait(Mutex& mutex) CUPOOL_REQUIRES(mutex) {
    const Uncancelled uncancelled;
    pthread_cond_wait(&native_, mutex.native());
  }
  void notify_all() { pthread_cond_broadcast(&native_); }

 private:
  pthread_cond_t native_ = PTHREAD_COND_INITIALIZER;
};

}  // namespace cupool
