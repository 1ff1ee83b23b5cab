// Uncancelled: while it lives, a pthread_cancel of the calling thread is delayed.
//
// Cancellation unwinds the stack, and must not unwind our frames: the pool's books would be left half written, and the unwinder that is linked into
// this library cannot work on the C library's state. So whatever may be a cancellation point (POSIX.1-2017 2.9.5: files, pauses, conditions, and
// anything that the driver does) runs inside one of these. A pool hit does not: it has no cancellation point, and two calls of pthread_setcancelstate
// cost as much as the hit itself. Thread rule: lives on the stack of one thread.
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
