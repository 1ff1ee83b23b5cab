// Streams and contexts end while what streams have freed in a capture waits for an event, on drivers without events that cover a context.
#include <catch2/catch.hpp>

#include <atomic>
#include <thread>

#include "tests/unit/device/unstamped.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("old driver: what a stream freed while something captured is no new stream's with its handle") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  volatile std::uint32_t released = 0;
  during_capture(rig, [&] {
    join_and_free(rig, block, stream, &released);
    rig.pools().stream_ending(rig.context(), name_of(stream).identity);  // the driver then may give its handle to another
    CHECK_FALSE(rig.try_on(stream, kMost_bytes).ok());
  });
  CHECK_FALSE(rig.try_on(stream, kMost_bytes).ok());
  CHECK(cusim_calls("cuEventRecord") == 0);
  CHECK(cusim_now_ns() == 0);  // nobody waits for an event that nothing can record any more
  released = 1;
  const std::uint64_t fills = rig.pools().lane_fills(rig.context());
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().after_stream_wait(rig.context(), 0, fills);
  CHECK(rig.on(new_stream(), kMost_bytes) == block);
}

TEST_CASE("old driver: a stream that ends leaves what it freed while something captured behind its last work") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  cusim_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, 1);
  free_in_capture(rig, block, stream, 5 * kMs);
  const bool is_named = GENERATE(false, true);
  if (is_named) rig.pools().stream_ending(rig.context(), name_of(stream).identity);
  else rig.pools().streams_ending(rig.context());
  REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  CHECK(cusim_calls("cuEventRecord") == 2);
  CHECK(rig.on(new_stream(), kMost_bytes) == block);
  CHECK(cusim_now_ns() >= 5 * kMs);
}

TEST_CASE("old driver: what a stream freed while something captured is over with the stream's context") {
  StreamRig rig(before_12_5());
  const CUdeviceptr block = rig.on(new_stream(), kMost_bytes);
  Beside beside(rig);
  volatile std::uint32_t released = 0;
  rig.use(0);
  during_capture(rig, [&] {
    REQUIRE(cuCtxSetCurrent(beside.context) == CUDA_SUCCESS);
    join(rig, beside.stream);
    REQUIRE(cusim_launch_wait_host(beside.stream, &released) == CUDA_SUCCESS);
    REQUIRE(rig.pools().free_on(block, beside.context, name_of(beside.stream)).outcome == FreeOutcome::freed);
    released = 1;
    beside.destroy();
    CHECK_FALSE(rig.try_allocate(kMost_bytes).ok());
  });
  CHECK(rig.allocate(kMost_bytes) == block);
  CHECK(waits_of_driver() == 0);
}

TEST_CASE("old driver: what a default stream freed while something captured is free as soon as its context has ended") {
  StreamRig rig(before_12_5());
  const CUdeviceptr block = rig.on(new_stream(), kMost_bytes);
  Beside beside(rig);
  rig.use(0);
  during_capture(rig, [&] {
    REQUIRE(cuCtxSetCurrent(beside.context) == CUDA_SUCCESS);
    join(rig, CU_STREAM_LEGACY);
    REQUIRE(rig.pools().free_on(block, beside.context, {CU_STREAM_LEGACY, 1}).outcome == FreeOutcome::freed);
  });
  CHECK(now(rig.counters().deferred_bytes) == kMost_bytes);
  beside.destroy();
  CHECK(now(rig.counters().deferred_bytes) == 0);
}

TEST_CASE("old driver: a context takes along what streams had freed of it while something captured") {
  StreamRig rig(before_12_5());
  Beside beside(rig);
  const CUdeviceptr block = beside.on(kMost_bytes, 0);
  rig.use(0);
  const CUstream stream = new_stream();
  during_capture(rig, [&] {
    join_and_free(rig, block, stream);
    CHECK(now(rig.counters().deferred_bytes) == kMost_bytes);
    beside.destroy();
    CHECK(now(rig.counters().deferred_bytes) == 0);
  });
  CHECK(rig.pools().check() == "");
}

TEST_CASE("old driver: a stream of another device that ends is no more asked about what it freed here while something captured") {
  StreamRig rig(before_12_5(2));
  const CUdeviceptr block = rig.on(new_stream(), kMost_bytes);
  rig.use(1);
  rig.free(rig.allocate(512));
  const CUstream stream = new_stream();
  const bool ends_in_capture = GENERATE(false, true);
  during_capture(rig, [&] {
    join(rig, stream);
    REQUIRE(rig.pools().free_on(block, rig.context(1), name_of(stream)).outcome == FreeOutcome::freed);
    if (ends_in_capture) rig.pools().stream_ending(rig.context(1), name_of(stream).identity);
  });
  CHECK(cusim_calls("cuEventRecord") == (ends_in_capture ? 0 : 1));
  rig.use(0);
  CHECK(rig.try_on(new_stream(), kMost_bytes).ok() != ends_in_capture);
}

TEST_CASE("threads: old driver: a stream does not end while another thread records an event for what it freed in a capture") {
  g_inside.store(false);
  g_may_leave.store(false);
  ReleasingClock clock;
  RigOptions options = before_12_5();
  options.clock = &clock;
  options.patch = [](DriverApi& api) {
    api.cuEventRecord = [](CUevent event, CUstream stream) {
      g_inside.store(true);
      while (!g_may_leave.load()) std::this_thread::yield();
      return cuEventRecord(event, stream);
    };
  };
  StreamRig rig(options);
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  std::thread ending;
  during_capture(rig, [&] {
    join_and_free(rig, block, stream);
    ending = std::thread([&] {
      while (!g_inside.load()) std::this_thread::yield();
      CHECK(cuCtxSetCurrent(rig.context()) == CUDA_SUCCESS);
      rig.pools().stream_ending(rig.context(), name_of(stream).identity);
      CHECK(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
    });
  });
  ending.join();
  CHECK(rig.on(new_stream(), kMost_bytes) == block);
  CHECK(rig.pools().check() == "");
}
