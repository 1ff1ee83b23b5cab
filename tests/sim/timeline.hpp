// Timeline: the work of every stream, ordered by dependencies, on a virtual clock.
//
// Work completes when the clock passes its end: the clock is moved by advance() and by wait(), never by a
// query. What an operation does (move bytes, run a host function) happens at its completion, so that memory reused too early shows as
// corrupt data. An operation that needs no time and waits for nothing completes as it is submitted.
// Thread rule: every call is made under the simulator's lock, which host functions and waits for the host give up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <span>
#include <vector>

namespace cusim {

using Lock = std::unique_lock<std::mutex>;

struct Operation;
using OperationPtr = std::shared_ptr<Operation>;

/// One piece of work. The submitter fills the first group; the timeline owns the rest.
struct Operation {
  std::uint64_t duration_ns = 0;
  std::function<void()> action;                 ///< under the lock, at completion
  std::function<void()> host_function;          ///< with the lock given up; the operation is not complete before it returns
  volatile std::uint32_t* host_flag = nullptr;  ///< completes only once this is not 0
  std::size_t* pending_count = nullptr;         ///< incremented while the operation is incomplete (its context's)

  bool done = false;
  std::uint64_t start_ns = 0;
  std::uint64_t finish_ns = 0;
  std::uint64_t sequence = 0;
  std::size_t waiting_for = 0;
  std::vector<OperationPtr> successors;
};

class Timeline {
 public:
  std::uint64_t now_ns() const { return now_ns_; }

  /// Enqueues `operation` behind `predecessors` (null and completed ones do not count).
  void submit(const OperationPtr& operation, std::span<const OperationPtr> predecessors, Lock& lock);
  /// Moves the clock to at least `until_ns`, completing what it passes.
  void advance_to(std::uint64_t until_ns, Lock& lock);
  /// Moves the clock until `operation` is complete; really waits (lock given up) for host flags and host functions.
  void wait(const OperationPtr& operation, Lock& lock);
  /// Forgets everything that is not complete (the device is gone). Nothing of it runs.
  void clear();

 private:
  struct Later {
    bool operator()(const OperationPtr& a, const OperationPtr& b) const {
      return a->finish_ns != b->finish_ns ? a->finish_ns > b->finish_ns : a->sequence > b->sequence;
    }
  };

  void make_ready(const OperationPtr& operation);
  void complete(const OperationPtr& operation, Lock& lock);
  void poll_host_flags(Lock& lock);
  bool waits_for_host(const OperationPtr& operation) const;

  std::uint64_t now_ns_ = 0;
  std::uint64_t next_sequence_ = 0;
  std::priority_queue<OperationPtr, std::vector<OperationPtr>, Later> due_;
  std::vector<OperationPtr> host_waits_;  ///< ready, but the host must act first: flags, and host functions that run now
};

}  // namespace cusim
