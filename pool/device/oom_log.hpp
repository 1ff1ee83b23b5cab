// OomLog: the newest out-of-memory events of a process, and which of them are still to be logged.
//
// A failed call is logged by the thread that made it, after it has left the pool: threads that fail at the same moment each log their own.
// Thread rule: thread-safe.
#pragma once

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "pool/core/mutex.hpp"
#include "pool/observe/snapshot.hpp"

namespace cupool::device {

class OomLog {
 public:
  explicit OomLog(std::size_t capacity) : capacity_(capacity) {}

  /// Adds an event of the calling thread. An older one of this thread that was not logged yet never will be: a call that fails twice is logged once.
  void add(observe::OomRecord record) {
    const MutexLock lock(mutex_);
    const auto before = untold();
    record.number = before != records_.end() ? std::exchange(before->number, 0) : ++numbers_;
    if (before != records_.end()) before->is_told = true;
    if (records_.size() == capacity_) {
      records_.erase(records_.begin());
      ++pushed_out_;
    }
    records_.push_back({std::move(record), pthread_self(), false});
  }

  /// The number of the calling thread's newest unlogged event, which counts as logged from then on; 0: there is none.
  std::uint64_t take_untold() {
    const MutexLock lock(mutex_);
    const auto found = untold();
    if (found == records_.end()) return 0;
    found->is_told = true;
    return found->number;
  }

  /// False: another thread holds the lock. `pushed_out`: the number of older events that are gone.
  bool copy(std::vector<observe::OomRecord>& out, std::uint64_t& pushed_out) {
    if (!mutex_.try_lock()) return false;
    const AdoptedLock lock(mutex_);
    out.assign(records_.begin(), records_.end());
    pushed_out = pushed_out_;
    return true;
  }

 private:
  struct Entry : observe::OomRecord {
    Entry(observe::OomRecord&& record, pthread_t by, bool told) : OomRecord(std::move(record)), thread(by), is_told(told) {}
    pthread_t thread;
    bool is_told;
  };
  using Entries = std::vector<Entry>;

  Entries::iterator untold() CUPOOL_REQUIRES(mutex_) {
    return std::find_if(records_.begin(), records_.end(),
                        [](const Entry& entry) { return !entry.is_told && pthread_equal(entry.thread, pthread_self()) != 0; });
  }

  const std::size_t capacity_;
  Mutex mutex_;
  Entries records_ CUPOOL_GUARDED_BY(mutex_);
  std::uint64_t numbers_ CUPOOL_GUARDED_BY(mutex_) = 0;
  std::uint64_t pushed_out_ CUPOOL_GUARDED_BY(mutex_) = 0;  ///< older records that were dropped, ever
};

}  // namespace cupool::device
