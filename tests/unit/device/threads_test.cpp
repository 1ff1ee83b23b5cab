// Many threads, two devices, work in flight, captures and resets at once: no early reuse, no lost block, no data race
// (run it under -fsanitize=thread).
#include <atomic>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
constexpr int kSteps = 400;

struct Worker {
  Rig& rig;
  unsigned seed;
  std::atomic<std::uint64_t>& failures;

  void operator()() {
    std::mt19937 random(seed);
    const CUcontext context = rig.context(static_cast<int>(seed % 2));
    cuCtxSetCurrent(context);
    CUstream stream = nullptr;
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    std::vector<CUdeviceptr> held;
    for (int step = 0; step < kSteps; ++step) {
      if (held.size() < 20 && random() % 3 != 0) {
        const Result<CUdeviceptr> block = rig.pools().allocate(context, 512 + random() % (3 * kMiB), "cuMemAlloc_v2");
        if (!block.ok()) {
          failures.fetch_add(1);
          continue;
        }
        const auto value = static_cast<std::uint8_t>(random());
        cusim_launch_fill(stream, block.value(), 512, value, 10'000);
        cusim_launch_check(stream, block.value(), 512, value, 10'000);
        held.push_back(block.value());
      } else if (!held.empty()) {
        const std::size_t victim = random() % held.size();
        if (rig.pools().free(held[victim]).outcome != FreeOutcome::freed) failures.fetch_add(1);
        held[victim] = held.back();
        held.pop_back();
      }
      if (step % 50 == 0) rig.pools().snapshot(std::chrono::milliseconds(5));
      if (step % 20 == 0) cusim_advance_ns(30'000);
    }
    for (const CUdeviceptr block : held) rig.pools().free(block);
  }
};
}  // namespace

TEST_CASE("eight threads on two devices: every block is whole, and every free is booked") {
  for (const config::FreeMode free : {config::FreeMode::deferred, config::FreeMode::sync}) {
    RigOptions options;
    options.devices = 2;
    options.memory = "512MiB";
    options.pool.free = free;
    Rig rig(options);
    std::atomic<std::uint64_t> failures{0};
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 8; ++t) threads.emplace_back(Worker{rig, t, failures});
    for (std::thread& thread : threads) thread.join();
    CHECK(failures.load() == 0);
    for (int device = 0; device < 2; ++device) {
      rig.use(device);
      REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
      CHECK(now(rig.counters(device).live_blocks) == 0);
      CHECK(now(rig.counters(device).live_bytes) == 0);
      CHECK(now(rig.counters(device).allocations) == now(rig.counters(device).frees));
    }
    CHECK(cusim_mismatched_bytes() == 0);
  }
}

TEST_CASE("captures that begin and end beside freeing threads are never invalidated") {
  Rig rig;
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      cuCtxSetCurrent(rig.context());
      while (!stop.load()) {
        const Result<CUdeviceptr> block = rig.pools().allocate(rig.context(), 2 * kMiB, "cuMemAlloc_v2");
        if (block.ok()) rig.pools().free(block.value());
      }
    });
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  int invalidated = 0;
  for (int i = 0; i < 200; ++i) {
    CUgraph graph = nullptr;
    if (rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }) != CUDA_SUCCESS) continue;
    std::this_thread::yield();
    if (rig.pools().end_capture(stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) != CUDA_SUCCESS) ++invalidated;
  }
  stop.store(true);
  for (std::thread& thread : threads) thread.join();
  CHECK(invalidated == 0);
}

TEST_CASE("threads that miss at once share what one of them brings") {
  Rig rig;
  std::vector<std::thread> threads;
  std::atomic<int> ready{0};
  for (unsigned t = 0; t < 8; ++t)
    threads.emplace_back([&] {
      cuCtxSetCurrent(rig.context());
      ready.fetch_add(1);
      while (ready.load() < 8) std::this_thread::yield();
      for (int i = 0; i < 50; ++i) static_cast<void>(rig.pools().allocate(rig.context(), 100 * kKiB, "cuMemAlloc_v2"));
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(now(rig.counters().live_blocks) == 400);
  CHECK(now(rig.counters().reserved_bytes) <= 128 * kMiB);
}
