// A driver that waits for running work while it maps memory (note_sync), and work that waits for another thread: that thread is never kept.
#include <catch2/catch.hpp>

#include <atomic>
#include <thread>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

RigOptions waiting_driver(int devices = 1) {
  RigOptions options;
  options.devices = devices;
  options.pool.backing = config::Backing::pages;
  cusim_configure("NOTE_SYNC", "1");  // read by the Rig's reset
  return options;
}

/// A kernel that waits for the host runs, and a thread is in the driver with a miss that waits for the kernel.
class Stalled {
 public:
  Stalled(Rig& rig, std::size_t bytes) {
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_wait_host(stream, &flag_) == CUDA_SUCCESS);
    const std::uint64_t calls = cusim_calls("cuMemSetAccess");
    thread_ = std::thread([this, &rig, bytes] {
      cuCtxSetCurrent(rig.context());
      code_ = rig.pools().allocate(rig.context(), bytes, "cuMemAlloc_v2").code();
      is_over_ = true;
    });
    while (cusim_calls("cuMemSetAccess") == calls) std::this_thread::yield();
  }
  ~Stalled() { end(); }
  Stalled(const Stalled&) = delete;
  Stalled& operator=(const Stalled&) = delete;

  bool is_over() const { return is_over_; }
  /// The host releases its kernel. What the thread's call returned.
  CUresult end() {
    __atomic_store_n(&flag_, 1U, __ATOMIC_RELEASE);
    if (thread_.joinable()) thread_.join();
    cusim_configure("NOTE_SYNC", nullptr);
    return code_;
  }

 private:
  volatile std::uint32_t flag_ = 0;
  std::atomic<bool> is_over_{false};
  std::atomic<CUresult> code_{CUDA_ERROR_UNKNOWN};
  std::thread thread_;
};

}  // namespace

TEST_CASE("stalled pages: another thread's miss is served by the driver's own call, and both blocks are good") {
  Rig rig(waiting_driver());
  rig.free(rig.allocate(2 * kMiB));
  Stalled stalled(rig, 8 * kMiB);
  const std::uint64_t began_ns = cusim_now_ns();
  const Result<CUdeviceptr> block = rig.try_allocate(4 * kMiB);
  REQUIRE(block.ok());
  CHECK_FALSE(stalled.is_over());
  CHECK(now(rig.counters().native_fallbacks) == 1);
  CHECK(cusim_now_ns() - began_ns < 300'000'000);
  const std::uint64_t second_ns = cusim_now_ns();
  REQUIRE(rig.try_allocate(kMiB).ok());  // a hole
  REQUIRE(rig.try_allocate(4 * kMiB).ok());
  CHECK(cusim_now_ns() - second_ns < 50'000'000);
  CHECK(stalled.end() == CUDA_SUCCESS);
  CHECK(cuMemsetD8_v2(block.value(), 1, 4 * kMiB) == CUDA_SUCCESS);
  rig.free(block.value());
  const std::uint64_t natives = now(rig.counters().native_fallbacks);
  rig.allocate(16 * kMiB);  // and pages serve again
  CHECK(now(rig.counters().native_fallbacks) == natives);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stalled pages: a trim takes what is mapped nowhere and asks nothing of the driver that could wait") {
  Rig rig(waiting_driver());
  const CUdeviceptr empty = rig.allocate(64 * kMiB);
  rig.allocate(2 * kMiB);  // so that the other thread does not begin its block there
  rig.free(empty);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().after_wait(rig.context());
  Stalled stalled(rig, 100 * kMiB);
  while (rig.try_allocate(96 * kMiB).ok() && now(rig.counters().native_fallbacks) == 0) {}  // whoever misses finds out
  const std::uint64_t unmaps = cusim_calls("cuMemUnmap");
  rig.pools().trim();
  CHECK(cusim_calls("cuMemUnmap") == unmaps);
  CHECK_FALSE(stalled.is_over());
  CHECK(stalled.end() == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stalled pages: giving another device access ends with an error, not never") {
  Rig rig(waiting_driver(2));
  rig.allocate(2 * kMiB);
  Stalled stalled(rig, 8 * kMiB);
  CHECK(rig.pools().share_pages(rig.context(), 1).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_FALSE(stalled.is_over());
  CHECK(stalled.end() == CUDA_SUCCESS);
  CHECK(rig.pools().share_pages(rig.context(), 1).ok());
}

TEST_CASE("stalled pages: nobody waits for a preallocation that the driver keeps") {
  RigOptions options = waiting_driver();
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("64MiB");
  Rig rig(options);
  Stalled stalled(rig, 4 * kMiB);
  REQUIRE(rig.try_allocate(4 * kMiB).ok());
  CHECK_FALSE(stalled.is_over());
  CHECK(stalled.end() == CUDA_SUCCESS);
  CHECK(now(rig.counters().reserved_bytes) == 68 * kMiB);
  CHECK(rig.pools().check() == "");
}

namespace {
CUresult (*g_create)(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long) = nullptr;
std::atomic<int> g_waiting{0};

/// Slow, but always going on: each handle takes 30 ms, and whoever waits gets to look in between.
CUresult create_slowly(CUmemGenericAllocationHandle* out, std::size_t bytes, const CUmemAllocationProp* properties, unsigned long long flags) {
  while (g_waiting.load() == 0) std::this_thread::yield();
  cusim_advance_ns(30'000'000);
  return g_create(out, bytes, properties, flags);
}
}  // namespace

TEST_CASE("stalled pages: a thread that goes on is waited for, however long all of it takes") {
  RigOptions options;
  options.pool.backing = config::Backing::pages;
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("128MiB");
  options.patch = [](DriverApi& api) {
    g_create = api.cuMemCreate;
    api.cuMemCreate = &create_slowly;
  };
  g_waiting = 0;
  DriversClock clock;
  options.clock = &clock;
  Rig rig(options);
  std::thread first([&rig] {
    cuCtxSetCurrent(rig.context());
    static_cast<void>(rig.pools().allocate(rig.context(), kMiB, "cuMemAlloc_v2"));
  });
  while (now(rig.counters().vmm_calls) == 0 && cusim_calls("cuMemAddressReserve") == 0) std::this_thread::yield();
  g_waiting = 1;
  REQUIRE(rig.try_allocate(kMiB).ok());
  first.join();
  CHECK(now(rig.counters().native_fallbacks) == 0);
  CHECK(now(rig.counters().live_blocks) == 2);
}

TEST_CASE("stalled pages: a hole that would be cracked is taken as it is while another thread is in the driver") {
  RigOptions options = waiting_driver();
  options.memory = "16GiB";
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("75%");
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 256; ++i) blocks.push_back(rig.allocate(16 * kMiB));
  for (std::size_t i = 100; i < 110; ++i) rig.free(blocks[i]);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().after_wait(rig.context());
  Stalled stalled(rig, 9 * kGiB);
  const std::uint64_t remaps = now(rig.counters().rung_remap);
  const CUdeviceptr block = rig.allocate(36 * kMiB);
  CHECK((block >= blocks[100] && block < blocks[110]));
  CHECK(now(rig.counters().rung_remap) == remaps);
  CHECK_FALSE(stalled.is_over());
  CHECK(stalled.end() == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stalled pages: where a step ends nothing is brought for the next beside a thread that is in the driver") {
  RigOptions options = waiting_driver();
  options.memory = "4GiB";
  Rig rig(options);
  const CUstream stream = new_stream();
  rig.allocate(kGiB);
  const auto go_up = [&rig, stream] {
    std::vector<CUdeviceptr> live;
    for (int i = 0; i < 12; ++i) live.push_back(rig.allocate(50 * kMiB));
    REQUIRE(cusim_launch_spin(stream, kMs) == CUDA_SUCCESS);
    return live;
  };
  for (const CUdeviceptr block : go_up()) rig.free(block);
  const std::vector<CUdeviceptr> second = go_up();
  for (std::size_t i = 0; i + 1 < second.size(); ++i) rig.free(second[i]);
  Stalled stalled(rig, 2 * kGiB);
  const std::uint64_t created = cusim_calls("cuMemCreate");
  rig.free(second.back());
  CHECK(cusim_calls("cuMemCreate") == created);
  CHECK_FALSE(stalled.is_over());
  CHECK(stalled.end() == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}
