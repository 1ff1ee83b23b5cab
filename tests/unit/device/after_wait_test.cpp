// What the pool does when the program has waited for the GPU by a call of its own: what was freed is seen to be over then and there.
#include <deque>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"
#include "tests/unit/device/churn.hpp"
#include "tests/unit/device/steps.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kS = 1'000'000'000;

/// As the shim does after a call of the program that has waited.
void tell_of_wait(Rig& rig) {
  CUcontext context = nullptr;
  REQUIRE(cuCtxGetCurrent(&context) == CUDA_SUCCESS);
  if (rig.pools().much_waits(context)) rig.pools().after_wait(context);
}

/// The program waits for each step, or (`behind` 1) for the one before. Then only what it calls itself is called from step `first` on.
void check_steps(std::uint32_t seed, std::size_t behind, int first) {
  std::mt19937 random(seed);
  Rig rig(on_pages(device_of("160GiB")));
  const CUstream stream = new_stream();
  rig.allocate((1 + random() % 10) * kGiB);
  const std::vector<Operation> step = make_step(random);
  std::deque<CUevent> ends;
  for (int i = 0; i < 40; ++i) {
    INFO("seed " << seed << ", step " << i);
    const std::uint64_t before = memory_and_sync_calls();
    run_step(rig, step, [&] { REQUIRE(cusim_launch_spin(stream, kStepKernel_ns) == CUDA_SUCCESS); });
    ends.push_back(nullptr);
    REQUIRE(cuEventCreate(&ends.back(), CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(ends.back(), stream) == CUDA_SUCCESS);
    if (ends.size() <= behind) continue;
    REQUIRE(cuEventSynchronize(ends.front()) == CUDA_SUCCESS);
    const std::uint64_t calls = memory_and_sync_calls() - before;
    REQUIRE(cuEventDestroy_v2(ends.front()) == CUDA_SUCCESS);
    ends.pop_front();
    tell_of_wait(rig);
    if (i >= first) REQUIRE(calls == 1);  // the program's own
  }
}
}  // namespace

// What is counted here is the same under the thread sanitizer, at twenty times the price: there a few jobs, for the order of the locks.
#if defined(__SANITIZE_THREAD__)
constexpr std::uint32_t kJobs = 4;
#else
constexpr std::uint32_t kJobs = 60;
#endif

TEST_CASE("identical steps that the program waits for: no memory or synchronising call from the third on, whatever the blocks") {
  for (std::uint32_t seed = 0; seed < kJobs; ++seed) check_steps(seed, 0, 2);
}

TEST_CASE("identical steps that the program waits for one step late: no memory or synchronising call from the seventh on") {
  for (std::uint32_t seed = 0; seed < kJobs; ++seed) check_steps(seed, 1, 6);
}

TEST_CASE("identical steps without any work on the GPU stay as small as the first, if some time passes") {
  for (std::uint32_t seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    Rig rig(on_pages(device_of("160GiB")));
    rig.allocate(kGiB);
    const std::vector<Operation> step = make_step(random);
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 40; ++i) {
      INFO("seed " << seed << ", step " << i);
      const std::uint64_t before = memory_and_sync_calls();
      blocks.clear();
      for (const Operation& operation : step) {
        if (operation.bytes == 0) rig.free(blocks.at(operation.index));
        else blocks.push_back(rig.allocate(operation.bytes));
      }
      cusim_advance_ns(kMs);
      if (i >= 2) REQUIRE(memory_and_sync_calls() == before);
    }
  }
}

TEST_CASE("after a wait what was freed is free again, for one event and a look") {
  Rig rig(GENERATE(RigOptions{}, on_pages()));
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.allocate(16 * kMiB);
  REQUIRE(cusim_launch_spin(stream, kMs) == CUDA_SUCCESS);
  rig.free(block);
  REQUIRE(now(rig.counters().deferred_bytes) == 16 * kMiB);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  const std::uint64_t records = cusim_calls("cuCtxRecordEvent");
  const std::uint64_t queries = cusim_calls("cuEventQuery");
  tell_of_wait(rig);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(cusim_calls("cuCtxRecordEvent") == records + 1);
  CHECK(cusim_calls("cuEventQuery") == queries + 1);
  CHECK_FALSE(rig.pools().much_waits(rig.context()));
  rig.free(rig.allocate(64 * kKiB));  // nothing is left that its event would have to cover
  CHECK(cusim_calls("cuCtxRecordEvent") == records + 1);
}

TEST_CASE(
    "after a wait with work left the next plain free has an event of its own, also behind a free in stream order, and later ones share theirs") {
  Rig rig;
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.allocate(8 * kMiB);
  std::vector<CUdeviceptr> blocks(10);
  for (CUdeviceptr& one : blocks) one = rig.allocate(kMiB);
  REQUIRE(cusim_launch_spin(stream, kS) == CUDA_SUCCESS);
  rig.free(block);
  tell_of_wait(rig);
  REQUIRE(now(rig.counters().deferred_bytes) == 8 * kMiB);
  if (GENERATE(false, true)) {
    const StreamName name{stream, reinterpret_cast<std::uintptr_t>(stream)};
    REQUIRE(rig.pools().free_on(blocks.back(), rig.context(), name).outcome == FreeOutcome::freed);
    blocks.pop_back();
  }
  const std::uint64_t records = cusim_calls("cuCtxRecordEvent");
  rig.free(blocks.back());
  CHECK(cusim_calls("cuCtxRecordEvent") == records + 1);
  blocks.pop_back();
  for (const CUdeviceptr one : blocks) rig.free(one);
  CHECK(cusim_calls("cuCtxRecordEvent") == records + 1);
}

TEST_CASE("after a wait what a thread has freed and kept for itself is free again too") {
  Rig rig(on_pages(device_of("64GiB")));
  std::vector<CUdeviceptr> ring(240, 0);
  churn(rig, ring, 32 * kKiB, 4800);
  tell_of_wait(rig);
  std::uint64_t untold_bytes = 0;
  for (int i = 0; i < 480 && untold_bytes < 5 * kMiB; ++i) {
    CUdeviceptr& slot = ring[static_cast<std::size_t>(i) % ring.size()];
    rig.free(slot);
    slot = rig.allocate(32 * kKiB);
    untold_bytes = untold_deferred_bytes(rig);
  }
  REQUIRE(untold_bytes >= 5 * kMiB);
  REQUIRE(rig.pools().much_waits(rig.context()));
  rig.pools().after_wait(rig.context());
  CHECK(untold_deferred_bytes(rig) == 0);
  CHECK(now(rig.counters().deferred_bytes) == 0);
}

TEST_CASE("after a wait a thread keeps its small blocks") {
  Rig rig(on_pages(device_of("64GiB")));
  std::vector<CUdeviceptr> ring(240, 0);
  const CUdeviceptr large = rig.allocate(16 * kMiB);
  churn(rig, ring, 32 * kKiB, 4800);
  rig.free(large);
  REQUIRE(rig.pools().much_waits(rig.context()));
  rig.pools().after_wait(rig.context());
  REQUIRE(untold_allocations(rig) == 0);
  rig.allocate(32 * kKiB);
  CHECK(untold_allocations(rig) == 1);  // by itself
}

TEST_CASE("after a wait the live page says what has become free, in how many pieces") {
  Rig rig(GENERATE(RigOptions{}, on_pages()));
  const CUdeviceptr block = rig.allocate(16 * kMiB);
  rig.allocate(kMiB);
  rig.free(block);
  tell_of_wait(rig);
  REQUIRE(now(rig.counters().deferred_bytes) == 0);
  const observe::LiveFragmentation& live = rig.live().fragmentation;
  CHECK(live.free_bytes == now(rig.counters().reserved_bytes) - kMiB);
  CHECK(live.largest_free_bytes >= 16 * kMiB);
}

TEST_CASE("little is not worth an event after a wait") {
  Rig rig;
  rig.free(rig.allocate(kMiB));
  CHECK_FALSE(rig.pools().much_waits(rig.context()));
  const std::uint64_t calls = cusim_total_calls();
  rig.pools().after_wait(rig.context());
  CHECK(cusim_total_calls() == calls);
  CHECK(now(rig.counters().deferred_bytes) == kMiB);
}

// The event of a wait may only be polled, for one second: natively nobody had waited there. The next free's own covers it.
TEST_CASE("after a wait for something else what was freed is waited for as natively it had been") {
  RigOptions options = GENERATE(RigOptions{}, on_pages());
  options.memory = "256MiB";
  Rig rig(options);
  const CUdeviceptr large = rig.allocate(16 * kMiB);
  const CUdeviceptr small = rig.allocate(64 * kKiB);
  REQUIRE(cusim_launch_spin(new_stream(), 3 * kS) == CUDA_SUCCESS);
  rig.free(large);
  const std::uint64_t closed = now(rig.counters().epochs_closed);
  tell_of_wait(rig);
  REQUIRE(now(rig.counters().epochs_closed) == closed + 1);
  REQUIRE(now(rig.counters().deferred_bytes) == 16 * kMiB);
  rig.free(small);
  CHECK(now(rig.counters().epochs_closed) == closed + 2);
  const Result<CUdeviceptr> block = rig.try_allocate(245 * kMiB);
  REQUIRE(block.ok());
  CHECK(cusim_now_ns() >= 3 * kS);
}

TEST_CASE("a wait during a capture asks for nothing") {
  Rig rig(GENERATE(RigOptions{}, on_pages()));
  const CUstream stream = new_stream();
  rig.free(rig.allocate(16 * kMiB));
  const auto mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  REQUIRE(rig.pools().begin_capture(
              stream, [&] { return cuStreamBeginCapture_v2(stream, mode); }, mode) == CUDA_SUCCESS);
  const std::uint64_t calls = cusim_total_calls();
  rig.pools().after_wait(rig.context());
  CHECK(cusim_total_calls() == calls);
  CUgraph graph = nullptr;
  REQUIRE(rig.pools().end_capture(
              stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  CHECK(graph != nullptr);
}

TEST_CASE("a wait where nothing is deferred asks for nothing") {
  RigOptions options = GENERATE(RigOptions{}, on_pages());
  options.pool.free = GENERATE(config::FreeMode::sync, config::FreeMode::immediate);
  Rig rig(options);
  rig.free(rig.allocate(16 * kMiB));
  const std::uint64_t calls = cusim_total_calls();
  rig.pools().after_wait(rig.context());
  CHECK(cusim_total_calls() == calls);
}
