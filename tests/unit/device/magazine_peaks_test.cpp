// Magazines: the peaks of what lives are exact, whoever allocates, and known at any time.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/unit/device/churn.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("magazines: peaks are exact") {
  Rig rig;
  std::vector<CUdeviceptr> ring(100, 0);
  std::mt19937 random(1);
  std::uint64_t live_bytes = 0;
  std::uint64_t live_blocks = 0;
  std::uint64_t peak_bytes = 0;
  std::uint64_t peak_blocks = 0;
  std::vector<std::uint64_t> sizes(ring.size(), 0);
  for (int step = 0; step < 20'000; ++step) {
    const std::size_t at = random() % (step < 10'000 ? 60 : 100);
    if (ring[at] != 0) {
      rig.free(ring[at]);
      live_bytes -= sizes[at];
      --live_blocks;
      ring[at] = 0;
      if (random() % 3 == 0) continue;
    }
    sizes[at] = 512 * (1 + random() % 8);
    ring[at] = rig.allocate(sizes[at] - random() % 512);
    live_bytes += sizes[at];
    ++live_blocks;
    peak_bytes = std::max(peak_bytes, live_bytes);
    peak_blocks = std::max(peak_blocks, live_blocks);
  }
  CHECK(rig.pools().check() == "");
  CHECK(now(rig.counters().live_bytes) == live_bytes);
  CHECK(peak(rig.counters().live_bytes) == peak_bytes);
  CHECK(peak(rig.counters().live_blocks) == peak_blocks);
  CHECK(rig.live().fragmentation.at_peak_live_bytes.load() == peak_bytes);
}

TEST_CASE("magazines: the most bytes, the most that was asked for and the most blocks are each exact where that one alone is new") {
  struct Case {
    std::size_t first_bytes;  ///< asked for in each block of the first peak, and how many those are
    std::size_t first_blocks;
    std::size_t bytes;  ///< likewise of the second one
    std::size_t blocks;
  };
  const Case one = GENERATE(Case{512, 200, 5633, 18}, Case{1, 200, 6144, 4}, Case{kMiB, 1, 512, 20});
  Rig rig(device_of("4GiB"));
  std::vector<CUdeviceptr> live;
  for (std::size_t i = 0; i < one.first_blocks; ++i) live.push_back(rig.allocate(one.first_bytes));
  free_them(rig, live);
  std::vector<CUdeviceptr> ring(1, 0);
  churn(rig, ring, one.bytes, 2000);  // its rack has several of them by now
  free_them(rig, ring);
  live.clear();
  for (std::size_t i = 0; i < one.blocks; ++i) live.push_back(rig.allocate(one.bytes));
  free_them(rig, live);
  const auto most = [](std::size_t first, std::size_t second) { return std::max(first, second); };
  CHECK(peak(rig.counters().live_bytes) == most(one.first_blocks * align_up(one.first_bytes, 512), one.blocks * align_up(one.bytes, 512)));
  CHECK(peak(rig.counters().requested_bytes) == most(one.first_blocks * one.first_bytes, one.blocks * one.bytes));
  CHECK(peak(rig.counters().live_blocks) == most(one.first_blocks, one.blocks));
  CHECK(rig.pools().check() == "");
}

namespace {
/// Threads that go through phases together: in each, every thread brings the number of its blocks to a wanted one. Numbers of a phase only grow or
/// only fall, so what lives at its end is a peak or there is none in it.
class PhasedThreads {
 public:
  using Phases = std::vector<std::vector<std::size_t>>;  ///< [phase][thread]
  PhasedThreads(Rig& rig, std::size_t bytes) : rig_(rig), bytes_(bytes) {}
  void run(const Phases& wanted) {
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < wanted.front().size(); ++t) threads.emplace_back([this, &wanted, t] { work(wanted, t); });
    for (std::thread& thread : threads) thread.join();
  }
  std::uint64_t most() const { return most_; }
  std::uint64_t failures() const { return failures_.load(); }
  std::uint64_t wrong_peaks() const { return wrong_peaks_; }

 private:
  void work(const Phases& wanted, std::size_t self) {
    cuCtxSetCurrent(rig_.context());
    std::vector<CUdeviceptr> blocks;
    std::size_t meetings = 0;
    for (std::size_t phase = 0; phase < wanted.size(); ++phase) {
      const std::size_t own = wanted[phase][self];
      while (blocks.size() < own) blocks.push_back(rig_.pools().allocate(rig_.context(), bytes_, "cuMemAlloc_v2").value());
      for (; blocks.size() > own; blocks.pop_back()) failures_.fetch_add(rig_.pools().free(blocks.back()).outcome != FreeOutcome::freed);
      meet(++meetings * wanted[phase].size());
      if (self == 0) look(wanted[phase], phase % 7 == 3);
      meet(++meetings * wanted[phase].size());
    }
    rig_.pools().thread_ending();
  }
  void meet(std::size_t count) {
    met_.fetch_add(1);
    while (met_.load() < count) std::this_thread::yield();
  }
  /// Nobody is asked for what it has not told: the peak is known at any time.
  void look(const std::vector<std::size_t>& live, bool checks) {
    most_ = std::max(most_, std::accumulate(live.begin(), live.end(), std::uint64_t{0}));
    wrong_peaks_ += rig_.counters().live_blocks.peak.load() != most_ || rig_.counters().live_bytes.peak.load() != most_ * bytes_;
    if (checks && rig_.pools().check() != "") failures_.fetch_add(1);
  }
  Rig& rig_;
  std::size_t bytes_;
  std::atomic<std::size_t> met_{0};
  std::atomic<std::uint64_t> failures_{0};
  std::uint64_t most_ = 0;
  std::uint64_t wrong_peaks_ = 0;
};
}  // namespace

TEST_CASE("magazines: peaks that threads reach together are exact") {
  const std::size_t bytes = GENERATE(std::size_t{4096}, std::size_t{32 * kKiB});
  Rig rig;
  PhasedThreads threads(rig, bytes);
  std::vector<std::vector<std::size_t>> phases;
  for (int i = 0; i < 20; ++i)  // each alone: the racks fill, and nobody sees more than 250 at once
    for (std::size_t t = 0; t < 3; ++t) {
      phases.push_back({0, 0, 0});
      phases.back()[t] = 250;
      phases.push_back({0, 0, 0});
    }
  std::mt19937 random(3);
  for (std::size_t most = 110; most <= 210; most += 10) {
    phases.push_back({most, most - random() % 9, most - random() % 9});
    phases.push_back({random() % 60, random() % 60, random() % 60});
  }
  phases.push_back({0, 0, 0});
  threads.run(phases);
  CHECK(threads.failures() == 0);
  CHECK(threads.wrong_peaks() == 0);
  const observe::Snapshot snapshot = rig.snapshot();
  CHECK(counter_named(snapshot, "live_blocks") == 0);
  CHECK(rig.counters().requested_bytes.peak.load() == threads.most() * bytes);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("magazines: one that was alone for long has been promised nothing when a second one comes") {
  Rig rig;
  std::vector<CUdeviceptr> most(900, 0);
  churn(rig, most, 4096, 900);
  free_them(rig, most);
  std::vector<CUdeviceptr> few(10, 0);
  churn(rig, few, 4096, 5000);  // it asks the device for this and that
  std::vector<CUdeviceptr> many(850, 0);
  churn(rig, many, 4096, 850);
  CHECK(rig.pools().check() == "");
  std::thread second([&] {
    cuCtxSetCurrent(rig.context());
    std::vector<CUdeviceptr> own(30, 0);
    churn(rig, own, 4096, 30);
    free_them(rig, own);
    rig.pools().thread_ending();
  });
  second.join();
  CHECK(rig.pools().check() == "");
  CHECK(rig.counters().live_blocks.peak.load() == 900);
  free_them(rig, few);
  free_them(rig, many);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("magazines: what the first thread has and has not told counts when a second one comes near the peak") {
  Rig rig;
  std::vector<CUdeviceptr> most(900, 0);
  churn(rig, most, 4096, 900);
  free_them(rig, most);
  std::vector<CUdeviceptr> few(10, 0);
  churn(rig, few, 4096, 2000);
  std::vector<CUdeviceptr> many(800, 0);
  churn(rig, many, 4096, 800);
  const auto untold_blocks = [&rig] {
    return static_cast<std::int64_t>(std::launder(reinterpret_cast<observe::LiveShard*>(rig.live().shards))->live_blocks.load());
  };
  for (int i = 0; i < 1000 && untold_blocks() < 20; ++i) {  // its magazine hands out what it has kept
    const std::size_t half = many.size() / 20;
    if (i % 2 == 0) {
      free_them(rig, {many.end() - static_cast<std::ptrdiff_t>(half), many.end()});
      many.resize(many.size() - half);
    } else {
      while (many.size() < 800 && untold_blocks() < 20) many.push_back(rig.allocate(4096));
    }
  }
  REQUIRE(untold_blocks() == 20);
  const std::uint64_t live = few.size() + many.size();
  REQUIRE(live < 880);
  std::vector<std::uint64_t> wrong;
  std::thread second([&] {
    cuCtxSetCurrent(rig.context());
    std::vector<CUdeviceptr> own;
    for (std::uint64_t total = live + 1; total <= 1000; ++total) {
      own.push_back(rig.pools().allocate(rig.context(), 4096, "cuMemAlloc_v2").value());
      if (rig.counters().live_blocks.peak.load() != std::max<std::uint64_t>(900, total)) wrong.push_back(total);
    }
    free_them(rig, own);
    rig.pools().thread_ending();
  });
  second.join();
  CHECK(wrong.empty());
  CHECK(rig.pools().check() == "");
  free_them(rig, few);
  free_them(rig, many);
}
