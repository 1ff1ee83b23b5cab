// Uncancelled: while it lives, a pthread_cancel of this thread waits.
//
// An unwinding of the C library's must not meet our frames: it would leave the pool's books half written, and the unwinder that is linked into this
// library takes no state of another's. Everything of ours that may be a cancellation point (POSIX.1-2017 2.9.5: files, pauses, conditions, and
// whatever the driver does) is inside one; a hit of the pool is not, since two calls of pthread_setcancelstate cost as much as the hit. Thread rule:
// lives on the stack of one thread.
#pragma once

#include <pthread.h>

namespace cupool {

class Uncancelled {
 public:
  Uncancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state_); }
  ~Uncancelled() { pthread_setcancelstate(state_, nullptr); }
  Uncancelled(const Uncancelled&) = delete;
  Uncancelled& operator=(const Uncancelled&) = delete;

 private:
  int state_ = PTHREAD_CANCEL_ENABLE;
};

}  // namespace cupool
