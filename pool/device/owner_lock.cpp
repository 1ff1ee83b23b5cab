// See owner_lock.hpp.
#include "pool/device/owner_lock.hpp"

#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ctime>

#include "pool/core/uncancelled.hpp"

namespace cupool::device {

namespace {
bool membarrier(int command) { return ::syscall(SYS_membarrier, command, 0, 0) == 0; }
}  // namespace

void OwnerFences::prepare() {
  if (membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED) && membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED))
    owners_on_their_own_.store(false, std::memory_order_relaxed);
}

void OwnerFences::fence_all() {
  if (are_owners_on_their_own() || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
  // The call was taken away meanwhile (a seccomp filter): from now on owners fence themselves; an owner that is between its store and its load has
  // long passed them by then.
  owners_on_their_own_.store(true, std::memory_order_seq_cst);
  const timespec moment{0, 2'000'000};
  const Uncancelled uncancelled;
  ::nanosleep(&moment, nullptr);
}

void OwnerLock::wait() {
  while (is_inside_.load(std::memory_order_seq_cst)) ::sched_yield();  // for some tens of nanoseconds
}

}  // namespace cupool::device
