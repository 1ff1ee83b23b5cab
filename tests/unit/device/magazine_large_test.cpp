// Magazines: large blocks, kept where memory is plenty; and that no block comes back before its work is over.
#include <deque>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>

#include "tests/unit/device/churn.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
/// A device with so much to spare that magazines keep large blocks too.
RigOptions roomy() { return device_of("64GiB"); }
}  // namespace

TEST_CASE("magazines: a large size that is asked for again is the thread's own business too") {
  Rig rig(on_pages(roomy()));
  std::vector<CUdeviceptr> ring(16, 0);
  churn(rig, ring, 512 * kKiB, 2000);
  const std::uint64_t calls = cusim_total_calls();
  const std::uint64_t context_reads = cusim_calls("cuCtxGetCurrent");
  const std::uint64_t told = now(rig.counters().allocations);
  churn(rig, ring, 512 * kKiB, 1000);
  CHECK(now(rig.counters().allocations) + untold_allocations(rig) == 3000);
  CHECK(untold_allocations(rig) > 0);
  CHECK(now(rig.counters().allocations) - told >= 900);  // in few batches
  CHECK(cusim_total_calls() - calls - (cusim_calls("cuCtxGetCurrent") - context_reads) <= 1000 / 8);
  const observe::Snapshot snapshot = rig.snapshot();
  CHECK(counter_named(snapshot, "live_bytes") == 16 * 512 * kKiB);
  CHECK(counter_named(snapshot, "allocations") == 3000);
  free_them(rig, ring);
}

TEST_CASE("magazines: large sizes are the thread's own business on a device of 2 GiB too, and the heap's on one of half a GiB") {
  for (const char* memory : {"2GiB", "512MiB"}) {
    INFO(memory);
    Rig rig(on_pages(device_of(memory)));
    std::vector<CUdeviceptr> ring(16, 0);
    churn(rig, ring, 256 * kKiB, 2000);
    CHECK((untold_allocations(rig) > 0) == (std::string(memory) == "2GiB"));
    free_them(rig, ring);
  }
}

TEST_CASE("magazines: a thread has freed no more blocks than its list holds without telling the device, and of large ones a quarter of that") {
  const auto [bytes, most_frees] = GENERATE(table<std::size_t, std::uint64_t>(
      {std::tuple{std::size_t{512}, device::Magazine::kMostFrees}, std::tuple{64 * kKiB, device::Magazine::kMostFreesWithLarge}}));
  Rig rig(device_of("64GiB"));
  std::vector<CUdeviceptr> ring(600, 0);
  churn(rig, ring, bytes, 6000);
  std::uint64_t most = 0;
  for (const CUdeviceptr block : ring) {
    rig.free(block);
    most = std::max(most, untold_deferred_bytes(rig) / bytes);
  }
  CHECK(most == most_frees);
}

TEST_CASE("magazines: large blocks of many sizes make room for each other, and all come back") {
  Rig rig(roomy());
  std::mt19937_64 random(11);
  std::vector<CUdeviceptr> ring(64, 0);
  for (int round = 0; round < 300; ++round) {
    const std::size_t bytes = (1 + random() % (round < 150 ? 400 : 8)) * 96 * kKiB;  // first more sizes than racks, then few
    churn(rig, ring, bytes, static_cast<int>(1 + random() % 100));
    if (round % 50 == 49) REQUIRE(rig.pools().check() == "");
  }
  free_them(rig, ring);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().trim();
  CHECK(now(rig.counters().reserved_bytes) == 0);
}

TEST_CASE("magazines: a large size that is asked for now and then takes no place from one that is asked for all the time") {
  Rig rig(on_pages(roomy()));
  constexpr std::size_t kOften_bytes = 512 * kKiB;
  const auto racks = std::make_unique<device::SizedRacks<32>>();  // as Magazine::large_racks
  std::size_t seldom_bytes = kOften_bytes + 512;
  while (&racks->at(seldom_bytes) != &racks->at(kOften_bytes)) seldom_bytes += 512;
  std::vector<CUdeviceptr> ring(16, 0);
  churn(rig, ring, kOften_bytes, 2000);
  std::uint64_t asked = 0;
  for (int i = 0; i < 100; ++i) {
    rig.free(rig.allocate(seldom_bytes));
    const std::uint64_t holes = now(rig.counters().rung_hole);
    churn(rig, ring, kOften_bytes, 10);
    asked += now(rig.counters().rung_hole) - holes;
  }
  CHECK(asked <= 500);  // of 1000, what fills its rack again included
  free_them(rig, ring);
}

TEST_CASE("magazines: large blocks that a thread keeps are there for whoever needs the bytes") {
  RigOptions options = on_pages();
  options.memory = "16GiB";
  Rig rig(options);
  std::vector<CUdeviceptr> ring(8, 0);
  churn(rig, ring, 2 * kMiB, 400);
  free_them(rig, ring);
  std::thread([&rig] {
    cuCtxSetCurrent(rig.context());
    std::vector<CUdeviceptr> other(8, 0);
    churn(rig, other, 1 * kMiB, 400);
    free_them(rig, other);
  }).join();
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  const std::uint64_t all = free_bytes + now(rig.counters().reserved_bytes);
  const CUdeviceptr whole = rig.allocate(all / (2 * kMiB) * (2 * kMiB));
  CHECK(now(rig.counters().native_fallbacks) == 0);
  rig.free(whole);
}

TEST_CASE("magazines: large blocks that were wanted often, and then no more, are holes after a while") {
  Rig rig(roomy());
  rig.free(rig.allocate(32 * kMiB));  // for the small ones
  const CUdeviceptr all = rig.allocate(128 * kMiB);
  rig.free(all);
  cuCtxSynchronize();
  std::vector<CUdeviceptr> ring(2, 0);
  for (int round = 0; round < 40; ++round) {
    churn(rig, ring, 64 * kMiB, 5);
    rig.free(rig.allocate(512));  // of one size alone they would share events, and the pool grow for it
  }
  CHECK(untold_allocations(rig) > 0);
  free_them(rig, ring);
  std::vector<CUdeviceptr> small(4, 0);
  churn(rig, small, 512, 2000);  // so that the frees above are looked at
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  for (std::size_t i = 1; i <= 250; ++i) rig.allocate(32 * kKiB + i * 512);  // sizes of its own: each asks the device
  const std::uint64_t shortages = now(rig.counters().rung_magazines);
  CHECK(rig.allocate(128 * kMiB) == all);
  CHECK(now(rig.counters().rung_magazines) == shortages);
  CHECK(now(rig.counters().reserved_bytes) == reserved_bytes);
}

TEST_CASE("magazines: large blocks go from thread to thread, and none is anybody's twice") {
  Rig rig(roomy());
  std::mutex lock;
  std::deque<CUdeviceptr> shared;
  const auto work = [&](unsigned seed) {
    cuCtxSetCurrent(rig.context());
    std::mt19937 random(seed);
    for (int i = 0; i < 4000; ++i) {
      const CUdeviceptr block = rig.pools().allocate(rig.context(), (1 + random() % 5) * 200 * kKiB, "cuMemAlloc_v2").value();
      CUdeviceptr other = 0;
      {
        const std::lock_guard guard(lock);
        shared.push_back(block);
        if (shared.size() > 40) {
          const std::size_t at = random() % shared.size();
          other = shared[at];
          shared.erase(shared.begin() + static_cast<std::ptrdiff_t>(at));
        }
      }
      if (other != 0 && rig.pools().free(other).outcome != FreeOutcome::freed) throw std::logic_error("a free failed");
    }
  };
  std::thread one(work, 1), two(work, 2);
  one.join();
  two.join();
  CHECK(now(rig.counters().allocations) + untold_allocations(rig) == 8000);
  CHECK(rig.pools().check() == "");
  free_them(rig, {shared.begin(), shared.end()});
}

namespace {
/// Blocks that kernels check and fill, behind the host by all of it.
void churn_under_work(Rig& rig, std::size_t bytes, std::size_t blocks) {
  std::vector<CUdeviceptr> ring(blocks, 0);
  churn(rig, ring, bytes, static_cast<int>(blocks) * 60);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  for (int round = 0; round < 50; ++round)
    for (CUdeviceptr& slot : ring) {
      REQUIRE(cusim_launch_check(stream, slot, 0, 0, kMs / 10) == CUDA_SUCCESS);
      rig.free(slot);
      slot = rig.allocate(bytes);
      const auto value = static_cast<std::uint8_t>(round + 1);
      REQUIRE(cusim_launch_fill(stream, slot, 8 * kKiB, value, kMs / 10) == CUDA_SUCCESS);
      REQUIRE(cusim_launch_check(stream, slot, 8 * kKiB, value, kMs / 10) == CUDA_SUCCESS);
    }
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
}
}  // namespace

TEST_CASE("magazines: a freed block waits for the work that was running, as any other") {
  {
    Rig rig(limited_to("8MiB"));
    churn_under_work(rig, 8 * kKiB, 30);
  }
  for (const bool paged : {false, true}) {
    Rig rig(paged ? on_pages(roomy()) : roomy());
    churn_under_work(rig, 1536 * kKiB, 30);
  }
}

TEST_CASE("magazines: where little was never needed, few small blocks are taken from holes at once") {
  Rig rig(limited_to("256MiB"));
  for (int i = 0; i < 130; ++i) rig.allocate(4 * kKiB);  // enough for batches of hundreds where memory is plenty
  REQUIRE(now(rig.counters().reserved_bytes) == 2 * kMiB);
  const std::uint64_t shortages = now(rig.counters().rung_magazines);
  rig.allocate(2 * kMiB - 130 * 4 * kKiB - 32 * kKiB);
  CHECK(now(rig.counters().reserved_bytes) == 2 * kMiB);
  CHECK(now(rig.counters().rung_magazines) == shortages);
}
