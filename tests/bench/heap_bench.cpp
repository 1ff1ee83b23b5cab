// heap_bench: what the extent heap costs, without any device behind it. Prints medians over rounds with their spread, and
// the worst single operation. A pair is one allocate, one find by base and one free: what cudaMalloc and cudaFree ask of it.
//
// Three orders: "top" frees what it has just allocated while N others live; "round" replaces the N live blocks one
// after the other in address order of their creation; "random" replaces a random one, where cache misses are part of the price.
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

#include "pool/core/bytes.hpp"
#include "pool/heap/extent_heap.hpp"

namespace {

using cupool::heap::Extent;
using cupool::heap::ExtentHeap;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kBase = std::uint64_t{1} << 40;
constexpr int kRounds = 21;
constexpr std::size_t kPairsPerRound = 100'000;

enum class Order { top, round, random };
const char* name_of(Order order) { return order == Order::top ? "top" : order == Order::round ? "round" : "random"; }

std::uint64_t ns_between(Clock::time_point from, Clock::time_point to) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(to - from).count());
}

/// one: 64 KiB. few: 24 sizes in random order, as a training step has them. any: every request has a size of its own, from
/// 512 bytes to 2 MiB, so that no branch can be predicted.
enum class Sizes { one, few, any };
const char* name_of(Sizes sizes) { return sizes == Sizes::one ? "one" : sizes == Sizes::few ? "few" : "any"; }

std::vector<std::uint64_t> sizes_for(Sizes mode, std::size_t count, std::mt19937_64& random) {
  std::vector<std::uint64_t> sizes(count, 64 * cupool::kKiB);
  if (mode == Sizes::one) return sizes;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t most = std::uint64_t{1} << (9 + random() % 12);
    sizes[i] = mode == Sizes::few && i >= 24 ? sizes[random() % 24] : most + random() % most;
  }
  return sizes;
}

struct Workload {
  ExtentHeap heap;
  std::vector<std::uint64_t> live;  ///< bases
  std::vector<std::uint64_t> sizes;
  std::vector<std::uint32_t> victims;  ///< drawn beforehand: the generator is not what is measured
  std::size_t next = 0;

  std::uint64_t take(std::uint64_t bytes) {
    Extent* extent = heap.allocate(bytes);
    if (extent == nullptr) std::abort();
    return extent->address;
  }
  void give(std::uint64_t base) {
    Extent* extent = heap.find(base);
    if (extent == nullptr) std::abort();
    heap.free(extent);
  }
  void pair(Order order) {
    const std::size_t i = next++ % sizes.size();
    if (order == Order::top) return give(take(sizes[i]));
    const std::size_t victim = order == Order::round ? i % live.size() : victims[i];
    give(live[victim]);
    live[victim] = take(sizes[i]);
  }
};

void fill(Workload* work, Sizes sizes, std::size_t live_count) {
  std::mt19937_64 random(42);
  const auto pool_bytes = static_cast<std::uint64_t>(live_count) * 2 * cupool::kMiB + cupool::kGiB;
  work->heap.add_region(kBase, sizes == Sizes::one ? live_count * 128 * cupool::kKiB + cupool::kGiB : pool_bytes, nullptr);
  work->sizes = sizes_for(sizes, 1U << 20, random);
  for (std::size_t i = 0; i < 1U << 20; ++i) work->victims.push_back(static_cast<std::uint32_t>(random() % live_count));
  for (std::size_t i = 0; i < live_count + live_count / 4; ++i) work->live.push_back(work->take(work->sizes[i % work->sizes.size()]));
  while (work->live.size() > live_count) {  // holes all over
    const std::size_t victim = random() % work->live.size();
    work->give(work->live[victim]);
    work->live[victim] = work->live.back();
    work->live.pop_back();
  }
}

void measure(Order order, Sizes sizes, std::size_t live_count) {
  Workload work;
  fill(&work, sizes, live_count);
  std::vector<double> ns;
  for (int round = -2; round < kRounds; ++round) {
    const auto start = Clock::now();
    for (std::size_t i = 0; i < kPairsPerRound; ++i) work.pair(order);
    if (round >= 0) ns.push_back(static_cast<double>(ns_between(start, Clock::now())) / kPairsPerRound);
  }
  std::sort(ns.begin(), ns.end());
  std::printf("%-7s %-5s %9zu %9.1f %9.1f %9.1f %12.4f\n", name_of(order), name_of(sizes), live_count, ns[kRounds / 2], ns[kRounds / 4],
              ns[kRounds * 3 / 4], 100.0 * static_cast<double>(work.heap.metadata_bytes()) / static_cast<double>(work.heap.region_bytes()));
  std::fflush(stdout);
}

/// Time that this thread ran: what other processes take does not count, the kernel's page faults do.
std::uint64_t thread_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(now.tv_nsec);
}

/// Every single operation timed (the clock's own cost included) while a heap grows to `count` small and large blocks and is emptied again.
void worst_operation(std::size_t count) {
  Workload work;
  std::mt19937_64 random(7);
  work.heap.add_region(kBase, static_cast<std::uint64_t>(count) * cupool::kMiB + cupool::kGiB, nullptr);
  work.sizes = sizes_for(Sizes::any, 1U << 16, random);
  std::vector<std::uint64_t> ns;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t start = thread_ns();
    work.live.push_back(work.take(work.sizes[i % work.sizes.size()]));
    ns.push_back(thread_ns() - start);
  }
  std::shuffle(work.live.begin(), work.live.end(), random);
  for (const std::uint64_t base : work.live) {
    const std::uint64_t start = thread_ns();
    work.give(base);
    ns.push_back(thread_ns() - start);
  }
  std::sort(ns.begin(), ns.end());
  std::printf("%zu blocks up and down: median %" PRIu64 " ns, p99.9 %" PRIu64 " ns, p99.999 %" PRIu64 " ns, worst %" PRIu64 " ns\n", count,
              ns[ns.size() / 2], ns[ns.size() * 999 / 1000], ns[ns.size() * 99999 / 100000], ns.back());
}

}  // namespace

int main() {
  std::printf("%-7s %-5s %9s %9s %9s %9s %12s\n", "order", "sizes", "live", "median", "p25", "p75 ns", "metadata %");
  for (const Order order : {Order::top, Order::round, Order::random}) {
    for (const Sizes sizes : {Sizes::one, Sizes::few, Sizes::any}) {
      for (const std::size_t live : {std::size_t{1'000}, std::size_t{100'000}, std::size_t{1'000'000}}) measure(order, sizes, live);
    }
  }
  worst_operation(1'000'000);
}
