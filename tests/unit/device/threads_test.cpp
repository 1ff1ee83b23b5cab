// Many threads, two devices, work in flight, captures and resets at once: no early reuse, no lost block, no data race
// (run it under -fsanitize=thread).
#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

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

TEST_CASE("threads with streams of their own, plain and stream-ordered calls mixed, a limit that presses, captures that come and go") {
  const config::Policy policy = GENERATE(config::Policy::grow, config::Policy::async);
  RigOptions options;
  options.pool.policy = policy;
  options.pool.limit.all = config::parse_amount("48MiB");
  Rig rig(options);
  std::atomic<std::uint64_t> failures{0};
  std::atomic<int> working{4};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      cuCtxSetCurrent(rig.context());
      std::mt19937 random(t);
      CUstream stream = nullptr;
      cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
      const StreamName name{stream, reinterpret_cast<std::uintptr_t>(stream)};
      std::vector<std::pair<CUdeviceptr, bool>> held;  ///< with: is it from cuMemAllocAsync?
      // A plain free of such memory does not wait, and nobody may here.
      const auto free_one = [&](CUdeviceptr block, bool is_ordered) {
        return is_ordered ? rig.pools().free_on(block, rig.context(), name) : rig.pools().free(block);
      };
      for (int step = 0; step < 2 * kSteps; ++step) {
        const bool ordered = policy == config::Policy::grow && random() % 3 != 0;
        if (held.size() < 8 && random() % 2 == 0) {
          const std::size_t bytes = 512 + random() % (2 * kMiB);
          const Result<CUdeviceptr> block = ordered ? rig.pools().allocate_on(rig.context(), bytes, name, 1, "cuMemAllocAsync")
                                                    : rig.pools().allocate(rig.context(), bytes, "cuMemAlloc_v2");
          if (!block.ok()) {
            if (block.code() != CUDA_ERROR_OUT_OF_MEMORY) failures.fetch_add(1);
            continue;
          }
          const auto value = static_cast<std::uint8_t>(random());
          cusim_launch_fill(stream, block.value(), 512, value, 10'000);
          cusim_launch_check(stream, block.value(), 512, value, 10'000);
          held.emplace_back(block.value(), ordered);
        } else if (!held.empty()) {
          const auto [block, is_ordered] = held.back();
          held.pop_back();
          const FreeResult result = free_one(block, ordered || is_ordered);
          if (result.outcome != FreeOutcome::freed) failures.fetch_add(1);
        }
        if (step % 20 == 0) cusim_advance_ns(30'000);
        if (step % 100 == 0) rig.pools().trim();
      }
      for (const auto& [block, is_ordered] : held) free_one(block, is_ordered);
      rig.pools().stream_ending(rig.context(), name.identity);
      working.fetch_sub(1);
    });
  CUstream capturing = nullptr;
  REQUIRE(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  int invalidated = 0;
  while (working.load() != 0) {
    CUgraph graph = nullptr;
    if (rig.pools().begin_capture(capturing, [&] { return cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL); }) != CUDA_SUCCESS)
      continue;
    std::this_thread::yield();
    if (rig.pools().end_capture(
            capturing, [&] { return cuStreamEndCapture(capturing, &graph); }, [] { return false; }) != CUDA_SUCCESS)
      ++invalidated;
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(failures.load() == 0);
  CHECK(invalidated == 0);
  CHECK(now(rig.counters().live_blocks) == 0);
  CHECK(cusim_mismatched_bytes() == 0);
  rig.pools().trim();
  CHECK(rig.pools().check() == "");
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
    if (rig.pools().end_capture(
            stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) != CUDA_SUCCESS)
      ++invalidated;
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

namespace {
struct PagedWorker {
  Rig& rig;
  unsigned seed;
  std::atomic<std::uint64_t>& failures;

  /// What one thread does with one context, which is its own from the second round on: then it ends with blocks in it. The answer: those of them that stay.
  std::vector<CUdeviceptr> use(CUcontext context, std::mt19937& random) const {
    cuCtxSetCurrent(context);
    CUstream stream = nullptr;
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    const BlockLife life = context == rig.context() ? BlockLife::context : BlockLife::pool;
    const StreamName name{stream, reinterpret_cast<std::uintptr_t>(stream)};
    std::vector<std::pair<CUdeviceptr, bool>> held;  ///< with: is it from cuMemAllocAsync? A plain free of that does not wait
    const auto free_one = [&](CUdeviceptr block, bool is_ordered) {
      return is_ordered ? rig.pools().free_on(block, context, name) : rig.pools().free(block);
    };
    for (int step = 0; step < 2 * kSteps; ++step) {
      const bool ordered = random() % 3 == 0;
      if (held.size() < 7 && random() % 2 == 0) {
        const std::size_t bytes = 512 + random() % (7 * kMiB);
        const Result<CUdeviceptr> block = ordered ? rig.pools().allocate_on(context, bytes, name, 1, "cuMemAllocAsync", life)
                                                  : rig.pools().allocate(context, bytes, "cuMemAlloc_v2");
        if (!block.ok()) {
          const bool is_drivers_own = ordered && life == BlockLife::pool && block.code() == CUDA_ERROR_NOT_SUPPORTED;
          if (block.code() != CUDA_ERROR_OUT_OF_MEMORY && !is_drivers_own) failures.fetch_add(1);
          continue;
        }
        const auto value = static_cast<std::uint8_t>(random());
        cusim_launch_fill(stream, block.value() + bytes - 512, 512, value, 10'000);
        cusim_launch_check(stream, block.value() + bytes - 512, 512, value, 10'000);
        held.emplace_back(block.value(), ordered);
      } else if (!held.empty()) {
        const FreeResult result = free_one(held.back().first, ordered || held.back().second);
        if (result.outcome != FreeOutcome::freed) failures.fetch_add(1);
        held.pop_back();
      }
      if (step % 16 == 0) cusim_advance_ns(30'000);
      if (step % 64 == 9) rig.pools().trim();
      if (step % 64 == 20) rig.pools().snapshot(std::chrono::milliseconds(5));
      if (step % 512 == 30 && !held.empty()) rig.pools().pin_pages(held.back().first);
    }
    if (context != rig.context()) {
      std::vector<CUdeviceptr> of_pool;
      for (const auto& [block, is_ordered] : held)
        if (is_ordered) of_pool.push_back(block);
      return of_pool;
    }
    for (const auto& [block, is_ordered] : held) free_one(block, is_ordered);
    rig.pools().stream_ending(context, name.identity);
    return {};
  }

  void operator()() {
    std::mt19937 random(seed);
    use(rig.context(), random);
    for (int round = 0; round < 3; ++round) {
      CUcontext own = nullptr;
      if (cuCtxCreate_v2(&own, 0, 0) != CUDA_SUCCESS) {
        failures.fetch_add(1);
        return;
      }
      rig.pools().context_seen(own, 0);
      const std::vector<CUdeviceptr> left = use(own, random);
      rig.pools().end_context(
          own, [own] { return cuCtxDestroy_v2(own); }, [] { return true; });
      for (const CUdeviceptr block : left)  // natively no context's, and nobody else has it
        if (rig.pools().free(block).outcome != FreeOutcome::freed) failures.fetch_add(1);
    }
  }
};
}  // namespace

TEST_CASE("threads on pages: misses, moves, releases, contexts that end with blocks in them, pins and snapshots at once") {
  RigOptions options;
  options.pool.backing = config::Backing::pages;
  options.pool.limit.all = config::parse_amount("49MiB");  // no multiple of a page: blocks of the driver's own are made too
  Rig rig(options);
  std::atomic<std::uint64_t> failures{0};
  std::atomic<int> working{6};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 6; ++t)
    threads.emplace_back([&, t] {
      PagedWorker{rig, t, failures}();
      working.fetch_sub(1);
    });
  CUstream capturing = nullptr;
  REQUIRE(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  int invalidated = 0;
  while (working.load() != 0) {
    CUgraph graph = nullptr;
    if (rig.pools().begin_capture(
            capturing, [&] { return cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL); },
            CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) != CUDA_SUCCESS)
      continue;
    std::this_thread::yield();
    if (rig.pools().end_capture(
            capturing, [&] { return cuStreamEndCapture(capturing, &graph); }, [] { return false; }) != CUDA_SUCCESS)
      ++invalidated;
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(failures.load() == 0);
  CHECK(invalidated == 0);
  CHECK(now(rig.counters().remaps) > 0);
  CHECK(now(rig.counters().live_blocks) == 0);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(rig.pools().check() == "");
  rig.pools().trim();
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
}
