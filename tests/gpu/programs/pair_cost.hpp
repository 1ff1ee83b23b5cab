// What one allocation and its free cost together, for whatever allocator, on one thread or many: several rounds, each
// bounded in time, and the median over rounds and threads. Shared by the driver's probe and by the program that times
// PyTorch's allocator, so that both measure the same thing. A pair's block is not touched; frees are part of the pair.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace pair_cost {

inline constexpr int kRounds = 9;
inline constexpr int kLive = 64;  // blocks that a thread keeps, replaced in turn
/// PAIR_COST_ROUND_MS: shorter, where only the way is of interest and not the figures.
inline std::int64_t round_ns() {
  const char* const text = std::getenv("PAIR_COST_ROUND_MS");
  return (text != nullptr ? std::max(std::atoi(text), 1) : 25) * std::int64_t{1'000'000};
}
inline constexpr std::int64_t kWhole_ns = 600'000'000;  // no new round after that: a turn of slow calls outlasts a round

struct Shape {
  std::size_t bytes;
  int threads;
};
// A tensor's scalar, an activation, a segment; alone and on all cores.
inline constexpr std::size_t kSizes_bytes[] = {1024, 256 << 10, 4 << 20};
inline constexpr int kThreads[] = {1, 16};

inline std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

inline std::string question(const std::string& who, const Shape& shape) {
  return "pair cost: " + who + ", " + std::to_string(shape.bytes >> 10) + " KiB, " + std::to_string(shape.threads) +
         (shape.threads == 1 ? " thread" : " threads");
}

/// The figures as JSON; "" when an allocation failed. `Worker(shape)` is made in each thread and has exchange(block) ->
/// the new block (0: failed), take() and give(block), and settle() which is called once per turn of all its blocks.
template <class Worker> std::string measure(const Shape& shape) {
  const std::int64_t limit_ns = round_ns();
  std::atomic<int> ready{0};
  std::atomic<bool> failed{false};
  std::vector<std::vector<std::int64_t>> per_pair_ns(static_cast<std::size_t>(shape.threads));
  const auto work = [&](std::size_t index) {
    Worker worker(shape.bytes);
    std::vector<std::uintptr_t> blocks(kLive);
    for (std::uintptr_t& block : blocks) {
      block = worker.take();
      if (block == 0) failed = true;
    }
    ready.fetch_add(1);
    while (ready.load() < shape.threads) std::this_thread::yield();
    const std::int64_t begin = now_ns();
    for (int round = 0; round <= kRounds && !failed; ++round) {
      const std::int64_t start = now_ns();
      if (round > 1 && start - begin > kWhole_ns) break;
      std::int64_t pairs = 0, end = start;
      for (; end - start < limit_ns && !failed; end = now_ns()) {
        for (std::uintptr_t& block : blocks) {
          if (block != 0) worker.give(block);
          block = worker.take();
          if (block == 0) failed = true;
        }
        worker.settle();
        pairs += kLive;
      }
      if (round > 0 && pairs > 0) per_pair_ns[index].push_back((end - start) / pairs);  // the first round warms up
    }
    for (const std::uintptr_t block : blocks)
      if (block != 0) worker.give(block);
    worker.settle();
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < static_cast<std::size_t>(shape.threads); ++i) threads.emplace_back(work, i);
  for (std::thread& thread : threads) thread.join();
  std::vector<std::int64_t> sorted;
  for (const auto& one : per_pair_ns) sorted.insert(sorted.end(), one.begin(), one.end());
  if (failed || sorted.empty()) return "";
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](std::size_t percent) { return std::to_string(sorted[(sorted.size() - 1) * percent / 100]); };
  return "{\"median_ns\": " + at(50) + ", \"p10_ns\": " + at(10) + ", \"p90_ns\": " + at(90) + ", \"count\": " + std::to_string(sorted.size()) + "}";
}

/// Every size on every number of threads. `tell(question, json)`; json "" where it failed.
template <class Worker, class Tell> void measure_all(const std::string& who, Tell&& tell) {
  for (const int threads : kThreads) {
    for (const std::size_t bytes : kSizes_bytes) {
      const Shape shape{bytes, threads};
      tell(question(who, shape), measure<Worker>(shape));
    }
  }
}

}  // namespace pair_cost
