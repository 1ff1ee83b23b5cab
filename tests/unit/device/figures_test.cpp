// What a report is told: peaks taken at the right moment, a million blocks quickly, identity of blocks.
#include <chrono>
#include <optional>
#include <thread>

#include <catch2/catch.hpp>

#include "stream_rig.hpp"
#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::size_t kManyBlocks = 100'000;  // the time is not theirs to judge, and making a million takes them half a minute
#else
constexpr std::size_t kManyBlocks = 1'000'000;
#endif
}  // namespace

TEST_CASE("fragmentation at peak is that of the moment of peak live") {
  RigOptions options;
  options.pool.free = config::FreeMode::immediate;
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(rig.allocate(kMiB));
  const observe::Fragmentation at_eight = rig.snapshot().devices.at(0).now;
  for (const CUdeviceptr block : blocks) rig.free(block);
  for (int i = 0; i < 3; ++i) rig.allocate(kMiB);  // below the peak
  const observe::Fragmentation at_peak = rig.snapshot().devices.at(0).at_peak;
  CHECK(at_peak.live_bytes == 8 * kMiB);
  CHECK(at_peak.free_bytes == at_eight.free_bytes);
  CHECK(at_peak.largest_free_bytes == at_eight.largest_free_bytes);
  CHECK(at_peak.reserved_bytes == at_eight.reserved_bytes);
  CHECK(at_peak.inactive_split_bytes == at_eight.inactive_split_bytes);
}

TEST_CASE("cuMemGetInfo tells another context what streams of the first have freed") {
  RigOptions options;
  options.memory = "256MiB";
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  StreamRig rig(options);
  const CUstream stream = new_stream();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 50; ++i) blocks.push_back(rig.on(stream, 4 * kMiB));
  const CUdeviceptr stays = rig.on(stream, 4 * kMiB);
  for (const CUdeviceptr block : blocks) rig.free_on(block, stream);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  rig.pools().adjust_mem_info(other, &free_bytes, &total_bytes);
  CHECK(free_bytes <= total_bytes - 4 * kMiB);
  // A region goes as a whole; of the pages those that `stays` shares with what was freed do not.
  CHECK(free_bytes >= (options.pool.backing == config::Backing::pages ? 246 * kMiB : 100 * kMiB));
  REQUIRE(cuCtxSetCurrent(rig.context()) == CUDA_SUCCESS);
  rig.free_on(stays, stream);
}

TEST_CASE("cuMemGetInfo tells another context what plain calls of the first have freed, once their work is over") {
  RigOptions options;
  options.memory = "256MiB";
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 300; ++i) blocks.push_back(rig.allocate(700 * kKiB));
  for (const CUdeviceptr block : blocks) rig.free(block);  // the last of them share no event yet
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  rig.pools().context_seen(other, 0);
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  rig.pools().adjust_mem_info(other, &free_bytes, &total_bytes);
  CHECK(free_bytes == total_bytes);
}

TEST_CASE("what streams have freed is free for whoever needs it, and a report changes nothing about it") {
  RigOptions options;
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  StreamRig rig(options);
  const CUstream stream = new_stream();
  const CUstream other = new_stream();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 20; ++i) blocks.push_back(rig.on(stream, 20 * kMiB));
  for (std::size_t i = 0; i < blocks.size(); ++i) rig.free_on(blocks[i], i % 2 == 0 ? stream : other);
  const bool captures = GENERATE(false, true);
  if (captures)
    rig.pools().begin_capture(
        other, [&] { return cuStreamBeginCapture_v2(other, CU_STREAM_CAPTURE_MODE_GLOBAL); }, CU_STREAM_CAPTURE_MODE_GLOBAL);
  const std::uint64_t events = cusim_calls("cuEventRecord");
  const std::uint64_t asked = cusim_calls("cuMemGetInfo_v2");
  const observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
  CHECK(cusim_calls("cuEventRecord") == events);
  CHECK(cusim_calls("cuMemGetInfo_v2") == asked);
  CHECK(now(rig.counters().lanes_drained) == 0);
  CHECK(device.now.live_bytes == 0);
  CHECK(device.now.inactive_split_bytes == 0);  // nothing lives: all of it could go back
  CHECK(device.now.free_bytes == now(rig.counters().reserved_bytes));
  std::uint64_t holes_bytes = 0;
  for (const observe::BlockRow& row : device.blocks) holes_bytes = std::max(holes_bytes, row.bytes);
  CHECK(device.now.largest_free_bytes == holes_bytes);
  CHECK(rig.live().fragmentation.inactive_split_bytes == 0);
  CUgraph graph = nullptr;
  if (captures)
    REQUIRE(rig.pools().end_capture(
                other, [&] { return cuStreamEndCapture(other, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  CHECK(rig.pools().trim() == device.now.free_bytes);
}

TEST_CASE("at peak, too, what streams have freed is no bytes that others hold") {
  RigOptions options;
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  StreamRig rig(options);
  const CUstream stream = new_stream();
  const CUdeviceptr first = rig.on(stream, 64 * kMiB);
  const CUdeviceptr second = rig.on(stream, 64 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(first, stream);
  rig.free_on(second, stream);
  const CUdeviceptr third = rig.allocate(130 * kMiB);  // another peak, with the lane as it is
  rig.free_on(third, stream);
  const observe::Fragmentation at_peak = rig.snapshot().devices.at(0).at_peak;
  REQUIRE(at_peak.live_bytes == 130 * kMiB);
  REQUIRE(at_peak.free_bytes >= 128 * kMiB);
  CHECK(at_peak.inactive_split_bytes < 64 * kMiB);
}

TEST_CASE("figures in the live page are exact after a snapshot and never far behind") {
  Rig rig;
  for (int i = 0; i < 100; ++i) rig.allocate(10 * kKiB);
  const observe::Snapshot snapshot = rig.snapshot();
  const observe::LiveFragmentation& live = rig.live().fragmentation;
  CHECK(live.free_bytes == snapshot.devices.at(0).now.free_bytes);
  CHECK(live.largest_free_bytes == snapshot.devices.at(0).now.largest_free_bytes);
  CHECK(snapshot.devices.at(0).now.free_bytes + snapshot.devices.at(0).now.live_bytes == snapshot.devices.at(0).now.reserved_bytes);
}

TEST_CASE("a million live blocks are in the snapshot in well under a second") {
  RigOptions options;
  options.memory = "16GiB";
  Rig rig(options);
  for (std::size_t i = 0; i < kManyBlocks; ++i) rig.allocate(512);
  const auto start = std::chrono::steady_clock::now();
  const observe::Snapshot snapshot = rig.snapshot();
  const auto took = std::chrono::steady_clock::now() - start;
  CHECK(snapshot.complete);
  CHECK(snapshot.devices.at(0).blocks.size() >= kManyBlocks);
  CHECK(took < std::chrono::seconds(3));  // 0.05 s on a quiet machine; sanitizers and neighbours are slower
}

TEST_CASE("the timeline tells each block's life in order") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  rig.free(block);
  const std::vector<observe::Event> events = rig.snapshot().devices.at(0).timeline;
  REQUIRE(events.size() == 4);
  CHECK(events[0].kind == observe::EventKind::region_create);
  CHECK(events[1].kind == observe::EventKind::allocate);
  CHECK(events[2].kind == observe::EventKind::free_requested);
  CHECK(events[3].kind == observe::EventKind::free_completed);
  for (std::size_t i = 1; i < events.size(); ++i) {
    CHECK(events[i].ticks >= events[i - 1].ticks);
    CHECK(events[i].address == block);
  }
}

TEST_CASE("the timeline's events of a dead context leave no block outside a region") {
  Rig rig;
  rig.allocate(4096);
  rig.free(rig.allocate(8192));
  rig.reset_device(0);
  const std::vector<observe::Event> events = rig.snapshot().devices.at(0).timeline;
  std::size_t open = 0;
  for (const observe::Event& event : events) {
    if (event.kind == observe::EventKind::allocate) ++open;
    if (event.kind == observe::EventKind::free_completed) --open;
    if (event.kind == observe::EventKind::region_release) CHECK(open == 0);
  }
  CHECK(events.back().kind == observe::EventKind::region_release);
}

TEST_CASE("what passed to the driver unpooled is listed once") {
  Rig rig;
  for (int i = 0; i < 5; ++i) rig.pools().saw_unpooled("cuMemAllocAsync");
  rig.pools().saw_unpooled("cuMemAllocManaged");
  CHECK(rig.snapshot().unpooled_apis_seen == std::vector<std::string>{"cuMemAllocAsync", "cuMemAllocManaged"});
}

TEST_CASE("a process that allocated nothing has used nothing") {
  Rig rig;
  CHECK_FALSE(rig.pools().used());
  rig.allocate(1);
  CHECK(rig.pools().used());
}

TEST_CASE("a device's identity is the driver's") {
  Rig rig;
  const observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
  CHECK(device.uuid.size() == 40);
  CHECK(device.uuid.substr(0, 4) == "GPU-");
  CHECK_FALSE(device.name.empty());
  CHECK(device.total_bytes == kGiB);
  CHECK(rig.live().in_use == 1);
}

TEST_CASE("options that are not served yet are named once, and the report says what serves") {
  RigOptions options;
  options.pool.backing = GENERATE(config::Backing::pages, config::Backing::automatic, config::Backing::segments);
  options.pool.stacks = config::StackMode::python;
  Rig rig(options);
  CHECK(rig.pools().take_messages().size() == 1);
  rig.allocate(1);
  CHECK(rig.pools().take_messages().empty());
  CHECK(rig.snapshot().devices.at(0).policy == "grow");
  CHECK(rig.snapshot().devices.at(0).backing == (options.pool.backing == config::Backing::segments ? "segments" : "pages"));
}

TEST_CASE("SYNC_MEMOPS belongs to the block: the region has it while any block does, and a successor does not inherit it") {
  RigOptions options;
  options.pool.free = config::FreeMode::immediate;
  Rig rig(options);
  const CUdeviceptr a = rig.allocate(4096);
  const CUdeviceptr b = rig.allocate(4096);
  PoolSet& pools = rig.pools();
  const auto has = [&](CUdeviceptr block) {
    BlockView view;
    REQUIRE(pools.find(block, &view) == Ownership::live);
    return view.sync_memops;
  };
  const auto region_has = [&] {
    unsigned int value = 7;
    REQUIRE(cuPointerGetAttribute(&value, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, a) == CUDA_SUCCESS);
    return value != 0;
  };
  REQUIRE(pools.set_sync_memops(a, true).ok());
  CHECK(has(a));
  CHECK_FALSE(has(b));
  CHECK(region_has());
  REQUIRE(pools.set_sync_memops(b, true).ok());
  REQUIRE(pools.set_sync_memops(a, false).ok());
  CHECK_FALSE(has(a));
  CHECK(region_has());
  CHECK(cusim_calls("cuPointerSetAttribute") == 1);
  rig.free(b);
  CHECK_FALSE(region_has());
  CHECK_FALSE(has(rig.allocate(4096)));
  CHECK_FALSE(pools.set_sync_memops(a + 100 * kMiB, true).ok());
  cusim_fail("cuPointerSetAttribute", 1, CUDA_ERROR_NOT_SUPPORTED, 1);
  CHECK(pools.set_sync_memops(a, true).code() == CUDA_ERROR_NOT_SUPPORTED);
  CHECK_FALSE(has(a));
}

namespace {
Rig* g_rig = nullptr;
CUresult (*g_free)(CUdeviceptr) = nullptr;

/// The driver's free, in the middle of which a report is written.
CUresult report_and_free(CUdeviceptr address) {
  const observe::Snapshot snapshot = g_rig->snapshot();
  const observe::DeviceSnapshot& device = snapshot.devices.at(0);
  std::uint64_t live_bytes = 0, live_blocks = 0, region_bytes = 0;
  for (const auto& block : device.blocks) {
    live_bytes += block.state == observe::BlockState::live ? block.bytes : 0;
    live_blocks += block.state == observe::BlockState::live ? 1 : 0;
  }
  for (const auto& region : device.regions) region_bytes += region.bytes;
  CHECK(live_bytes == now(g_rig->counters().live_bytes));
  CHECK(live_blocks == now(g_rig->counters().live_blocks));
  CHECK(region_bytes == now(g_rig->counters().reserved_bytes));
  CHECK(now(g_rig->counters().allocations) - now(g_rig->counters().frees) == live_blocks);
  CHECK(g_rig->pools().check() == "");
  return g_free(address);
}
}  // namespace

TEST_CASE("a report that is written while the driver frees a block lists what the counters count") {
  RigOptions options;
  options.pool.policy = config::Policy::platform;
  options.patch = [](DriverApi& api) {
    g_free = api.cuMemFree_v2;
    api.cuMemFree_v2 = &report_and_free;
  };
  Rig rig(options);
  g_rig = &rig;
  const CUdeviceptr block = rig.allocate(10 * kMiB);
  rig.allocate(3000);
  rig.free(block);
  CHECK(now(rig.counters().frees) == 1);
  CHECK(now(rig.counters().live_blocks) == 1);
}

TEST_CASE("a free that the driver refuses leaves every figure as it was") {
  RigOptions options;
  options.pool.policy = config::Policy::platform;
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(10 * kMiB);
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  cusim_fail("cuMemFree_v2", 1, CUDA_ERROR_NOT_PERMITTED, 1);
  CHECK(rig.pools().free(block).outcome == FreeOutcome::failed);
  CHECK(now(rig.counters().frees) == 0);
  CHECK(now(rig.counters().live_bytes) == 10 * kMiB);
  CHECK(peak(rig.counters().live_bytes) == 10 * kMiB);
  CHECK(now(rig.counters().requested_bytes) == 10 * kMiB);
  CHECK(now(rig.counters().live_blocks) == 1);
  CHECK(now(rig.counters().reserved_bytes) == reserved_bytes);
  CHECK(rig.pools().check() == "");
}

TEST_CASE(
    "a snapshot while the driver ends a context waits for its end, and else says that it is incomplete: others may have its regions' addresses") {
  const bool is_paged = GENERATE(false, true);
  RigOptions options;
  options.pool.backing = is_paged ? config::Backing::pages : config::Backing::segments;
  Rig rig(options);
  rig.allocate(kMiB);
  std::optional<observe::Snapshot> during;
  const CUresult code = rig.pools().end_context(
      rig.context(),
      [&] {
        during = rig.pools().snapshot(std::chrono::milliseconds(5));
        return cuDevicePrimaryCtxReset_v2(0);
      },
      [] { return true; }, PoolBlocks::go);
  CHECK(code == CUDA_SUCCESS);
  REQUIRE(during);
  CHECK(during->complete == is_paged);  // pages are unmapped by the pool, after the end
  CHECK(rig.snapshot().complete);
}
