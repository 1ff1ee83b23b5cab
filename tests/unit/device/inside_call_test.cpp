// Another thread is served while this one is in a driver call, without the lock: what that call is about is left alone meanwhile.
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/device/ending.hpp"
#include "tests/unit/device/short_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
constexpr std::size_t kBlock_bytes = 4 * kMiB;

std::function<void(CUstream)> g_at_record;  ///< after the driver has recorded an event on the stream
std::function<void()> g_meanwhile;          ///< once, by another thread, while the driver records an event or is asked about one
std::function<void()> g_at_wait;            ///< the same, while it makes a stream wait

std::mutex g_lock;

void let_another_in(std::function<void()>& meanwhile) {
  std::function<void()> call;
  {
    const std::lock_guard lock(g_lock);
    call = std::exchange(meanwhile, nullptr);
  }
  if (call) std::thread(call).join();
}
CUresult CUDAAPI record_late(CUevent event, CUstream stream) {
  const CUresult code = cuEventRecord(event, stream);
  if (g_at_record) g_at_record(stream);
  let_another_in(g_meanwhile);
  return code;
}
CUresult CUDAAPI query_late(CUevent event) {
  const CUresult code = cuEventQuery(event);
  let_another_in(g_meanwhile);
  return code;
}
CUresult CUDAAPI wait_late(CUstream stream, CUevent event, unsigned int flags) {
  const CUresult code = cuStreamWaitEvent(stream, event, flags);
  let_another_in(g_at_wait);
  return code;
}

RigOptions slow(RigOptions options = {}) {
  options.patch = [](DriverApi& api) {
    api.cuEventRecord = &record_late;
    api.cuEventQuery = &query_late;
    api.cuStreamWaitEvent = &wait_late;
  };
  return options;
}

/// More streams than there are lanes, with a block each. When all of these are freed no other stream has a lane, unless a thread is busy with that.
struct Crowd {
  explicit Crowd(StreamRig& with, std::size_t bytes) : rig(with) {
    for (std::size_t i = 0; i < device::StreamLanes::kMostLanes + 6; ++i) {
      streams.push_back(new_stream());
      blocks.push_back(rig.on(streams.back(), bytes));
    }
  }
  void free_all() {
    cuCtxSetCurrent(rig.context());
    for (std::size_t i = 0; i < blocks.size(); ++i) rig.pools().free_on(blocks[i], rig.context(), name_of(streams[i]));
  }
  StreamRig& rig;
  std::vector<CUstream> streams;
  std::vector<CUdeviceptr> blocks;
};
}  // namespace

TEST_CASE("inside a call: a lane that a thread asks about becomes no other stream's") {
  StreamRig rig(slow());
  volatile std::uint32_t released = 0;
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kBlock_bytes);
  Crowd crowd(rig, 64 * kKiB);
  REQUIRE(cusim_launch_wait_host(stream, &released) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  g_meanwhile = [&] { crowd.free_all(); };
  std::vector<CUdeviceptr> plain;
  while (g_meanwhile) plain.push_back(rig.allocate(kBlock_bytes));
  for (const CUstream other : crowd.streams) CHECK(rig.on(other, kBlock_bytes) != block);
  CHECK(rig.pools().check() == "");
  released = 1;
}

TEST_CASE("inside a call: of two threads that open lanes the second asks about none that the first is at") {
  StreamRig rig(slow());
  volatile std::uint32_t released = 0;
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  const CUdeviceptr of_first = rig.on(first, kBlock_bytes);
  const CUdeviceptr of_second = rig.on(second, kBlock_bytes);
  const CUdeviceptr later = rig.on(second, kBlock_bytes);
  Crowd crowd(rig, 64 * kKiB);
  for (const CUstream stream : {first, second}) REQUIRE(cusim_launch_wait_host(stream, &released) == CUDA_SUCCESS);
  rig.free_on(of_first, first);
  rig.free_on(of_second, second);
  std::atomic<int> records{0};
  std::atomic<bool> is_inside{false};
  std::atomic<bool> may_leave{false};
  std::thread other;
  const auto leave = [&] {
    may_leave.store(true);
    if (other.joinable()) other.join();
  };
  g_at_record = [&](CUstream stream) {
    const int at = records.fetch_add(1);
    if (at == 0) {  // this thread, at the first stream; the second is next
      REQUIRE(stream == first);
      other = std::thread([&] {
        cuCtxSetCurrent(rig.context());
        static_cast<void>(rig.pools().allocate(rig.context(), kBlock_bytes, "cuMemAlloc_v2"));
      });
      while (!is_inside.load()) std::this_thread::yield();
      rig.pools().free_on(later, rig.context(), name_of(second));
    } else if (at == 1) {
      is_inside.store(true);
      while (!may_leave.load()) std::this_thread::yield();
    } else if (at == 2) {
      leave();
      crowd.free_all();
    }
  };
  while (records.load() == 0) rig.allocate(kBlock_bytes);
  leave();
  g_at_record = nullptr;
  for (const CUstream stream : crowd.streams) {
    const CUdeviceptr got = rig.on(stream, kBlock_bytes);
    CHECK((got != of_first && got != of_second && got != later));
  }
  CHECK(records.load() == 2);
  CHECK(rig.pools().check() == "");
  released = 1;
}

TEST_CASE("inside a call: a block whose event is being recorded is not even its own stream's") {
  ShortRig rig(slow(limited_to("64MiB")));
  const CUdeviceptr block = rig.on(rig.first, 60 * kMiB);
  std::string broken = "nobody came";
  g_meanwhile = [&] {
    cuCtxSetCurrent(rig.context());
    static_cast<void>(rig.try_on(rig.first, 20 * kMiB));
    broken = rig.pools().check();
  };
  rig.free_on(block, rig.first);
  CHECK(broken == "");
  CHECK(rig.pools().check() == "");
  CHECK(rig.try_on(rig.first, 20 * kMiB).ok());
}

TEST_CASE("inside a call: a stream whose lane became another's while it was made to wait takes nothing for that one") {
  ShortRig rig(slow(limited_to("64MiB")));
  const CUdeviceptr block = rig.on(rig.first, 48 * kMiB);
  Crowd crowd(rig, 64 * kKiB);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(rig.first, &released) == CUDA_SUCCESS);
  rig.free_on(block, rig.first);
  bool has_come = false;
  g_at_wait = [&] {
    crowd.free_all();
    has_come = true;
  };
  const std::uint64_t waits = cusim_calls("cuStreamWaitEvent");
  rig.on(rig.second, 30 * kMiB);
  CHECK(has_come);
  CHECK(cusim_calls("cuStreamWaitEvent") == waits + 1);
  // The last of them have lanes: behind the event of the first stream's free, or nothing of it.
  for (auto stream = crowd.streams.rbegin(); stream != crowd.streams.rend(); ++stream) {
    const std::uint64_t before = cusim_calls("cuStreamWaitEvent");
    const Result<CUdeviceptr> got = rig.try_on(*stream, 2 * kMiB);
    const bool is_of_first = got.ok() && got.value() >= block && got.value() < block + 48 * kMiB;
    CHECK((!is_of_first || cusim_calls("cuStreamWaitEvent") > before));
  }
  released = 1;
  CHECK(rig.pools().check() == "");
}

TEST_CASE("inside a call: what a thread asks about no other ends, though natively it were free by now") {
  RigOptions options = slow(limited_to("64MiB"));
  options.devices = 2;
  Rig rig(options);
  rig.use(1);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.use(0);
  rig.free(rig.allocate(40 * kMiB));
  std::uint64_t deferred_bytes = 0;
  g_meanwhile = [&] {
    rig.use(0);
    rig.pools().make_room();
    deferred_bytes = now(rig.counters().deferred_bytes);
  };
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  CHECK(deferred_bytes == 40 * kMiB);
  rig.free(block);
  CHECK(rig.pools().check() == "");
  released = 1;
  rig.use(1);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.use(0);
}

TEST_CASE("inside a call: what the program has waited for is everybody's, though a thread asks about that lane") {
  StreamRig rig(slow());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kBlock_bytes);
  const CUdeviceptr later = rig.on(stream, kBlock_bytes);
  rig.free_on(rig.on(new_stream(), 512), new_stream());
  REQUIRE(cusim_launch_spin(stream, kMs) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  CUdeviceptr got = 0;
  g_meanwhile = [&] {
    cuCtxSetCurrent(rig.context());
    rig.pools().free_on(later, rig.context(), name_of(stream));
    const std::uint64_t fills = rig.pools().lane_fills(rig.context());
    cuStreamSynchronize(stream);
    rig.pools().after_stream_wait(rig.context(), name_of(stream).identity, fills);
    got = rig.pools().allocate(rig.context(), kBlock_bytes, "cuMemAlloc_v2").value();
  };
  while (g_meanwhile) rig.allocate(kBlock_bytes);
  CHECK(got == later);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("inside a call: a stamp that a thread is busy with stays in its list") {
  device::ContextRegistry contexts;
  device::StreamLanes lanes;
  heap::Extent extents[2];
  for (std::size_t i = 0; i < 2; ++i) {
    extents[i].address = (i + 1) * kMiB;
    extents[i].bytes = 4096;
    const auto stamped = lanes.stamped().emplace(lanes.stamped().end());
    stamped->extent = &extents[i];
    stamped->busy = i == 0;
    lanes.follow_into_lane(stamped, 1);
  }
  SECTION("to make place another goes") {
    CHECK(lanes.forget_stamp(4096, contexts));
    CHECK_FALSE(lanes.forget_stamp(4096, contexts));
  }
  SECTION("used again") { lanes.use_again(kMiB, 2 * kMiB, contexts); }
  SECTION("its context dies") { lanes.forget(); }
  REQUIRE(lanes.stamped().size() == 1);
  CHECK(lanes.stamped().front().busy);
}
