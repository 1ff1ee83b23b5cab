// A second thread that does what it is told, one thing at a time: captures must be ended by the thread that began them.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace battery {

class Worker {
 public:
  Worker() : thread_([this] { serve(); }) {}

  /// Runs `job` in the thread, and returns when it is done.
  void run(const std::function<void()>& job) {
    std::unique_lock lock(mutex_);
    job_ = &job;
    changed_.notify_all();
    changed_.wait(lock, [this] { return job_ == nullptr; });
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return job_ != nullptr; });
      (*job_)();
      job_ = nullptr;
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* job_ = nullptr;
  std::thread thread_;
};

}  // namespace battery
