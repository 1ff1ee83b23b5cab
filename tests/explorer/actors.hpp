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
  /// `next(actor)`: does what `actor` has to do, and returns whose turn it is; any number from `count` on ends all.
  using Turn = std::function<std::size_t(std::size_t actor)>;

  /// Actor 0 is the calling thread. Returns when all have ended.
  static void run(std::size_t count, const Turn& turn) {
    std::atomic<std::size_t> holder{0};
    const auto act = [&](std::size_t actor) {
      for (;;) {
        std::size_t now = holder.load();
        while (now != actor && now < count) {
          holder.wait(now);
          now = holder.load();
        }
        if (now >= count) return;
        holder.store(turn(actor));
        holder.notify_all();
      }
    };
    std::vector<std::jthread> others;
    for (std::size_t actor = 1; actor < count; ++actor) others.emplace_back(act, actor);
    act(0);
  }
};

}  // namespace explorer
