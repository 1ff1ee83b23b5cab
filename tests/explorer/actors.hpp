// Actors: real threads, of which one runs at a time. The holder of the baton does the operations that name it, then hands it on.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <thread>
#include <vector>

namespace explorer {

class Actors {
 public:
  /// `turn(actor)`: does what `actor` has to do, and returns whose turn it is; any number from `count` on ends all.
  using Turn = std::function<std::size_t(std::size_t actor)>;

  explicit Actors(std::size_t count) : count_(count) {}

  /// Actor 0 is the calling thread. Returns when all have ended.
  void run(const Turn& turn) {
    const auto act = [&](std::size_t actor) {
      while (wait_for_turn(actor)) hand_to(turn(actor));
    };
    std::vector<std::jthread> others;
    for (std::size_t actor = 1; actor < count_; ++actor) others.emplace_back(act, actor);
    act(0);
  }

  void hand_to(std::size_t actor) {
    holder_.store(actor);
    holder_.notify_all();
  }
  /// False when all end.
  bool wait_for_turn(std::size_t actor) {
    std::size_t now = holder_.load();
    while (now != actor && now < count_) {
      holder_.wait(now);
      now = holder_.load();
    }
    return now < count_;
  }

 private:
  const std::size_t count_;
  std::atomic<std::size_t> holder_{0};
};

}  // namespace explorer
