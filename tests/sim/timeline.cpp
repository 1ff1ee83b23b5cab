// Event-driven: an operation whose predecessors are complete has a known end and stands in a queue ordered by it.
#include "tests/sim/timeline.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <unordered_set>

namespace cusim {
namespace {

/// Lets the host thread that everything waits for run. Real time: the virtual clock stands still meanwhile.
void yield_to_host(Lock& lock) {
  lock.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(20));
  lock.lock();
}

}  // namespace

void Timeline::submit(const OperationPtr& operation, std::span<const OperationPtr> predecessors, Lock& lock) {
  operation->sequence = next_sequence_++;
  operation->start_ns = now_ns_;
  for (const OperationPtr& predecessor : predecessors) {
    if (predecessor == nullptr || predecessor->done) continue;
    predecessor->successors.push_back(operation);
    ++operation->waiting_for;
  }
  if (operation->pending_count != nullptr) ++*operation->pending_count;
  if (operation->waiting_for != 0) return;
  make_ready(operation);
  while (!due_.empty() && due_.top()->finish_ns <= now_ns_) {
    const OperationPtr next = due_.top();
    due_.pop();
    complete(next, lock);
  }
}

void Timeline::make_ready(const OperationPtr& operation) {
  if (operation->host_flag != nullptr) {
    host_waits_.push_back(operation);
    return;
  }
  operation->finish_ns = operation->start_ns + operation->duration_ns;
  due_.push(operation);
}

void Timeline::complete(const OperationPtr& operation, Lock& lock) {
  now_ns_ = std::max(now_ns_, operation->finish_ns);
  if (operation->host_function) {
    host_waits_.push_back(operation);
    lock.unlock();
    operation->host_function();
    lock.lock();
    std::erase(host_waits_, operation);
    // Other threads may have moved the clock meanwhile; what follows starts when the function returned.
    operation->finish_ns = std::max(operation->finish_ns, now_ns_);
  }
  if (operation->action) operation->action();
  operation->done = true;
  if (operation->pending_count != nullptr) --*operation->pending_count;
  for (const OperationPtr& successor : operation->successors) {
    successor->start_ns = std::max(successor->start_ns, operation->finish_ns);
    if (--successor->waiting_for == 0) make_ready(successor);
  }
  operation->successors.clear();
  operation->action = nullptr;
  operation->host_function = nullptr;
}

void Timeline::poll_host_flags(Lock& lock) {
  for (std::size_t i = 0; i < host_waits_.size();) {
    const OperationPtr operation = host_waits_[i];
    const bool is_set = operation->host_flag != nullptr && __atomic_load_n(operation->host_flag, __ATOMIC_ACQUIRE) != 0;
    if (!is_set) {
      ++i;
      continue;
    }
    host_waits_.erase(host_waits_.begin() + static_cast<std::ptrdiff_t>(i));
    operation->finish_ns = std::max(now_ns_, operation->start_ns);
    complete(operation, lock);
    i = 0;  // the lock may have been given up
  }
}

void Timeline::advance_to(std::uint64_t until_ns, Lock& lock) {
  poll_host_flags(lock);
  while (!due_.empty() && due_.top()->finish_ns <= until_ns) {
    const OperationPtr next = due_.top();
    due_.pop();
    complete(next, lock);
  }
  now_ns_ = std::max(now_ns_, until_ns);
}

bool Timeline::waits_for_host(const OperationPtr& operation) const {
  std::unordered_set<const Operation*> seen;
  std::vector<const Operation*> open;
  for (const OperationPtr& wait : host_waits_) open.push_back(wait.get());
  while (!open.empty()) {
    const Operation* next = open.back();
    open.pop_back();
    if (next == operation.get()) return true;
    if (!seen.insert(next).second) continue;
    for (const OperationPtr& successor : next->successors) open.push_back(successor.get());
  }
  return false;
}

void Timeline::wait(const OperationPtr& operation, Lock& lock) {
  if (operation == nullptr) return;
  while (!operation->done) {
    if (!host_waits_.empty()) {
      poll_host_flags(lock);
      if (operation->done) return;
      if (waits_for_host(operation)) {
        yield_to_host(lock);
        continue;
      }
    }
    if (due_.empty()) {
      std::fprintf(stderr, "cusim: internal error: a wait for work that can never complete\n");
      std::abort();
    }
    const OperationPtr next = due_.top();
    due_.pop();
    complete(next, lock);
  }
}

void Timeline::clear() {
  due_ = {};
  host_waits_.clear();
  now_ns_ = 0;
  next_sequence_ = 0;
}

}  // namespace cusim
