// Blocks of memory pools whose context was destroyed: natively they are no context's (CUDA Driver API 13.0, cuCtxDestroy).
#include <algorithm>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/device/beside.hpp"
#include "tests/unit/device/ending.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("pages: blocks of memory pools stay when their context is destroyed, and nobody gets their bytes") {
  StreamRig rig(on_pages());
  Beside beside(rig);
  const CUdeviceptr large = beside.on(5 * kMiB);
  const CUdeviceptr small = beside.on(3000, 2);
  const CUdeviceptr plain = rig.allocate(kMiB);
  rig.pools().free_on(beside.on(kMiB), beside.context, name_of(beside.stream));  // into the stream's lane
  REQUIRE(cuMemsetD8_v2(large, 7, 5 * kMiB) == CUDA_SUCCESS);
  REQUIRE(cuMemsetD8_v2(small, 8, 3000) == CUDA_SUCCESS);
  beside.destroy();
  CHECK(rig.pools().find(plain, nullptr) != Ownership::live);
  BlockView view;
  REQUIRE(rig.pools().find(large + 4096, &view) == Ownership::live);
  CHECK(view.base == large);
  CHECK(view.bytes == 5 * kMiB);
  CHECK(view.context == nullptr);
  CHECK(view.mempool == kDefaultPool);
  CHECK(now(rig.counters().live_blocks) == 2);
  CHECK(rig.pools().mempool_figures(0, kDefaultPool).used_bytes == 5 * kMiB);
  CHECK(rig.pools().mempool_figures(0, 2).used_bytes == 3000);
  const observe::Snapshot left = rig.snapshot();
  for (const auto& region : left.devices.at(0).regions) CHECK(region.context == 0);
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
  CHECK(rig.pools().check() == "");
  std::vector<CUdeviceptr> others;
  for (int i = 0; i < 20; ++i) others.push_back(rig.allocate(5 * kMiB));
  const Beside next(rig);
  for (int i = 0; i < 20; ++i) others.push_back(rig.allocate(5 * kMiB));
  for (const CUdeviceptr other : others) REQUIRE(cuMemsetD8_v2(other, 99, 5 * kMiB) == CUDA_SUCCESS);
  rig.use(0);
  CHECK(is_filled(large, 5 * kMiB, 7));
  CHECK(is_filled(small, 3000, 8));
  const observe::Snapshot snapshot = rig.snapshot();
  const auto& blocks = snapshot.devices.at(0).blocks;
  const auto row = std::find_if(blocks.begin(), blocks.end(), [large](const auto& block) { return block.address == large; });
  REQUIRE(row != blocks.end());
  CHECK(row->state == observe::BlockState::live);
  CHECK(snapshot.devices.at(0).regions.at(row->region).context == reinterpret_cast<std::uintptr_t>(next.context));  // which goes on there
  for (std::size_t i = 0; i < 20; ++i) rig.free(others[i]);
  rig.use(0);
  rig.free_on(large, new_stream());
  rig.free(small);
  CHECK(rig.pools().free(small).outcome != FreeOutcome::freed);
  CHECK(rig.pools().end_context(
            next.context, [&] { return cuCtxDestroy_v2(next.context); }, [] { return true; }) == CUDA_SUCCESS);
  rig.use(0);
  give_back_all(rig);
}

TEST_CASE("pages: what is empty beside blocks that outlive their context goes back at once, and the limit knows") {
  RigOptions options = on_pages();
  options.pool.limit.all = config::parse_amount("64MiB");
  StreamRig rig(options);
  Beside beside(rig);
  std::vector<CUdeviceptr> plain;
  for (int i = 0; i < 5; ++i) plain.push_back(rig.allocate(10 * kMiB));
  const CUdeviceptr kept = beside.on(2 * kMiB);
  beside.destroy();
  CHECK(now(rig.counters().reserved_bytes) <= 8 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
  rig.free(rig.allocate(52 * kMiB));
  rig.free(kept);
  const CUdeviceptr all = rig.allocate(64 * kMiB);  // the whole limit
  CHECK(rig.pools().check() == "");
  rig.free(all);
  give_back_all(rig);
}

TEST_CASE("pages: what lay in a stream's lane when its context ended goes back, and so does what is freed later, beside a block that stays") {
  StreamRig rig(on_pages());
  Beside beside(rig);
  const CUdeviceptr kept = beside.on(2 * kMiB);
  const CUdeviceptr later = beside.on(32 * kMiB);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(beside.on(16 * kMiB));
  for (const CUdeviceptr block : blocks) rig.pools().free_on(block, beside.context, name_of(beside.stream));
  beside.destroy();
  CHECK(now(rig.counters().reserved_bytes) <= 48 * kMiB);
  rig.free(later);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().after_wait(rig.context());
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(now(rig.counters().reserved_bytes) <= 16 * kMiB);
  rig.free(kept);
  give_back_all(rig);
}

TEST_CASE("pages: a block that has outlived its context goes when an allocation finds that its work is over") {
  RigOptions options = on_pages();
  options.memory = "8GiB";
  StreamRig rig(options);
  Beside beside(rig);
  const CUdeviceptr kept = beside.on(2 * kMiB);
  const CUdeviceptr later = beside.on(128 * kMiB);
  beside.destroy();
  const CUstream stream = new_stream();
  REQUIRE(cusim_launch_spin(stream, kMs) == CUDA_SUCCESS);
  rig.free_on(later, stream);
  REQUIRE(now(rig.counters().deferred_bytes) == 128 * kMiB);
  cusim_advance_ns(2 * kMs);
  rig.allocate(kMiB);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(now(rig.counters().reserved_bytes) < 128 * kMiB);
  rig.free(kept);
}

TEST_CASE("pages: what the driver does not take of an orphan at first goes when the pool gives back what is empty") {
  StreamRig rig(on_pages());
  Beside beside(rig);
  const CUdeviceptr kept = beside.on(2 * kMiB);
  const CUdeviceptr later = beside.on(128 * kMiB);
  cusim_fail("cuMemUnmap", 1, CUDA_ERROR_UNKNOWN, 1);
  beside.destroy();
  rig.free(later);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.allocate(kMiB);
  REQUIRE(now(rig.counters().deferred_bytes) == 0);
  CHECK(now(rig.counters().reserved_bytes) > 128 * kMiB);
  rig.pools().trim();
  CHECK(now(rig.counters().reserved_bytes) < 128 * kMiB);
  rig.free(kept);
}

namespace {
std::function<void()> g_while_sharing;

CUresult share_late(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access, std::size_t count) {
  if (const std::function<void()> meanwhile = std::exchange(g_while_sharing, nullptr)) std::thread(meanwhile).join();
  return cuMemSetAccess(address, bytes, access, count);
}
}  // namespace

TEST_CASE("pages: what is freed while another device is let reach an orphan goes after that") {
  RigOptions options = on_pages();
  options.devices = 2;
  options.patch = [](DriverApi& api) { api.cuMemSetAccess = &share_late; };
  StreamRig rig(options);
  Beside beside(rig);
  const CUdeviceptr kept = beside.on(2 * kMiB);
  const CUdeviceptr later = beside.on(128 * kMiB);
  beside.destroy();
  bool has_come = false;
  g_while_sharing = [&] {
    rig.use(0);
    has_come = rig.pools().free(later).outcome == FreeOutcome::freed;
    rig.pools().after_wait(rig.context());
  };
  REQUIRE(rig.pools().share_pages(rig.context(0), 1).ok());
  CHECK(has_come);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(now(rig.counters().reserved_bytes) < 128 * kMiB);
  rig.free(kept);
}

TEST_CASE("pages: a block that has outlived its context is freed behind the work of all that live") {
  RigOptions options = on_pages();
  SECTION("deferred") {}
  SECTION("FREE=sync") { options.pool.free = config::FreeMode::sync; }
  SECTION("a driver without events that cover a context") { options.driver_version = "12040"; }
  StreamRig rig(options);
  Beside beside(rig);
  const CUdeviceptr first = beside.on(4 * kMiB);
  const CUdeviceptr second = beside.on(4 * kMiB);
  beside.destroy();
  const CUstream stream = new_stream();
  for (const CUdeviceptr block : {second, first}) {  // unmapped under its work this would be a violation
    REQUIRE(cusim_launch_fill(stream, block, 4 * kMiB, 5, kMs) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_check(stream, block, 4 * kMiB, 5, kMs) == CUDA_SUCCESS);
    if (block == second) REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);  // a plain free does not wait
  }
  rig.free_on(first, stream);
  rig.free(second);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  rig.free(rig.allocate(kMiB));
  give_back_all(rig);
}

TEST_CASE("pages: a block that has outlived its context is freed while something captures, and goes after it") {
  StreamRig rig(on_pages());
  Beside beside(rig);
  const CUdeviceptr first = beside.on(4 * kMiB);
  const CUdeviceptr second = beside.on(4 * kMiB);
  beside.destroy();
  const CUstream capturing = new_stream();
  const CUstream stream = new_stream();
  REQUIRE(rig.pools().begin_capture(
              capturing, [&] { return cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED); }, CU_STREAM_CAPTURE_MODE_RELAXED) ==
          CUDA_SUCCESS);
  rig.free_on(first, stream);
  rig.free(second);
  CHECK(rig.pools().find(first, nullptr) != Ownership::live);
  CUgraph graph = nullptr;
  REQUIRE(rig.pools().end_capture(
              capturing, [&] { return cuStreamEndCapture(capturing, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  give_back_all(rig);
}

TEST_CASE("pages: SYNC_MEMOPS of a block outlives its context with it") {
  StreamRig rig(on_pages());
  Beside beside(rig);
  const CUdeviceptr block = beside.on(4 * kMiB);
  REQUIRE(rig.pools().set_sync_memops(block, true).ok());
  beside.destroy();
  BlockView view;
  REQUIRE(rig.pools().find(block, &view) == Ownership::live);
  CHECK(view.sync_memops);
  REQUIRE(rig.pools().set_sync_memops(block, false).ok());
  rig.free(block);
  give_back_all(rig);
}

TEST_CASE("pages: another device reaches a block that has outlived its context, once it was let") {
  RigOptions options = on_pages();
  options.devices = 2;
  StreamRig rig(options);
  Beside beside(rig);
  const CUdeviceptr block = beside.on(4 * kMiB);
  beside.destroy();
  rig.allocate(kMiB);
  REQUIRE(rig.pools().share_pages(rig.context(0), 1).ok());
  rig.use(1);
  const CUstream stream = new_stream();
  REQUIRE(cusim_launch_fill(stream, block, 4 * kMiB, 5, 1000) == CUDA_SUCCESS);  // a violation without access
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  rig.use(0);
  CHECK(is_filled(block, 4 * kMiB, 5));
  rig.free(block);
}

TEST_CASE("pages: contexts that come and go leave their blocks, and the last block takes the rest along") {
  StreamRig rig(on_pages());
  std::vector<CUdeviceptr> left;
  for (int round = 0; round < 40; ++round) {
    Beside beside(rig);
    for (int i = 0; i < 3; ++i)
      left.push_back(beside.on((1 + (static_cast<std::size_t>(round) * 37 + static_cast<std::size_t>(i)) % 9) * 300 * kKiB));
    REQUIRE(cuMemsetD8_v2(left.back(), static_cast<unsigned char>(round), 300 * kKiB) == CUDA_SUCCESS);
    rig.allocate(3 * kMiB);
    beside.destroy();
    if (round >= 10) {
      for (int i = 0; i < 3; ++i) {
        if (i == 2) CHECK(is_filled(left.front(), 300 * kKiB, static_cast<unsigned char>(round - 10)));
        rig.free(left.front());
        left.erase(left.begin());
      }
    }
    REQUIRE(rig.pools().check() == "");
  }
  const CUstream stream = new_stream();
  for (const CUdeviceptr block : left) rig.free_on(block, stream);
  give_back_all(rig);
}

TEST_CASE("pages: with the last block that has outlived its context its addresses go, too") {
  StreamRig rig(on_pages());
  Beside beside(rig);
  const CUdeviceptr kept = beside.on(2 * kMiB);
  beside.destroy();
  const std::uint64_t gone = cusim_calls("cuMemAddressFree");
  CHECK(rig.pools().find(kept, nullptr) == Ownership::live);
  rig.free(kept);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().after_wait(rig.context());
  CHECK(cusim_calls("cuMemAddressFree") == gone + 1);
  CHECK(rig.pools().find(kept, nullptr) == Ownership::unknown);
  give_back_all(rig);
}

TEST_CASE("pages: a primary context's reset takes the blocks of memory pools along") {
  StreamRig rig(on_pages());
  const CUdeviceptr block = rig.on(new_stream(), kMiB);
  rig.reset_device(0);
  CHECK(rig.pools().find(block, nullptr) == Ownership::unknown);
  CHECK(now(rig.counters().reserved_bytes) == 0);
  CHECK(now(rig.counters().handles_created) > 0);
  CHECK(now(rig.counters().handles_released) == now(rig.counters().handles_created));
}

TEST_CASE("a block that is to outlive its context is the driver's to serve on segments, and where it would be a call of its own") {
  RigOptions options;
  SECTION("segments") {}
  SECTION("no page is left") {
    options = on_pages();
    options.memory = "64MiB";
  }
  StreamRig rig(options);
  const Beside beside(rig);
  const std::size_t bytes = options.pool.backing == config::Backing::pages ? 65 * kMiB : kMiB;
  const auto allocate_on = [&](BlockLife life) {
    return rig.pools().allocate_on(beside.context, bytes, name_of(beside.stream), kDefaultPool, "cuMemAllocAsync", life).code();
  };
  CHECK(allocate_on(BlockLife::pool) == CUDA_ERROR_NOT_SUPPORTED);
  CHECK(now(rig.counters().failed_allocations) == 0);
  CHECK(rig.pools().take_untold_oom() == 0);
  CHECK(allocate_on(BlockLife::context) == (bytes == kMiB ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY));
}

TEST_CASE("async: what a context that ended has left in the driver's pool goes back by one that lives") {
  RigOptions options;
  options.pool.policy = config::Policy::async;
  StreamRig rig(options);
  rig.free(rig.allocate(kMiB));
  const CUcontext beside = create(rig, 0);
  REQUIRE(rig.pools().allocate(beside, 32 * kMiB, "cuMemAlloc_v2").ok());
  CHECK(rig.pools().end_context(
            beside, [&] { return cuCtxDestroy_v2(beside); }, [] { return true; }) == CUDA_SUCCESS);
  rig.use(0);
  give_back_all(rig);
}

TEST_CASE("async: what the end of a primary context left goes back whoever comes late, or allocates in the next one meanwhile") {
  static std::function<void()> meanwhile;
  struct Setting {
    Setting() { cusim_configure("RESET_LEAVES_POOLS", "1"); }
    ~Setting() {
      cusim_configure("RESET_LEAVES_POOLS", nullptr);
      meanwhile = nullptr;
    }
  } const setting;
  RigOptions options;
  options.pool.policy = config::Policy::async;
  options.patch = [](DriverApi& api) {
    api.cuMemFreeAsync = [](CUdeviceptr address, CUstream stream) {
      if (const auto call = std::exchange(meanwhile, nullptr)) std::thread(call).join();
      return cuMemFreeAsync(address, stream);
    };
  };
  StreamRig rig(options);
  for (int i = 0; i < 8; ++i) rig.allocate(32 * kMiB);
  rig.reset_device(0);
  CUcontext context = nullptr;
  rig.expect_violations();
  // A thread that comes late has the ended one current still.
  if (GENERATE(true, false)) CHECK(rig.try_allocate(kMiB).code() == CUDA_ERROR_CONTEXT_IS_DESTROYED);
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  CUdeviceptr others = 0;
  meanwhile = [&] {
    if (cuCtxSetCurrent(context) == CUDA_SUCCESS) others = rig.pools().allocate(context, kMiB, "cuMemAlloc_v2").value();
  };
  rig.pools().context_seen(context, 0);
  CHECK(others != 0);
  rig.free(others);
  give_back_all(rig);
}
