// Magazines: a hit is the thread's own business; whatever anybody is told, or needs, is as if there were none.
#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/unit/device/churn.hpp"
#include "tests/unit/device/ending.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("magazines: hits are not told to the device one by one, and nobody can tell from a report") {
  Rig rig;
  std::vector<CUdeviceptr> ring(300, 0);
  churn(rig, ring, 4096, 3000);
  CHECK(untold_allocations(rig) + now(rig.counters().allocations) == 3000);
  std::uint64_t most = 0;
  for (int i = 0; i < 100; ++i) {
    churn(rig, ring, 4096, 1);
    most = std::max(most, untold_allocations(rig));
  }
  CHECK(most >= 15);  // whole batches without the device
  const observe::Snapshot snapshot = rig.snapshot();
  CHECK(untold_allocations(rig) == 0);
  CHECK(counter_named(snapshot, "allocations") == 3100);
  CHECK(counter_named(snapshot, "live_blocks") == 300);
  CHECK(counter_named(snapshot, "frees") == 2800);
  std::uint64_t last = 0;
  std::uint64_t allocated = 0;
  for (const observe::Event& event : snapshot.devices.at(0).timeline) {
    CHECK(event.ticks >= last);
    last = event.ticks;
    allocated += event.kind == observe::EventKind::allocate ? 1 : 0;
  }
  CHECK(allocated == 3100);
  std::uint64_t live = 0;
  for (const observe::BlockRow& block : snapshot.devices.at(0).blocks) live += block.state == observe::BlockState::live ? 1 : 0;
  CHECK(live == 300);
}

TEST_CASE("magazines: a short timeline has the newest events of all, and says how many are lost") {
  RigOptions options;
  options.pool.timeline_events = 1000;
  Rig rig(options);
  std::vector<CUdeviceptr> ring(50, 0);
  churn(rig, ring, 4096, 3000);
  const CUdeviceptr large = rig.allocate(100 * kKiB);
  churn(rig, ring, 4096, 10);
  const observe::Snapshot snapshot = rig.snapshot();
  const std::vector<observe::Event>& events = snapshot.devices.at(0).timeline;
  REQUIRE(events.size() == 1000);
  CHECK(events.back().address == ring[9]);
  CHECK(std::count_if(events.begin(), events.end(),
                      [&](const observe::Event& event) { return event.address == large && event.requested_bytes == 100 * kKiB; }) == 1);
  CHECK(snapshot.devices.at(0).timeline_dropped >= 3011 + 2960 - 1000);
  rig.free(large);
}

TEST_CASE("magazines: what threads keep is there for whoever needs the bytes") {
  for (const bool paged : {false, true}) {
    Rig rig(paged ? on_pages(limited_to("32MiB")) : limited_to("32MiB"));
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&rig] {
        cuCtxSetCurrent(rig.context());
        std::vector<CUdeviceptr> ring(40, 0);
        churn(rig, ring, 16 * kKiB, 1000);
        free_them(rig, ring);
      });
    for (std::thread& thread : threads) thread.join();  // nobody has told the pool that they are over
    const CUdeviceptr all = rig.allocate(32 * kMiB);
    CHECK(now(rig.counters().rung_magazines) + now(rig.counters().rung_poll) + now(rig.counters().rung_remap) + now(rig.counters().rung_release) >=
          1);
    rig.free(all);
  }
}

TEST_CASE("magazines: cuMemGetInfo, a trim and the pool's own figures see what threads keep as free") {
  Rig rig(limited_to("64MiB"));
  std::vector<CUdeviceptr> ring(200, 0);
  churn(rig, ring, 32 * kKiB, 4000);
  for (const CUdeviceptr block : ring) rig.free(block);
  std::size_t free_bytes = 1 * kGiB;
  std::size_t total_bytes = 1 * kGiB;
  rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);
  CHECK(free_bytes == 64 * kMiB);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  while (rig.pools().trim() > 0) {}
  CHECK(now(rig.counters().reserved_bytes) == 0);
}

TEST_CASE("magazines: a thread that ends gives back what it keeps, and keeps nothing from then on") {
  Rig rig;
  std::uint64_t untold = 0;
  std::thread([&] {
    cuCtxSetCurrent(rig.context());
    std::vector<CUdeviceptr> ring(40, 0);
    churn(rig, ring, 4096, 2000);
    rig.pools().thread_ending();
    untold += untold_allocations(rig);
    churn(rig, ring, 4096, 100);  // a library's destructor
    untold += untold_allocations(rig);
    free_them(rig, ring);
  }).join();
  CHECK(untold == 0);
  CHECK(now(rig.counters().live_blocks) == 0);
  // Its place is free again: one thread after the other, more than there are places.
  std::size_t served = 0;
  for (std::size_t i = 0; i < observe::kLiveShards + 4; ++i)
    std::thread([&] {
      cuCtxSetCurrent(rig.context());
      std::vector<CUdeviceptr> ring(40, 0);
      churn(rig, ring, 4096, 400);
      served += untold_allocations(rig) != 0 ? 1 : 0;
      free_them(rig, ring);
      rig.pools().thread_ending();
    }).join();
  CHECK(served == observe::kLiveShards + 4);
  CHECK(now(rig.counters().live_blocks) == 0);
}

TEST_CASE("magazines: what a thread that ends has freed is nobody else's who gets its place, in another context least of all") {
  Rig rig;
  const CUcontext second = create(rig, 0);
  const bool is_taken = GENERATE(false, true);      // the place, by this thread
  if (is_taken) rig.free(rig.allocate(64 * kMiB));  // from which it is served then: a miss would collect what others have freed
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().after_wait(second);
  rig.use(0);
  volatile std::uint32_t released = 0;
  std::thread([&] {
    cuCtxSetCurrent(rig.context());
    std::vector<CUdeviceptr> ring(3000, 0);
    churn(rig, ring, 4096, 9000);
    cusim_launch_wait_host(new_stream(), &released);
    free_them(rig, ring);
    rig.pools().thread_ending();
  }).join();
  std::vector<CUdeviceptr> ring(900, 0);
  if (is_taken) {
    REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
    churn(rig, ring, 4096, 1000);
    CHECK(untold_allocations(rig) != 0);
  }
  released = 1;
  rig.use(0);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().after_wait(rig.context());
  CHECK(now(rig.counters().deferred_bytes) < kMiB);  // of 12: the parcels are over
  if (is_taken) {
    REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
    churn(rig, ring, 4096, 2000);
    for (const CUdeviceptr block : ring) {
      BlockView view;
      REQUIRE(rig.pools().find(block, &view) == Ownership::live);
      REQUIRE(view.context == second);
    }
  }
  CHECK(rig.pools().check() == "");
  rig.use(0);
}

TEST_CASE("magazines: a second free and an address inside a block are refused as ever") {
  Rig rig;
  std::vector<CUdeviceptr> ring(40, 0);
  churn(rig, ring, 4096, 2000);
  const CUdeviceptr block = ring.back();
  CHECK(rig.pools().free(block + 512).outcome == FreeOutcome::invalid);
  CHECK(rig.pools().free(block + 1).outcome == FreeOutcome::invalid);
  rig.free(block);
  CHECK(rig.pools().free(block).outcome == FreeOutcome::invalid);
  CHECK(rig.pools().find(block, nullptr) == Ownership::vacant);
  std::atomic<bool> refused{false};
  std::thread([&] { refused.store(rig.pools().free(block).outcome == FreeOutcome::invalid); }).join();
  CHECK(refused.load());
  ring.pop_back();
  for (const CUdeviceptr kept : ring) CHECK(rig.pools().find(kept, nullptr) == Ownership::live);
}

TEST_CASE("magazines: two threads that free the same blocks: each is freed once") {
  Rig rig;
  for (int round = 0; round < 20; ++round) {
    std::vector<CUdeviceptr> ring(200, 0);
    churn(rig, ring, 1024, 1000);
    std::atomic<int> freed{0};
    std::atomic<int> ready{0};
    const auto free_the_ring = [&] {
      cuCtxSetCurrent(rig.context());
      std::vector<CUdeviceptr> own(40, 0);
      churn(rig, own, 1024, 200);
      ready.fetch_add(1);
      while (ready.load() < 2) std::this_thread::yield();
      for (const CUdeviceptr block : ring) freed.fetch_add(rig.pools().free(block).outcome == FreeOutcome::freed ? 1 : 0);
      free_them(rig, own);
      rig.pools().thread_ending();
    };
    std::thread one(free_the_ring);
    std::thread two(free_the_ring);
    one.join();
    two.join();
    CHECK(freed.load() == 200);
    CHECK(rig.pools().check() == "");
    CHECK(now(rig.counters().live_blocks) == 0);
  }
}

TEST_CASE("magazines: what a thread frees again and again stays its own") {
  RigOptions options;
  options.memory = "64GiB";  // so much may be kept that it keeps all of it
  Rig rig(options);
  rig.free(rig.allocate(256 * kMiB));  // and no miss closes the magazines
  std::vector<CUdeviceptr> own(300, 0);
  std::vector<CUdeviceptr> others(300, 0);
  std::set<CUdeviceptr> seen;
  churn(rig, own, 4096, 6000);
  for (int round = 0; round < 50; ++round) {
    churn(rig, own, 4096, 300);
    seen.insert(own.begin(), own.end());
    if (round % 10 != 9) continue;
    std::thread other([&] {
      cuCtxSetCurrent(rig.context());
      churn(rig, others, 4096, 300);
    });
    other.join();
    CHECK(std::count_if(others.begin(), others.end(), [&seen](CUdeviceptr block) { return seen.count(block) != 0; }) == 0);
  }
  free_them(rig, own);
  free_them(rig, others);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("magazines: what another thread freed comes back as it is, and is not looked for among holes") {
  constexpr std::size_t kBlocks = 256;
  Rig rig(device_of("64GiB"));
  rig.free(rig.allocate(256 * kMiB));
  std::vector<CUdeviceptr> blocks(kBlocks, 0);
  churn(rig, blocks, 4096, 4 * kBlocks);
  std::shuffle(blocks.begin(), blocks.end(), std::mt19937(1));
  std::thread([&] {
    cuCtxSetCurrent(rig.context());
    free_them(rig, blocks);
  }).join();
  std::size_t in_order = 0;
  auto next = blocks.end();
  for (std::size_t i = 0; i < 2 * kBlocks; ++i) {
    const auto found = std::find(blocks.begin(), blocks.end(), rig.allocate(4096));
    in_order += found != blocks.end() && found == next ? 1 : 0;
    next = found != blocks.end() ? found + 1 : found;
  }
  CHECK(in_order > kBlocks / 2);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("magazines: a context ends with blocks live, kept and freed; the next one knows none of them") {
  for (const bool paged : {false, true}) {
    Rig rig(paged ? on_pages() : RigOptions());
    std::vector<CUdeviceptr> old_ring(100, 0);
    churn(rig, old_ring, 4096, 3000);
    rig.free(old_ring.back());
    rig.reset_device();
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    CHECK(now(rig.counters().live_blocks) == 0);
    for (const CUdeviceptr block : old_ring) CHECK(rig.pools().free(block).outcome != FreeOutcome::freed);
    std::vector<CUdeviceptr> ring(100, 0);
    churn(rig, ring, 4096, 3000);
    CHECK(rig.pools().check() == "");
    CHECK(now(rig.counters().live_blocks) == 100);
  }
}

TEST_CASE("magazines: blocks of theirs leave them: freed in stream order, marked, freed during a capture") {
  Rig rig;
  std::vector<CUdeviceptr> ring(60, 0);
  churn(rig, ring, 4096, 2000);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const StreamName name{stream, 7};
  CHECK(rig.pools().free_on(ring[0], rig.context(), name).outcome == FreeOutcome::freed);
  CHECK(rig.pools().free_on(ring[0], rig.context(), name).outcome == FreeOutcome::invalid);
  const Result<CUdeviceptr> again = rig.pools().allocate_on(rig.context(), 4096, name, 1, "cuMemAllocAsync");
  REQUIRE(again.ok());
  CHECK(rig.pools().free(again.value()).outcome == FreeOutcome::freed);
  REQUIRE(rig.pools().set_sync_memops(ring[1], true).ok());
  rig.free(ring[1]);
  BlockView view;
  ring[1] = rig.allocate(4096);
  REQUIRE(rig.pools().find(ring[1], &view) == Ownership::live);
  CHECK_FALSE(view.sync_memops);
  CUgraph graph = nullptr;
  REQUIRE(rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED); }) == CUDA_SUCCESS);
  for (std::size_t i = 2; i < ring.size(); ++i) rig.free(ring[i]);
  CHECK(rig.pools().end_capture(
            stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  rig.free(ring[1]);
  CHECK(rig.pools().check() == "");
  CHECK(now(rig.counters().live_blocks) == 0);
}

TEST_CASE("magazines: blocks go from thread to thread while others look, trim and miss") {
  const bool paged = GENERATE(false, true);
  Rig rig(paged ? on_pages(limited_to("24MiB")) : limited_to("24MiB"));
  std::mutex mutex;
  std::deque<std::pair<CUdeviceptr, std::uint8_t>> passed;
  std::atomic<std::uint64_t> failures{0};
  std::atomic<int> working{4};
  std::string broken;
  const auto work = [&](unsigned seed) {
    cuCtxSetCurrent(rig.context());
    std::mt19937 random(seed);
    CUstream stream = nullptr;
    cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
    for (int step = 0; step < 1500; ++step) {
      const std::size_t bytes = random() % 32 == 0 ? 1 + random() % (3 * kMiB) : 1 + random() % (random() % 2 == 0 ? 2048 : 32 * kKiB);
      const Result<CUdeviceptr> block = rig.pools().allocate(rig.context(), bytes, "cuMemAlloc_v2");
      if (block.ok()) {
        const auto value = static_cast<std::uint8_t>(random());
        cusim_launch_fill(stream, block.value(), std::min<std::size_t>(bytes, 512), value, 1000);
        cusim_launch_check(stream, block.value(), std::min<std::size_t>(bytes, 512), value, 1000);
        const std::lock_guard<std::mutex> lock(mutex);
        passed.emplace_back(block.value(), value);
      }
      std::pair<CUdeviceptr, std::uint8_t> taken{0, 0};
      {
        const std::lock_guard<std::mutex> lock(mutex);
        if (passed.size() > 40 || (!block.ok() && !passed.empty())) {
          taken = passed[random() % 8 % passed.size()];
          passed.erase(std::find(passed.begin(), passed.end(), taken));
        }
      }
      if (taken.first != 0 && rig.pools().free(taken.first).outcome != FreeOutcome::freed) failures.fetch_add(1);
      if (step % 16 == 0) cusim_advance_ns(20'000);
    }
    rig.pools().thread_ending();
    working.fetch_sub(1);
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (int round = 0; working.load() != 0; ++round) {
    if (round % 3 == 0) rig.pools().trim();
    const observe::Snapshot snapshot = rig.snapshot();
    std::uint64_t live = 0;
    for (const observe::BlockRow& block : snapshot.devices.at(0).blocks) live += block.state == observe::BlockState::live ? 1 : 0;
    if (live != counter_named(snapshot, "live_blocks")) broken = "the map and the counters differ";
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [block, value] : passed) rig.free(block);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(failures.load() == 0);
  CHECK(broken == "");
  CHECK(rig.pools().check() == "");
  CHECK(now(rig.counters().live_blocks) == 0);
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(now(rig.counters().allocations) == now(rig.counters().frees));
  CHECK(cusim_mismatched_bytes() == 0);
}
