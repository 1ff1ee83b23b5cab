// Actors: real threads, of which one runs at a time. The holder of the baton does the operations that name it, then hands it on.
#pragma once

#include <semaphore.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <functional>
#include <system_error>
#include <thread>
#include <vector>

namespace explorer {

/// Waits in the kernel at once. What libstdc++ makes of std::atomic::wait and of its semaphores yields the processor first, which on a busy machine
/// costs a slice of whatever else runs: milliseconds, and a schedule in which two threads poll hands over a hundred thousand times.
class Signal {
 public:
  Signal() { check(sem_init(&semaphore_, 0, 0)); }
  ~Signal() { sem_destroy(&semaphore_); }
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  void give() { check(sem_post(&semaphore_)); }
  void take() {
    while (sem_wait(&semaphore_) != 0)
      if (errno != EINTR) check(-1);
  }

 private:
  static void check(int result) {
    if (result != 0) throw std::system_error(errno, std::generic_category(), "semaphore");
  }
  sem_t semaphore_;
};

class Actors {
 public:
  /// `turn(actor)`: does what `actor` has to do, and returns whose turn it is; any number from `count` on ends all.
  using Turn = std::function<std::size_t(std::size_t actor)>;

  explicit Actors(std::size_t count) : turns_(count) {}

  /// Actor 0 is the calling thread. Returns when all have ended.
  void run(const Turn& turn) {
    const auto act = [&](std::size_t actor) {
      do hand_to(turn(actor));
      while (wait_for_turn(actor));
    };
    std::vector<std::jthread> others;
    for (std::size_t actor = 1; actor < turns_.size(); ++actor)
      others.emplace_back([&, actor] {
        if (wait_for_turn(actor)) act(actor);
      });
    act(0);
  }

  void hand_to(std::size_t actor) {
    if (actor < turns_.size()) return turns_[actor].give();
    is_over_.store(true);
    for (Signal& turn : turns_) turn.give();
  }
  /// False when all end.
  bool wait_for_turn(std::size_t actor) {
    turns_[actor].take();
    return !is_over_.load();
  }

 private:
  std::vector<Signal> turns_;
  std::atomic<bool> is_over_{false};
};

}  // namespace explorer
