// From free to reuse: a freed block is the program's past and the GPU's present.
#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
constexpr std::uint64_t kSecond = 1'000'000'000;

RigOptions limited(const char* limit, config::FreeMode free = config::FreeMode::deferred) {
  RigOptions options = limit != nullptr ? limited_to(limit) : RigOptions();
  options.pool.free = free;
  return options;
}

}  // namespace

TEST_CASE("a freed block is not reused before its stream's work completes") {
  Rig rig(limited("128MiB"));
  const CUstream stream = new_stream();
  for (int round = 0; round < 200; ++round) {
    const std::size_t bytes = static_cast<std::size_t>(1 + round % 7) * 3 * kMiB;
    const CUdeviceptr block = rig.allocate(bytes);
    // Writes, then reads what it wrote, when it completes: reuse in between by another stream shows as a mismatch.
    REQUIRE(cusim_launch_fill(stream, block, 4096, static_cast<std::uint8_t>(round), 2 * kMs) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_check(stream, block, 4096, static_cast<std::uint8_t>(round), 5 * kMs) == CUDA_SUCCESS);
    rig.free(block);
    const CUdeviceptr next = rig.allocate(bytes);
    const CUstream other = nullptr;
    REQUIRE(cusim_launch_fill(other, next, 4096, 0xEE, 0) == CUDA_SUCCESS);
    rig.free(next);
    if (round % 16 == 0) cusim_advance_ns(3 * kMs);
  }
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
}

TEST_CASE("immediate reuse corrupts where deferral does not, so the test above can fail") {
  Rig rig(limited("128MiB", config::FreeMode::immediate));
  rig.expect_violations();
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  const CUdeviceptr block = rig.allocate(4096);
  REQUIRE(cusim_launch_fill(stream, block, 4096, 1, 2 * kMs) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(stream, block, 4096, 1, 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  const CUdeviceptr next = rig.allocate(4096);
  REQUIRE(next == block);
  REQUIRE(cusim_launch_fill(other, next, 4096, 0xEE, 3 * kMs) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() != 0);
}

TEST_CASE("an epoch closes at 64 frees, or at 64 MiB, with one event per context") {
  Rig rig(limited(nullptr));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 64; ++i) blocks.push_back(rig.allocate(4096));
  for (int i = 0; i < 63; ++i) rig.free(blocks[static_cast<std::size_t>(i)]);
  CHECK(cusim_calls("cuCtxRecordEvent") == 0);
  CHECK(now(rig.counters().deferred_bytes) == 63 * 4096);
  rig.free(blocks[63]);
  CHECK(cusim_calls("cuCtxRecordEvent") == 1);
  CHECK(cusim_calls("cuEventQuery") == 1);
  CHECK(now(rig.counters().epochs_closed) == 1);
  CHECK(now(rig.counters().deferred_bytes) == 0);  // nothing was running
  rig.free(rig.allocate(64 * kMiB));
  CHECK(cusim_calls("cuCtxRecordEvent") == 2);
}

TEST_CASE("a free waits for the work of every context that could reach the block") {
  RigOptions options = limited(nullptr);
  options.devices = 2;
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  rig.use(1);
  const CUstream stream = new_stream();
  REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);  // a copy from the other device, say
  rig.use(0);
  rig.free(block);
  CHECK(cusim_calls("cuCtxRecordEvent") == 2);
  CHECK(now(rig.counters().deferred_bytes) == 64 * kMiB);
  cusim_advance_ns(20 * kMs);
  CHECK(rig.allocate(64 * kMiB) == block);
}

TEST_CASE("what one wait has shown to be over is not asked for, epoch by epoch") {
  Rig rig(limited("1200MiB"));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 24; ++i) blocks.push_back(rig.allocate(20 * kMiB));  // 720 MiB to spare: an epoch for each third free
  REQUIRE(cusim_launch_spin(new_stream(), 10 * kMs) == CUDA_SUCCESS);
  std::size_t freed = 0;
  std::uint64_t queries = 0;
  while (freed < blocks.size() && cusim_calls("cuEventSynchronize") == 0) {
    queries = cusim_calls("cuEventQuery");
    rig.free(blocks[freed++]);
  }
  REQUIRE(cusim_calls("cuEventSynchronize") == 1);
  REQUIRE(now(rig.counters().epochs_closed) >= 4);
  CHECK(cusim_calls("cuEventQuery") == queries + 1);           // the oldest one, before the wait
  CHECK(now(rig.counters().deferred_bytes) == 3 * 20 * kMiB);  // its own epoch stays
}

TEST_CASE("a wait shows nothing of another context's work") {
  Rig rig(limited("1200MiB"));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 24; ++i) blocks.push_back(rig.allocate(20 * kMiB));
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  REQUIRE(rig.pools().allocate(other, 4096, "cuMemAlloc_v2").ok());  // known to the pool from now on
  REQUIRE(cusim_launch_spin(new_stream(), 60 * kSecond) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(rig.context()) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(new_stream(), 10 * kMs) == CUDA_SUCCESS);
  for (const CUdeviceptr block : blocks) rig.free(block);
  REQUIRE(cusim_calls("cuEventSynchronize") >= 1);
  CHECK(now(rig.counters().deferred_bytes) == 24 * 20 * kMiB);
  CHECK(cusim_now_ns() < 60 * kSecond);
}

TEST_CASE("events are used again") {
  Rig rig;
  for (int i = 0; i < 64 * 50; ++i) rig.free(rig.allocate(64 * kKiB));
  CHECK(cusim_calls("cuCtxRecordEvent") == 50);
  CHECK(cusim_calls("cuEventCreate") <= 2);
}

namespace {
std::atomic<bool> g_stops{false};  ///< the next question, or record, of another thread than the test's stays in the driver until ...
std::atomic<bool> g_goes_on{false};
std::atomic<bool> g_is_stopped{false};
thread_local bool t_may_stop = false;

void stop_here() {
  if (!t_may_stop || !g_stops.exchange(false)) return;
  g_is_stopped = true;
  while (!g_goes_on) std::this_thread::yield();
}
CUresult query_slowly(CUevent event) {
  stop_here();
  return cuEventQuery(event);
}
CUresult record_slowly(CUcontext context, CUevent event) {
  stop_here();
  return cuCtxRecordEvent(context, event);
}
}  // namespace

TEST_CASE("a thread that is stopped in the driver with its epoch keeps no other from being used again") {
  RigOptions options;
  const bool is_query = GENERATE(true, false);
  options.pool.backing = GENERATE(config::Backing::pages, config::Backing::segments);
  if (is_query) options.patch = [](DriverApi& api) { api.cuEventQuery = &query_slowly; };
  else options.patch = [](DriverApi& api) { api.cuCtxRecordEvent = &record_slowly; };
  Rig rig(options);
  g_goes_on = g_is_stopped = false;
  g_stops = true;
  std::thread other([&] {
    t_may_stop = true;
    rig.use(0);
    for (int i = 0; i < 64 && !g_is_stopped; ++i) rig.free(rig.allocate(kMiB));
  });
  while (!g_is_stopped) std::this_thread::yield();
  const std::uint64_t questions = cusim_calls("cuEventQuery");
  for (int i = 0; i < 64 * 20; ++i) rig.free(rig.allocate(kMiB));
  CHECK(now(rig.counters().deferred_bytes) <= 3 * 64 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) <= 4 * 64 * kMiB);
  CHECK(cusim_calls("cuEventQuery") - questions <= 3 * 20);
  g_goes_on = true;
  other.join();
}

TEST_CASE("an allocation after a free of the same bytes waits for the work as the native free did, however long") {
  Rig rig(limited("100MiB"));
  const CUdeviceptr block = rig.allocate(95 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 60 * kSecond) == CUDA_SUCCESS);
  rig.free(block);
  const CUdeviceptr a = rig.allocate(47 * kMiB);
  const CUdeviceptr b = rig.allocate(47 * kMiB);
  CHECK(cusim_now_ns() >= 60 * kSecond);
  CHECK(cusim_calls("cuEventSynchronize") == 1);
  CHECK(now(rig.counters().failed_allocations) == 0);
  rig.free(a);
  rig.free(b);
}

TEST_CASE("work that the program launched after its free and that waits for the host never hangs an allocation") {
  Rig rig(limited("126MiB"));  // regions of 2 to 64 MiB fill it exactly: growth never backs off, so there is no pressure
  std::vector<CUdeviceptr> small;
  for (int i = 0; i < 40; ++i) small.push_back(rig.allocate(2 * kMiB - 512));  // no pool above asks for that: regions are shared
  for (std::size_t i = 0; i < 31; ++i) rig.free(small[i]);                     // 62 MiB and 31 frees: no event yet
  volatile std::uint32_t go = 0;
  const CUstream stream = new_stream();
  REQUIRE(cusim_launch_wait_host(stream, &go) == CUDA_SUCCESS);
  const std::uint64_t before_ns = cusim_now_ns();
  // The only events that can be recorded now cover the waiting kernel: polled for five seconds, then out of memory.
  CHECK(rig.try_allocate(60 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_now_ns() - before_ns >= 5 * kSecond);
  CHECK(cusim_now_ns() - before_ns <= 6 * kSecond);
  CHECK(cusim_calls("cuEventSynchronize") == 0);
  CHECK(cusim_calls("cuMemFree_v2") == 0);
  go = 1;
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  rig.free(rig.allocate(60 * kMiB));
}

TEST_CASE("under memory pressure every free records its own event, and not for ever") {
  Rig rig(limited("64MiB"));
  const CUdeviceptr keeper = rig.allocate(40 * kMiB);
  REQUIRE(rig.try_allocate(60 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  std::uint64_t before = cusim_calls("cuCtxRecordEvent");
  for (int i = 0; i < 10; ++i) rig.free(rig.allocate(4096));
  CHECK(cusim_calls("cuCtxRecordEvent") - before == 10);
  for (int i = 0; i < 1000; ++i) rig.free(rig.allocate(4096));
  before = cusim_calls("cuCtxRecordEvent");
  for (int i = 0; i < 640; ++i) rig.free(rig.allocate(4096));
  CHECK(cusim_calls("cuCtxRecordEvent") - before <= 10);
  rig.free(keeper);
}

TEST_CASE("a free records at once when what waits is a fair part of all that could be had, so that a miss can wait for it") {
  Rig rig(limited("64MiB"));
  const CUdeviceptr keeper = rig.allocate(40 * kMiB);
  const CUdeviceptr last = rig.allocate(20 * kMiB);
  const CUstream stream = new_stream();
  REQUIRE(cusim_launch_spin(stream, 10 * kSecond) == CUDA_SUCCESS);  // longer than anybody polls
  rig.free(last);
  CHECK(cusim_calls("cuCtxRecordEvent") == 1);
  CHECK(rig.try_allocate(22 * kMiB).ok());  // waited, as the native free would have
  CHECK(cusim_calls("cuEventSynchronize") == 1);
  rig.free(keeper);
}

TEST_CASE("sync: a free returns when the work is done, on every device once devices are linked") {
  RigOptions options = limited(nullptr, config::FreeMode::sync);
  options.devices = 2;
  Rig rig(options);
  rig.pools().link_devices();
  const CUdeviceptr block = rig.allocate(4096);
  rig.use(1);
  REQUIRE(cusim_launch_spin(new_stream(), 7 * kMs) == CUDA_SUCCESS);
  rig.use(0);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() >= 7 * kMs);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(rig.allocate(4096) == block);
  CHECK(cusim_calls("cuCtxRecordEvent") == 2);  // one each: a capture that begins meanwhile survives that, not a cuCtxSynchronize
  CHECK(cusim_calls("cuCtxSynchronize") == 0);
}

TEST_CASE("sync: a free does not wait for work of an unlinked device, and what that might copy is not reused before it ends") {
  RigOptions options = limited(nullptr, config::FreeMode::sync);
  options.devices = 2;
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(4096);
  rig.use(1);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.use(0);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);  // would never return if it waited for device 1
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(now(rig.counters().deferred_bytes) == 4096);
  const CUdeviceptr next = rig.allocate(4096);
  CHECK(next != block);
  released = 1;
  rig.use(1);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.use(0);
  rig.free(next);
  CHECK(rig.allocate(4096) == block);
}

TEST_CASE("sync: a driver that cannot record does not wait for an unlinked device either") {
  RigOptions options = limited(nullptr, config::FreeMode::sync);
  options.devices = 2;
  options.driver_version = "12040";
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(4096);
  rig.use(1);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.use(0);
  rig.free(block);
  CHECK(rig.allocate(4096) == block);
  released = 1;
  rig.use(1);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("make_room gives idle regions back, waits for deferred frees as natively they had, and never for a kernel") {
  const bool in_order = GENERATE(true, false);
  RigOptions options;
  if (!in_order) options.patch = [](DriverApi& api) { api.cuMemFreeAsync = nullptr; };
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(rig.pools().trim() == 0);  // does not wait
  CHECK(rig.pools().make_room());
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK_FALSE(rig.pools().make_room());

  const CUdeviceptr second = rig.allocate(64 * kMiB);
  rig.free(second);
  volatile std::uint32_t released = 0;
  const CUstream stream = new_stream();
  REQUIRE(cusim_launch_wait_host(stream, &released) == CUDA_SUCCESS);
  const std::uint64_t before_ns = cusim_now_ns();
  if (in_order) {
    CHECK(rig.pools().make_room());
    CHECK(cusim_calls("cuMemFree_v2") == 0);
    CHECK(cusim_used_bytes(0) == 0);
  } else {
    CHECK_FALSE(rig.pools().make_room());  // the driver's free would wait for this very thread
    CHECK(cusim_used_bytes(0) == 64 * kMiB);
  }
  CHECK(cusim_now_ns() - before_ns < 2 * kSecond);
  released = 1;
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
}

TEST_CASE("a driver without cuCtxRecordEvent: the free synchronises, and the user is told once") {
  RigOptions options;
  options.driver_version = "12040";
  Rig rig(options);
  REQUIRE(rig.pools().take_messages().size() == 1);
  CHECK(rig.pools().take_messages().empty());
  const CUdeviceptr block = rig.allocate(4096);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(rig.allocate(4096) == block);
}

TEST_CASE("a driver that says it cannot record: from then on a free synchronises") {
  Rig rig;
  cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_NOT_SUPPORTED, 1);
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  rig.free(block);
  CHECK(rig.pools().take_messages().size() == 1);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.free(rig.allocate(4096));
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(rig.allocate(64 * kMiB) == block);
}

TEST_CASE("a driver that never records, whatever it says: what was freed comes back, and nothing is refused for want of an event") {
  const char* call = GENERATE("cuCtxRecordEvent", "cuEventCreate");
  const CUresult code = GENERATE(CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_UNKNOWN, CUDA_ERROR_INVALID_VALUE, CUDA_ERROR_OUT_OF_MEMORY);
  RigOptions options = device_of("1GiB");
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  options.pool.policy = GENERATE(config::Policy::grow, config::Policy::async);
  Rig rig(options);
  cusim_fail(call, 1, code, 100'000'000);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 300; ++i) {
    blocks.push_back(rig.allocate(50 * kMiB + static_cast<std::size_t>(i) * 512));
    REQUIRE(cusim_launch_fill(nullptr, blocks.back(), 4096, 1, kMs) == CUDA_SUCCESS);
    if (blocks.size() < 15) continue;
    rig.free(blocks.front());
    blocks.erase(blocks.begin());
  }
  CHECK(now(rig.counters().failed_allocations) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a driver that records again before long is believed again") {
  Rig rig(device_of("1GiB"));
  cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_UNKNOWN, 40);
  for (int i = 0; i < 3'000; ++i) rig.free(rig.allocate(64 * kMiB / 64));
  CHECK(rig.pools().take_messages().empty());
  REQUIRE(cusim_launch_spin(nullptr, kMs) == CUDA_SUCCESS);
  const std::uint64_t before_ns = cusim_now_ns();
  rig.free(rig.allocate(4096));
  CHECK(cusim_now_ns() == before_ns);
}

TEST_CASE("a block that nothing could record for stays deferred and comes back when something can") {
  Rig rig;
  cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_OUT_OF_MEMORY, 3);
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  rig.free(block);
  CHECK(now(rig.counters().deferred_bytes) == 64 * kMiB);
  for (int i = 0; i < 3; ++i) rig.free(rig.allocate(4096));
  CHECK(now(rig.counters().deferred_bytes) < kMiB);
  CHECK(rig.allocate(64 * kMiB) == block);
}
