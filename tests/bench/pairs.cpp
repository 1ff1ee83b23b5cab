#include "pairs.hpp"

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <random>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace bench {
namespace {

using Nanoseconds = std::chrono::duration<double, std::nano>;

constexpr std::size_t kKiB = 1024;
constexpr std::size_t kMiB = 1024 * kKiB;
constexpr std::size_t kGiB = 1024 * kMiB;
constexpr int kWarmUpRounds = 2;
constexpr std::size_t kRingBytes = 16 * kGiB;  ///< the ring is shorter where its blocks are large

struct Shape {
  std::size_t bytes;
  int threads;
  std::size_t standing_blocks;
  std::size_t ring_blocks = 0;  ///< 0: as many as kRingBytes hold, 8 to 256
  /// Nine tenths of them are freed at random, and the others replaced at random: holes of all sizes, and hardly a line in a cache
  bool is_scattered = false;
};

/// How long to look.
struct Effort {
  int rounds = 11;
  Nanoseconds round_at_least{3e6};
};

std::vector<Shape> shapes(bool quick) {
  if (quick) return {{512, 1, 0}, {4 * kMiB, 2, 100}};
  std::vector<Shape> result;
  for (const std::size_t ring_blocks : {std::size_t{1}, std::size_t{0}})  // beside what the rings leave in a pool a single block shares more events
    for (const std::size_t bytes : {std::size_t{512}, 4 * kKiB, 32 * kKiB, 256 * kKiB, 2 * kMiB, 16 * kMiB, 128 * kMiB, kGiB})
      result.push_back({bytes, 1, 0, ring_blocks});
  for (const std::size_t bytes : {std::size_t{512}, 32 * kKiB, 2 * kMiB}) result.push_back({bytes, 2, 0});
  for (const std::size_t standing : {std::size_t{1'000}, std::size_t{10'000}, std::size_t{100'000}, std::size_t{1'000'000}})
    result.push_back({4 * kKiB, 1, standing});
  for (const std::size_t bytes : {kKiB, 64 * kKiB})
    for (const std::size_t blocks : {std::size_t{1'000}, std::size_t{10'000}, std::size_t{100'000}, std::size_t{1'000'000}})
      if (bytes * blocks <= kRingBytes) result.push_back({bytes, 1, 0, blocks, true});
  return result;
}

/// BYTES:THREADS:STANDING_BLOCKS[:RING_BLOCKS[:scattered]]; nothing for anything else.
std::optional<Shape> parse_shape(const std::string& text) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 50;
  constexpr std::size_t kMostBlocks = 100'000'000;
  constexpr int kMostThreads = 1024;
  Shape shape{};
  int end = 0;
  if (std::sscanf(text.c_str(), "%20zu:%9d:%20zu%n", &shape.bytes, &shape.threads, &shape.standing_blocks, &end) != 3) return std::nullopt;
  std::string rest = text.substr(static_cast<std::size_t>(end));
  constexpr std::string_view kScattered = ":scattered";
  if (rest.size() > kScattered.size() && rest.ends_with(kScattered)) {
    shape.is_scattered = true;
    rest.resize(rest.size() - kScattered.size());
  }
  if (!rest.empty() && (std::sscanf(rest.c_str(), ":%20zu%n", &shape.ring_blocks, &end) != 1 || rest.size() != static_cast<std::size_t>(end)))
    return std::nullopt;
  const bool is_sane = shape.bytes - 1 < kMostBytes && shape.threads >= 1 && shape.threads <= kMostThreads && shape.standing_blocks <= kMostBlocks &&
                       shape.ring_blocks <= kMostBlocks;
  return is_sane ? std::optional(shape) : std::nullopt;
}

Nanoseconds now(clockid_t clock) {
  timespec value{};
  clock_gettime(clock, &value);
  return Nanoseconds(static_cast<double>(value.tv_sec) * 1e9 + static_cast<double>(value.tv_nsec));
}

/// One thread's blocks.
class Ring {
 public:
  Ring(Allocator& allocator, const Shape& shape, int threads)
      : allocator_(allocator), bytes_(shape.bytes), clock_(threads == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC) {
    const std::size_t fitting = kRingBytes / bytes_ / static_cast<std::size_t>(threads);
    const std::size_t wanted = shape.ring_blocks != 0 ? shape.ring_blocks : std::clamp<std::size_t>(fitting, 8, 256);
    blocks_.reserve(wanted);
    try {
      while (blocks_.size() < wanted) blocks_.push_back(allocator_.allocate(bytes_, 0));
      if (shape.is_scattered) scatter();
    } catch (const AllocatorFailure&) {
      release_all();  // the next shape is to find its memory
      throw;
    }
  }
  ~Ring() { release_all(); }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  Nanoseconds pairs(std::size_t count) {
    const Nanoseconds start = now(clock_);
    for (std::size_t i = 0; i < count; ++i) {
      void*& block = blocks_[at_];
      allocator_.release(block, bytes_, 0);
      block = allocator_.allocate(bytes_, 0);
      at_ = (is_scattered_ ? random_() : at_ + 97) % blocks_.size();
    }
    return now(clock_) - start;
  }

 private:
  void scatter() {
    is_scattered_ = true;
    std::shuffle(blocks_.begin(), blocks_.end(), random_);
    for (const std::size_t left = std::max<std::size_t>(blocks_.size() / 10, 1); blocks_.size() > left; blocks_.pop_back())
      allocator_.release(blocks_.back(), bytes_, 0);
  }
  void release_all() {
    for (void* block : blocks_) allocator_.release(block, bytes_, 0);
  }

  Allocator& allocator_;
  std::size_t bytes_;
  clockid_t clock_;
  bool is_scattered_ = false;
  std::minstd_rand random_;
  std::vector<void*> blocks_;
  std::size_t at_ = 0;
};

/// Small blocks that stay, 512 bytes to 4 KiB.
class Standing {
 public:
  Standing(Allocator& allocator, std::size_t count) : allocator_(allocator) {
    blocks_.reserve(count);
    try {
      for (std::size_t i = 0; i < count; ++i) blocks_.push_back(allocator_.allocate(bytes_of(i), 0));
    } catch (const AllocatorFailure&) {
      release_all();
      throw;
    }
  }
  ~Standing() { release_all(); }
  Standing(const Standing&) = delete;
  Standing& operator=(const Standing&) = delete;

 private:
  static std::size_t bytes_of(std::size_t i) { return 512 * (1 + i % 8); }
  void release_all() {
    for (std::size_t i = 0; i < blocks_.size(); ++i) allocator_.release(blocks_[i], bytes_of(i), 0);
  }

  Allocator& allocator_;
  std::vector<void*> blocks_;
};

/// Pairs for a round of the wanted length, found on one thread.
std::size_t pairs_per_round(Allocator& allocator, const Shape& shape, const Effort& effort) {
  Ring ring(allocator, shape, 1);
  std::size_t count = 64;
  while (ring.pairs(count) < effort.round_at_least) count *= 2;
  return count;
}

/// Waits, spinning, until `parties` threads have arrived for the `turn`th time.
void meet(std::atomic<int>& arrived, int parties, int turn) {
  arrived.fetch_add(1);
  while (arrived.load() < parties * turn) std::this_thread::yield();
}

/// One thread's share of a measurement.
struct Worker {
  std::vector<double> ns_per_pair;  ///< of each round
  std::exception_ptr failure;
  std::thread thread;
};

void work(Allocator& allocator, const Shape& shape, const Effort& effort, std::size_t pairs, std::atomic<int>& arrived, Worker& mine) {
  const int rounds = effort.rounds + kWarmUpRounds;
  try {
    allocator.enter_thread();
    Ring ring(allocator, shape, shape.threads);
    for (int round = 0; round < rounds; ++round) {
      meet(arrived, shape.threads, round + 1);
      const Nanoseconds took = ring.pairs(pairs);
      if (round >= kWarmUpRounds) mine.ns_per_pair.push_back(took.count() / static_cast<double>(pairs));
    }
  } catch (const AllocatorFailure&) {
    mine.failure = std::current_exception();
    arrived.fetch_add(shape.threads * rounds);  // nobody waits for this thread any more
  }
}

/// Nanoseconds per pair: of every round of every thread.
std::vector<double> measure(Allocator& allocator, const Shape& shape, const Effort& effort) {
  const Standing standing(allocator, shape.standing_blocks);
  const std::size_t pairs = pairs_per_round(allocator, shape, effort);
  std::atomic<int> arrived{0};
  std::vector<Worker> workers(static_cast<std::size_t>(shape.threads));
  for (Worker& worker : workers) worker.thread = std::thread([&] { work(allocator, shape, effort, pairs, arrived, worker); });
  for (Worker& worker : workers) worker.thread.join();
  std::vector<double> all;
  for (const Worker& worker : workers) {
    if (worker.failure != nullptr) std::rethrow_exception(worker.failure);
    all.insert(all.end(), worker.ns_per_pair.begin(), worker.ns_per_pair.end());
  }
  return all;
}

}  // namespace

int pairs_main(int argc, char** argv, const std::function<std::unique_ptr<Allocator>(const std::string& name)>& open) {
  const bool quick = argc == 3 && std::strcmp(argv[2], "--quick") == 0;
  std::vector<Shape> wanted = shapes(quick);
  if (argc > 2 && !quick) wanted.clear();
  bool is_understood = argc >= 2;
  for (int i = 2; i < argc && !quick; ++i) {
    const std::optional<Shape> shape = parse_shape(argv[i]);
    if (shape) wanted.push_back(*shape);
    else is_understood = false;
  }
  if (!is_understood) {
    std::fprintf(stderr, "usage: %s ALLOCATOR [--quick | BYTES:THREADS:STANDING_BLOCKS[:RING_BLOCKS[:scattered]]...]\n", argv[0]);
    return 2;
  }
  try {
    const std::unique_ptr<Allocator> allocator = open(argv[1]);
    if (allocator == nullptr) {
      std::fprintf(stderr, "%s: no allocator '%s'\n", argv[0], argv[1]);
      return 2;
    }
    allocator->enter_thread();
    const Effort effort = quick ? Effort{2, Nanoseconds{1e4}} : Effort{};
    for (const Shape& shape : wanted) {
      std::vector<double> rounds;
      try {
        rounds = measure(*allocator, shape, effort);
      } catch (const AllocatorFailure& failure) {
        std::fprintf(stderr, "%s %zu bytes, %zu standing blocks: %s\n", argv[1], shape.bytes, shape.standing_blocks, failure.what());
      }
      std::printf("{\"bytes\": %zu, \"threads\": %d, \"standing_blocks\": %zu, \"ring_blocks\": %zu, \"scattered\": %s, \"ns_per_pair\": [",
                  shape.bytes, shape.threads, shape.standing_blocks, shape.ring_blocks, shape.is_scattered ? "true" : "false");
      const char* separator = "";
      for (const double value : rounds) std::printf("%s%.2f", std::exchange(separator, ", "), value);
      std::printf("]}\n");
      std::fflush(stdout);
    }
    return 0;
  } catch (const AllocatorFailure& failure) {
    std::fprintf(stderr, "%s: %s\n", argv[0], failure.what());
    return 1;
  }
}

}  // namespace bench
