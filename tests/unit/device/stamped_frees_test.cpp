// Stamped frees: while memory is short a block is its own stream's at once, and another's behind the event of its free.
#include <catch2/catch.hpp>

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/device/short_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
std::function<void()> g_while_asking;

CUresult ask_meanwhile(CUevent event) {
  if (const std::function<void()> meanwhile = std::exchange(g_while_asking, nullptr)) meanwhile();
  return cuEventQuery(event);
}
}  // namespace

TEST_CASE("a stamped block is its own stream's again without a wait") {
  ShortRig rig;
  const CUdeviceptr block = rig.on(rig.first, 40 * kMiB);
  REQUIRE(cusim_launch_spin(rig.first, 5 * kMs) == CUDA_SUCCESS);
  const std::uint64_t before_ns = cusim_now_ns();
  const std::uint64_t records = cusim_calls("cuEventRecord");
  rig.free_on(block, rig.first);
  CHECK(cusim_calls("cuEventRecord") == records + 1);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(rig.on(rig.first, 40 * kMiB) == block);
  CHECK(cusim_now_ns() == before_ns);
  CHECK(cusim_calls("cuStreamWaitEvent") == 0);
}

TEST_CASE("while memory is short too a stream takes what fits best of what it freed, and what it freed joins") {
  ShortRig rig;
  rig.free_on(rig.on(rig.first, 60 * kMiB), rig.first);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 6; ++i) blocks.push_back(rig.on(rig.first, 10 * kMiB));
  std::sort(blocks.begin(), blocks.end());
  for (const int i : {0, 1, 3}) rig.free_on(blocks[static_cast<std::size_t>(i)], rig.first);
  CHECK(rig.on(rig.first, 10 * kMiB) == blocks[3]);
  CHECK(rig.on(rig.first, 20 * kMiB) == blocks[0]);
  CHECK(now(rig.counters().rung_retire) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a stamp is worth nothing for bytes that its stream has used again") {
  ShortRig rig;
  const CUdeviceptr block = rig.on(rig.first, 40 * kMiB);
  rig.free_on(block, rig.first);
  CHECK(rig.on(rig.first, 40 * kMiB) == block);
  CHECK(rig.try_on(rig.second, 40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  rig.work_on(block, rig.first, 1, 5 * kMs);
  rig.free_on(block, rig.first);  // behind an event of its own
  const CUdeviceptr next = rig.on(rig.second, 40 * kMiB);
  CHECK(next == block);
  rig.work_on(next, rig.second, 2, 1);
  rig.check_work();
}

TEST_CASE("a stream that the driver does not make wait for the event of a free gets nothing of it") {
  ShortRig rig;
  const CUdeviceptr block = rig.on(rig.first, 40 * kMiB);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(rig.first, &released) == CUDA_SUCCESS);
  rig.free_on(block, rig.first);
  cusim_fail("cuStreamWaitEvent", 1, CUDA_ERROR_UNKNOWN, 1000);
  CHECK(rig.try_on(rig.second, 40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_calls("cuStreamWaitEvent") >= 1);
  released = 1;
  rig.check_work();
}

TEST_CASE("what a stream that ends had freed behind events of its own is not a new stream's with the same handle") {
  ShortRig rig;
  const CUdeviceptr block = rig.on(rig.first, 40 * kMiB);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(rig.first, &released) == CUDA_SUCCESS);
  rig.free_on(block, rig.first);
  rig.pools().stream_ending(rig.context(), name_of(rig.first).identity);
  const std::uint64_t waits = cusim_calls("cuStreamWaitEvent");
  static_cast<void>(rig.try_on(rig.first, 40 * kMiB));
  CHECK(cusim_calls("cuStreamWaitEvent") == waits + 1);
  released = 1;
  rig.check_work();
}

TEST_CASE("what is left beside a block that a stream took back is another's still, behind the same event") {
  ShortRig rig;
  const CUdeviceptr block = rig.on(rig.first, 48 * kMiB);
  rig.work_on(block, rig.first, 1, 5 * kMs);
  rig.free_on(block, rig.first);
  const CUdeviceptr back = rig.on(rig.first, 4 * kMiB);  // nothing else is free: it is cut from the one end or the other
  const std::uint64_t before_ns = cusim_now_ns();
  const CUdeviceptr next = rig.on(rig.second, 40 * kMiB);
  CHECK((next + 40 * kMiB <= back || back + 4 * kMiB <= next));
  CHECK(cusim_calls("cuStreamWaitEvent") == 1);
  CHECK(cusim_now_ns() == before_ns);
  rig.work_on(back, rig.first, 2, 1);
  rig.work_on(next, rig.second, 3, 1);
  rig.check_work();
}

TEST_CASE("a lane that is drained leaves what has an event of its own behind that, not behind what came later") {
  ShortRig rig;
  const CUdeviceptr block = rig.on(rig.first, 40 * kMiB);
  REQUIRE(cusim_launch_spin(rig.first, 5 * kMs) == CUDA_SUCCESS);
  const std::uint64_t before_ns = cusim_now_ns();
  rig.free_on(block, rig.first);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(rig.first, &released) == CUDA_SUCCESS);
  CHECK(rig.allocate(40 * kMiB) == block);
  CHECK(cusim_now_ns() >= before_ns + 5 * kMs);
  released = 1;
  rig.check_work();
}

TEST_CASE("what was set aside and is its own stream's again keeps its event for others") {
  ShortRig rig;
  const CUdeviceptr block = rig.on(rig.first, 40 * kMiB);
  REQUIRE(cusim_launch_spin(rig.first, 60'000 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, rig.first);
  CHECK_FALSE(rig.try_allocate(60 * kMiB).ok());  // drains the lane
  CHECK(now(rig.counters().deferred_bytes) == 40 * kMiB);
  rig.on(rig.first, 30 * kMiB);  // not beside it
  CHECK(now(rig.counters().deferred_bytes) == 0);
  const std::uint64_t records = cusim_calls("cuEventRecord");
  const std::uint64_t before_ns = cusim_now_ns();
  rig.on(rig.second, 8 * kMiB);
  rig.on(rig.second, 8 * kMiB);
  rig.on(rig.second, 8 * kMiB);
  CHECK(cusim_now_ns() == before_ns);
  CHECK(cusim_calls("cuStreamWaitEvent") == 1);
  CHECK(cusim_calls("cuEventRecord") == records);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("regions that hold nothing but what a stream itself freed go back when it needs a larger one") {
  ShortRig rig;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 3; ++i) blocks.push_back(rig.on(rig.first, 20 * kMiB));
  for (const CUdeviceptr block : blocks) rig.free_on(block, rig.first);
  CHECK(rig.try_on(rig.first, 50 * kMiB).ok());
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a large free has its event however many small ones came before it") {
  StreamRig rig(limited_to("128MiB"));
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  rig.free_on(rig.on(second, 512), second);
  const CUdeviceptr block = rig.on(first, 100 * kMiB);
  std::vector<CUdeviceptr> small;
  for (std::size_t i = 0; i < 2 * device::StreamLanes::kMostStamped + 8; ++i) small.push_back(rig.on(first, 512));
  while (rig.try_on(second, kMiB).ok()) {}
  REQUIRE(cusim_launch_spin(first, 5 * kMs) == CUDA_SUCCESS);
  for (std::size_t i = 0; i < small.size(); i += 2) rig.free_on(small[i], first);
  rig.free_on(block, first);
  const std::uint64_t waits = cusim_calls("cuStreamWaitEvent");
  const std::uint64_t before_ns = cusim_now_ns();
  CHECK(rig.on(second, 100 * kMiB) == block);
  CHECK(cusim_calls("cuStreamWaitEvent") == waits + 1);
  CHECK(cusim_now_ns() == before_ns);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a context that dies takes stamps in lanes along") {
  ShortRig rig;
  rig.free_on(rig.on(rig.first, 40 * kMiB), rig.first);
  rig.reset_device();
  CHECK(now(rig.counters().reserved_bytes) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a wait for the context joins what streams keep, but for what a thread is asking about") {
  RigOptions options = limited_to("64MiB");
  options.patch = [](DriverApi& api) { api.cuEventQuery = &ask_meanwhile; };
  ShortRig rig(options);
  const CUdeviceptr left = rig.on(rig.first, 30 * kMiB);
  const CUdeviceptr right = rig.on(rig.first, 30 * kMiB);
  REQUIRE(cusim_launch_spin(rig.first, 1 * kMs) == CUDA_SUCCESS);
  rig.free_on(left, rig.first);
  rig.free_on(right, rig.first);
  const std::uint64_t fills = rig.pools().lane_fills(rig.context());
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  std::string broken = "nobody asked";
  g_while_asking = [&] {
    rig.pools().after_stream_wait(rig.context(), 0, fills);
    broken = rig.pools().check();
  };
  CHECK(rig.on(rig.second, 58 * kMiB) != 0);
  CHECK(broken == "");
  CHECK(rig.pools().check() == "");
  CHECK(cusim_calls("cuStreamWaitEvent") == 0);
}
