// How much of what was freed may wait for the GPU, or lie with its stream, where memory is plenty; what keeps to it when threads are slow.
#include <catch2/catch.hpp>

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include "tests/unit/device/churn.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// Each stream in turn allocates 4 x 256 MiB, works with them, frees them and is waited for.
/// Each has 1 GiB at its turn, and waits for it. `overlaps`: it goes on with something else until four others had theirs.
void take_turns(StreamRig& rig, const std::vector<CUstream>& streams, int rounds, bool overlaps) {
  for (int round = 0; round < rounds; ++round) {
    for (const CUstream stream : streams) {
      std::vector<CUdeviceptr> blocks;
      for (int i = 0; i < 4; ++i) blocks.push_back(rig.on(stream, 256 * kMiB));
      for (const CUdeviceptr block : blocks) REQUIRE(cuMemsetD8Async(block, 1, 4096, stream) == CUDA_SUCCESS);
      for (const CUdeviceptr block : blocks) rig.free_on(block, stream);
      REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
      if (!overlaps) continue;
      REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
      cusim_advance_ns(kMs);
    }
  }
}

std::uint64_t events_asked_for() { return cusim_calls("cuEventRecord") + cusim_calls("cuCtxRecordEvent") + cusim_calls("cuEventQuery"); }

thread_local bool t_is_kept = false;
std::atomic<bool> g_is_inside{false};
std::atomic<bool> g_may_leave{false};

CUresult CUDAAPI query_slowly(CUevent event) {
  if (t_is_kept) g_is_inside.store(true);
  while (t_is_kept && !g_may_leave.load()) std::this_thread::yield();
  return cuEventQuery(event);
}

}  // namespace

TEST_CASE("what waits stays within a few times what was ever live, however much memory there is, and the GPU keeps half of it") {
  Rig rig(device_of("64GiB"));
  rig.ask_for_odd_sizes();
  const CUstream stream = new_stream();
  std::uint64_t deferred_bytes = 0;
  for (int i = 0; i < 40; ++i) {  // of 128 MiB: never more than that is live
    const CUdeviceptr block = rig.allocate(128 * kMiB);
    REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
    deferred_bytes = now(rig.counters().deferred_bytes);
    rig.free(block);
    if (now(rig.counters().deferred_bytes) <= deferred_bytes) break;
    CHECK(cusim_now_ns() == 0);
  }
  CHECK(deferred_bytes == 1024 * kMiB);
  CHECK(cusim_calls("cuEventSynchronize") == 1);
  CHECK(now(rig.counters().deferred_bytes) == 512 * kMiB);
  CHECK(cusim_now_ns() == 5 * 10 * kMs);  // of nine
}

TEST_CASE("a program that has much live may have four times that waiting") {
  Rig rig(device_of("64GiB"));
  const CUdeviceptr kept = rig.allocate(896 * kMiB);
  const CUstream stream = new_stream();
  while (now(rig.counters().deferred_bytes) < 4096 * kMiB) {
    const CUdeviceptr block = rig.allocate(128 * kMiB);
    REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
    rig.free(block);
    REQUIRE(cusim_now_ns() == 0);
  }
  rig.free(kept);
  CHECK(cusim_calls("cuEventSynchronize") == 1);
}

TEST_CASE("a program that has made a step may have twice as much waiting") {
  Rig rig(on_pages(device_of("64GiB")));
  const CUstream stream = new_stream();
  const auto work_on_another = [&] {
    const CUdeviceptr block = rig.allocate(128 * kMiB);
    REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
    return block;
  };
  std::vector<CUdeviceptr> blocks(8);
  std::generate(blocks.begin(), blocks.end(), work_on_another);
  free_them(rig, blocks);
  std::generate(blocks.begin(), blocks.end(), work_on_another);
  for (std::size_t i = 0; i < 80 && cusim_calls("cuEventSynchronize") == 0; ++i) {
    rig.free(blocks[i % blocks.size()]);
    blocks[i % blocks.size()] = work_on_another();
  }
  CHECK(cusim_calls("cuEventSynchronize") == 1);
  CHECK(peak(rig.counters().deferred_bytes) >= 8192 * kMiB);           // of 1 GiB live
  CHECK(peak(rig.counters().deferred_bytes) <= (8192 + 1280) * kMiB);  // and an epoch, which is an eighth of the pool
}

TEST_CASE("a thread that is slow to ask about the oldest frees keeps nobody from having back what came after them") {
  g_is_inside.store(false);
  g_may_leave.store(false);
  RigOptions options = device_of("64GiB");
  options.patch = [](DriverApi& api) { api.cuEventQuery = &query_slowly; };
  Rig rig(options);
  rig.ask_for_odd_sizes();
  const CUstream stream = new_stream();
  REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
  rig.free(rig.allocate(128 * kMiB));
  std::thread slow([&rig] {
    cuCtxSetCurrent(rig.context());
    t_is_kept = true;
    rig.pools().free(rig.pools().allocate(rig.context(), 128 * kMiB, "cuMemAlloc_v2").value());
  });
  while (!g_is_inside.load()) std::this_thread::yield();
  for (int i = 0; i < 40; ++i) {
    const CUdeviceptr block = rig.allocate(128 * kMiB);
    REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
    rig.free(block);
  }
  CHECK(peak(rig.counters().deferred_bytes) <= 1024 * kMiB + 128 * kMiB);
  g_may_leave.store(true);
  slow.join();
}

TEST_CASE("streams whose work overlaps keep a few times for themselves what was ever live, not each its own") {
  StreamRig rig(device_of("64GiB"));
  std::vector<CUstream> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(new_stream());
  take_turns(rig, streams, 3, true);
  CHECK(peak(rig.counters().live_bytes) == 1024 * kMiB);
  CHECK(peak(rig.counters().reserved_bytes) <= 8 * 1024 * kMiB);  // four, those whose work is not over, and what growing by segments rounds up
  CHECK(now(rig.counters().lanes_drained) > 0);
}

TEST_CASE("a few streams whose work overlaps keep what they freed, and no event is asked for") {
  StreamRig rig(device_of("64GiB"));
  const std::vector<CUstream> streams{new_stream(), new_stream(), new_stream()};
  take_turns(rig, streams, 1, true);
  const std::uint64_t at_first = events_asked_for();
  const std::uint64_t drained = now(rig.counters().lanes_drained);
  take_turns(rig, streams, 4, true);
  CHECK(events_asked_for() == at_first);
  CHECK(now(rig.counters().lanes_drained) == drained);
}

TEST_CASE("streams that take turns share what they freed, for an event and a look a turn") {
  RigOptions options = device_of("64GiB");
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  StreamRig rig(options);
  std::vector<CUstream> streams;
  for (int i = 0; i < 20; ++i) streams.push_back(new_stream());
  take_turns(rig, streams, 3, false);
  CHECK(peak(rig.counters().reserved_bytes) <= 1536 * kMiB);  // 1 GiB live, and what growth rounds up
  CHECK(events_asked_for() <= 2 * 60);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("what lies in a stream's lane when the program waits for that stream is everybody's, with no driver call; what came in meanwhile is not") {
  RigOptions options = device_of("64GiB");
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  StreamRig rig(options);
  const CUstream one = new_stream(), other = new_stream();
  const CUdeviceptr of_other = rig.on(other, 64 * kMiB), block = rig.on(one, 256 * kMiB), late = rig.on(one, 256 * kMiB);
  rig.free_on(of_other, other);
  rig.free_on(block, one);
  REQUIRE(rig.pools().has_lanes());
  const std::uint64_t fills = rig.pools().lane_fills(rig.context());
  const bool comes_late = GENERATE(false, true);
  const bool is_of_stream = GENERATE(true, false);
  if (comes_late) rig.free_on(late, one);
  const std::uint64_t events = events_asked_for();
  rig.pools().after_stream_wait(rig.context(), is_of_stream ? name_of(one).identity : 0, fills);
  CHECK(events_asked_for() == events);
  REQUIRE(cusim_launch_spin(one, 5 * kMs) == CUDA_SUCCESS);  // nobody else may have it by looking
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  rig.on(other, 256 * kMiB);
  CHECK((now(rig.counters().reserved_bytes) == reserved_bytes) != comes_late);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("what the only stream had freed when the program waited for it is a plain allocation's, with no event; what came in later is not") {
  RigOptions options = device_of("64GiB");
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  StreamRig rig(options);
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, 256 * kMiB), late = rig.on(stream, 256 * kMiB);
  rig.free_on(block, stream);
  rig.pools().after_stream_wait(rig.context(), name_of(stream).identity, rig.pools().lane_fills(rig.context()));
  const bool comes_late = GENERATE(false, true);
  if (comes_late) rig.free_on(late, stream);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  const std::uint64_t events = events_asked_for();
  rig.allocate(256 * kMiB);
  CHECK((now(rig.counters().reserved_bytes) == reserved_bytes) != comes_late);
  CHECK((events_asked_for() == events) != comes_late);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("what one stream frees is another's once its work is over, and not before; and a plain allocation's") {
  RigOptions options = device_of("64GiB");
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  StreamRig rig(options);
  const CUstream made_on = new_stream();
  const CUstream freed_on = GENERATE(true, false) ? new_stream() : CU_STREAM_LEGACY;
  const bool is_plain = GENERATE(false, true);
  std::uint64_t at_third = 0;
  for (int step = 0; step < 8; ++step) {
    std::vector<CUdeviceptr> blocks;
    for (std::size_t i = 0; i < 20; ++i) blocks.push_back(is_plain ? rig.allocate((16 + i) * kMiB) : rig.on(made_on, (16 + i) * kMiB));
    for (const CUdeviceptr block : blocks) rig.free_on(block, freed_on);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    if (step == 2) at_third = now(rig.counters().reserved_bytes);
  }
  CHECK(now(rig.counters().reserved_bytes) == at_third);
  CHECK(at_third <= 1024 * kMiB);
  // With work behind the frees nothing is given to others, and the stream itself has it all.
  const CUdeviceptr block = rig.on(freed_on, 400 * kMiB);
  REQUIRE(cusim_launch_spin(freed_on, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, freed_on);
  const CUdeviceptr other = is_plain ? rig.allocate(400 * kMiB) : rig.on(made_on, 400 * kMiB);
  CHECK((other + 400 * kMiB <= block || block + 400 * kMiB <= other));
  const std::uint64_t before = now(rig.counters().reserved_bytes);
  rig.on(freed_on, 400 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) == before);
  CHECK(cusim_now_ns() < 5 * kMs);
  CHECK(rig.pools().check() == "");
}
