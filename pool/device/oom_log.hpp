// OomLog: the out-of-memory events of a process, the newest of them, and which are still to be told.
//
// A failed call is told by the thread that made it, after it has left the pool: threads that fail at the same moment each tell their own.
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

  /// Of the calling thread. What it has not told yet it never will: the call that failed twice is told once, by this one.
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

  /// The number of the calling thread's newest one that it has not told yet, once; 0: there is none.
  std::uint64_t take_untold() {
    const MutexLock lock(mutex_);
    const auto found = untold();
    if (found == records_.end()) return 0;
    found->is_told = true;
    return found->number;
  }

  /// False: another thread is at it. `pushed_out`: so many older ones there were.
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
  std::uint64_t pushed_out_ CUPOOL_GUARDED_BY(mutex_) = 0;  ///< older records, ever
};

}  // namespace cupool::device
