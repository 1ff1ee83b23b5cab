// What a miss does to magazines where memory is plenty: what the thread itself freed comes back to it, in few events.
#include <algorithm>
#include <functional>
#include <random>
#include <thread>
#include <utility>

#include "tests/unit/device/churn.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
RigOptions plenty(config::Backing backing) {
  RigOptions options = device_of("64GiB");
  options.pool.backing = backing;
  return options;
}

std::uint64_t total(const observe::Total& total) { return total.value.load(); }

/// Of `pairs` pairs with one live block, the allocations that are told at once, as those under the lock are.
int asking_pairs(Rig& rig, std::size_t bytes, int pairs) {
  int count = 0;
  for (int i = 0; i < pairs; ++i) {
    const std::uint64_t told = now(rig.counters().allocations);
    rig.free(rig.allocate(bytes));
    if (now(rig.counters().allocations) != told) ++count;
  }
  return count;
}

std::function<void()> g_meanwhile;  ///< once, by another thread, while this one asks the driver about an event

CUresult CUDAAPI query_late(CUevent event) {
  const CUresult code = cuEventQuery(event);
  if (const std::function<void()> call = std::exchange(g_meanwhile, nullptr)) std::thread(call).join();
  return code;
}

RigOptions roomy(config::Backing backing) {
  RigOptions options = device_of("80GiB");
  options.pool.backing = backing;
  return options;
}

/// How often `pairs` pairs of 1 GiB in this ring went to the device for a block.
int asking_pairs(Rig& rig, std::vector<CUdeviceptr>& ring, int pairs) {
  int count = 0;
  for (int i = 0; i < pairs; ++i) {
    const std::uint64_t untold = untold_allocations(rig);
    churn(rig, ring, kGiB, 1);
    std::rotate(ring.begin(), ring.begin() + 1, ring.end());
    if (untold_allocations(rig) != untold + 1) ++count;
  }
  return count;
}

/// Steps of blocks of 1 GiB, each of which the host waits for.
void take_large_steps(Rig& rig, int steps) {
  for (int step = 0; step < steps; ++step) {
    std::vector<CUdeviceptr> blocks(16, 0);
    churn(rig, blocks, kGiB, 32);
    free_them(rig, blocks);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    rig.pools().after_wait(rig.context());
  }
}

/// A region of 32 MiB in which so many blocks of 1 MiB were allocated and freed so many times: the thread will keep them, and their work is over.
void fill_and_free(Rig& rig, int rounds, int count = 16) {
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  rig.free(rig.allocate(32 * kMiB));
  cusim_advance_ns(kMs);
  for (int round = 0; round < rounds; ++round) {
    std::vector<CUdeviceptr> blocks(static_cast<std::size_t>(count), 0);
    churn(rig, blocks, kMiB, count);
    free_them(rig, blocks);
    cusim_advance_ns(kMs);
  }
  REQUIRE(now(rig.counters().reserved_bytes) == reserved_bytes + 32 * kMiB);
}

/// Epochs that `pairs` pairs close, of blocks of these sizes in turn.
std::uint64_t epochs_of(Rig& rig, const std::vector<std::size_t>& sizes, int pairs) {
  const std::uint64_t before = total(rig.counters().epochs_closed);
  for (int i = 0; i < pairs; ++i) rig.free(rig.allocate(sizes[static_cast<std::size_t>(i) % sizes.size()]));
  return total(rig.counters().epochs_closed) - before;
}
}  // namespace

TEST_CASE("magazines: a block that goes round alone comes back to its thread, for an event per 64 frees") {
  for (const config::Backing backing : {config::Backing::segments, config::Backing::pages}) {
    for (const std::size_t bytes : {std::size_t{512}, 32 * kKiB, 256 * kKiB, 512 * kKiB}) {
      INFO(bytes << " bytes");
      Rig rig(plenty(backing));
      asking_pairs(rig, bytes, 2000);
      const std::uint64_t records = cusim_calls("cuCtxRecordEvent");
      const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
      CHECK(asking_pairs(rig, bytes, 6400) <= 6400 / 10);
      CHECK(cusim_calls("cuCtxRecordEvent") - records <= 6400 / 60);
      CHECK(now(rig.counters().reserved_bytes) == reserved_bytes);
      CHECK(rig.pools().check() == "");
    }
  }
}

TEST_CASE("magazines: small blocks of all sizes, one after the other, stay with their thread") {
  Rig rig(plenty(config::Backing::pages));
  std::mt19937 random(3);
  int asking = 0;
  for (int i = 0; i < 20'000; ++i) {
    const int asks = asking_pairs(rig, 1 + random() % (32 * kKiB), 1);
    if (i >= 10'000) asking += asks;
  }
  CHECK(asking <= 10'000 / 5);
  CHECK(now(rig.counters().reserved_bytes) <= 32 * kMiB);
}

TEST_CASE("magazines: small blocks that lie among others, since the job begins again, stay with their thread") {
  Rig rig(plenty(config::Backing::pages));
  std::vector<CUdeviceptr> first(16, 0);
  churn(rig, first, 4 * kKiB, 20'000);  // so many come before the peak: the job is not known to repeat itself
  free_them(rig, first);
  take_large_steps(rig, 2);
  std::vector<CUdeviceptr> live(1000, 0);
  churn(rig, live, 4 * kKiB, 1000);
  CHECK(asking_pairs(rig, 4 * kKiB, 6400) <= 6400 / 10);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("magazines: where memory is plenty they stay open while a hole among others serves") {
  Rig rig(plenty(config::Backing::pages));
  std::vector<CUdeviceptr> many(8000, 0);  // so that no count of live blocks is a new peak later
  churn(rig, many, 512, 8000);
  free_them(rig, many);
  take_large_steps(rig, 3);
  int asking = 0;
  std::vector<CUdeviceptr> live;
  for (int i = 0; i < 4000; ++i) {
    live.push_back(rig.allocate(4 * kKiB));  // more of them than their zone holds
    asking += asking_pairs(rig, 512, 1);
  }
  CHECK(asking <= 100);
  free_them(rig, live);
}

TEST_CASE("magazines: none stays open where the driver refuses more") {
  Rig rig(plenty(config::Backing::segments));
  fill_and_free(rig, 2);
  cusim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, 1000);
  const std::uint64_t served = now(rig.counters().rung_magazines);
  const CUdeviceptr all = rig.allocate(32 * kMiB);
  CHECK(now(rig.counters().rung_magazines) == served + 1);
  CHECK(now(rig.counters().native_fallbacks) == 0);
  rig.free(all);
}

TEST_CASE("magazines: where nothing is on its way back they are closed before the pool grows") {
  Rig rig(plenty(config::Backing::segments));
  fill_and_free(rig, 1);
  rig.allocate(30 * kMiB);  // more than the thread keeps, once its frees are over
  CHECK(now(rig.counters().reserved_bytes) == 32 * kMiB);
}

TEST_CASE("magazines: a thread that keeps as much as is missing loses it before the pool grows, although as much is on its way back") {
  Rig rig(plenty(config::Backing::segments));
  const CUdeviceptr late = rig.allocate(32 * kMiB);
  asking_pairs(rig, 512, 1);
  fill_and_free(rig, 3, 32);
  asking_pairs(rig, 512, 300);  // with which those frees get an event and are seen to be over
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  REQUIRE(now(rig.counters().deferred_bytes) < kMiB);
  REQUIRE(cusim_launch_spin(nullptr, 5 * kMs) == CUDA_SUCCESS);
  rig.free(late);
  REQUIRE(now(rig.counters().deferred_bytes) >= 32 * kMiB);
  rig.allocate(24 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) == reserved_bytes);
}

TEST_CASE("large blocks of one size that go round on an idle GPU share events") {
  Rig rig(plenty(config::Backing::pages));
  CHECK(epochs_of(rig, {64 * kMiB}, 100) >= 8);  // at first each has its own
  CHECK(epochs_of(rig, {64 * kMiB}, 1600) <= 1600 / 12);
  CHECK(now(rig.counters().reserved_bytes) <= 2048 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 60'000 * kMs) == CUDA_SUCCESS);
  epochs_of(rig, {64 * kMiB}, 16);  // of which one shows that the GPU is busy
  CHECK(epochs_of(rig, {64 * kMiB}, 16) >= 3);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("large blocks of several sizes do not share events: a job would grow by it in a late step") {
  Rig rig(plenty(config::Backing::pages));
  CHECK(epochs_of(rig, {64 * kMiB, 66 * kMiB}, 400) >= 390);
  CHECK(now(rig.counters().reserved_bytes) <= 512 * kMiB);
  Rig three(plenty(config::Backing::pages));
  CHECK(epochs_of(three, {20 * kMiB, 22 * kMiB, 24 * kMiB}, 600) >= 195);  // each epoch has all three, the same one last
}

TEST_CASE("magazines: blocks of 1 GiB that go round on an idle GPU stay with their thread, five and more to an event") {
  for (const config::Backing backing : {config::Backing::segments, config::Backing::pages}) {
    for (const std::size_t live : {std::size_t{1}, std::size_t{8}}) {
      INFO(live << " live blocks");
      Rig rig(roomy(backing));
      std::vector<CUdeviceptr> ring(live, 0);
      churn(rig, ring, kGiB, 2000);
      const std::uint64_t records = cusim_calls("cuCtxRecordEvent");
      CHECK(asking_pairs(rig, ring, 1000) <= 1000 / 4);
      CHECK(cusim_calls("cuCtxRecordEvent") - records <= 1000 / 5);
      CHECK(now(rig.counters().reserved_bytes) <= (live + 7) * kGiB);
      CHECK(rig.pools().check() == "");
      free_them(rig, ring);
    }
  }
}

TEST_CASE("magazines: where more than half of the device was needed no thread keeps blocks of 1 GiB") {
  Rig rig(roomy(config::Backing::pages));
  rig.allocate(48 * kGiB);
  std::vector<CUdeviceptr> ring(1, 0);
  churn(rig, ring, kGiB, 2000);
  CHECK(asking_pairs(rig, ring, 100) == 100);
  CHECK(now(rig.counters().reserved_bytes) <= 52 * kGiB);
}

TEST_CASE("magazines: threads whose blocks of 1 GiB go round share events") {
  Rig rig(roomy(config::Backing::pages));
  constexpr int kPairs = 4000;
  const auto turn = [&rig] {
    cuCtxSetCurrent(rig.context());
    std::vector<CUdeviceptr> ring(8, 0);
    churn(rig, ring, kGiB, kPairs);
    free_them(rig, ring);
  };
  std::thread one(turn);
  std::thread other(turn);
  one.join();
  other.join();
  CHECK(total(rig.counters().epochs_closed) <= 2 * kPairs / 4);
  CHECK(rig.pools().check() == "");
  CHECK(now(rig.counters().live_bytes) == 0);
}

TEST_CASE("magazines: an epoch that another thread is asking about does not tell that the GPU is busy") {
  RigOptions options = roomy(config::Backing::pages);
  options.patch = [](DriverApi& api) { api.cuEventQuery = &query_late; };
  Rig rig(options);
  std::vector<CUdeviceptr> ring(1, 0);
  churn(rig, ring, kGiB, 2000);
  const std::uint64_t closed = total(rig.counters().epochs_closed);
  std::uint64_t closed_meanwhile = 0;
  g_meanwhile = [&] {
    cuCtxSetCurrent(rig.context());
    std::vector<CUdeviceptr> other(1, 0);
    churn(rig, other, kGiB, 20);
    free_them(rig, other);
    closed_meanwhile = total(rig.counters().epochs_closed) - closed;
  };
  while (g_meanwhile) churn(rig, ring, kGiB, 1);
  REQUIRE(closed_meanwhile != 0);
  CHECK(epochs_of(rig, {kGiB}, 20) <= 20 / 4);
}

TEST_CASE("magazines: what a loop of large blocks leaves without an event is there for a request that needs it") {
  for (const config::Backing backing : {config::Backing::segments, config::Backing::pages}) {
    Rig rig(roomy(backing));
    std::vector<CUdeviceptr> ring(1, 0);
    churn(rig, ring, kGiB, 2000);
    for (int i = 0; i < 10 && untold_deferred_bytes(rig) < 2 * kGiB; ++i) churn(rig, ring, kGiB, 1);
    REQUIRE(untold_deferred_bytes(rig) >= 2 * kGiB);
    REQUIRE(cusim_launch_spin(new_stream(), 100 * kMs) == CUDA_SUCCESS);
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
    const CUdeviceptr rest = rig.allocate(free_bytes + now(rig.counters().reserved_bytes) - kGiB);
    CHECK(now(rig.counters().native_fallbacks) == 0);
    rig.free(rest);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  }
}
