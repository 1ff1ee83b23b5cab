// What streams free while something captures, on drivers without events that cover a context: nothing but an event on that very stream can make it
// everybody's, and none may be recorded on a stream that may have come into the capture.
#include <catch2/catch.hpp>

#include <functional>

#include "tests/unit/device/unstamped.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
std::function<void(CUcontext)> g_at_synchronise;  ///< when the driver has waited for that context
}  // namespace

TEST_CASE("old driver: what a stream freed while something captured is others' as soon as it is over, whatever the stream does after the capture") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  volatile std::uint32_t released = 0;
  free_in_capture(rig, block, stream, 5 * kMs);
  REQUIRE(cusim_launch_wait_host(stream, &released) == CUDA_SUCCESS);
  const bool is_plain = GENERATE(false, true);
  CHECK((is_plain ? rig.allocate(kMost_bytes) : rig.on(new_stream(), kMost_bytes)) == block);
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(waits_of_driver() == 0);
  released = 1;
}

TEST_CASE("old driver: what a stream freed while something captures is its own at once, and nobody else's") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  during_capture(rig, [&] {
    join_and_free(rig, block, stream);
    CHECK_FALSE(rig.try_on(new_stream(), kMost_bytes).ok());
    CHECK_FALSE(rig.try_allocate(kMost_bytes).ok());
    CHECK(rig.on(stream, kMost_bytes) == block);
    CHECK(cusim_calls("cuEventRecord") == 0);
    CHECK(cusim_now_ns() == 0);  // nobody waits for the end of the capture
  });
}

TEST_CASE("old driver: a capture that ends while another goes on gives no stream an event") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  during_capture(rig, [&] {
    free_in_capture(rig, block, stream, 5 * kMs);
    CHECK(cusim_calls("cuEventRecord") == 0);
    CHECK_FALSE(rig.try_on(new_stream(), kMost_bytes).ok());
  });
  CHECK(rig.on(new_stream(), kMost_bytes) == block);
}

TEST_CASE("old driver: an event that the driver refuses at the end of a capture is recorded before a request is refused, or another capture begins") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  cusim_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, 1);
  free_in_capture(rig, block, stream, 5 * kMs);
  if (GENERATE(false, true)) {
    CHECK(rig.on(new_stream(), kMost_bytes) == block);
    CHECK(cusim_now_ns() >= 5 * kMs);
  } else {
    during_capture(rig, [&] { CHECK(rig.on(new_stream(), kMost_bytes) == block); });
  }
}

TEST_CASE("old driver: a stream that captures, though nobody told of it, gets no event before that has ended") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  during_capture(rig, [&] {
    join_and_free(rig, block, stream);
    REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  });
  CHECK_FALSE(rig.try_on(new_stream(), kMost_bytes).ok());
  CHECK(cusim_calls("cuEventRecord") == 0);
  CUgraph graph = nullptr;
  REQUIRE(cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
  CHECK(rig.on(new_stream(), kMost_bytes) == block);
}

TEST_CASE("old driver: a wait of the program while something captures gives others what was freed before it, and nothing that came later") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr small = rig.on(stream, 4 * kMiB);
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  volatile std::uint32_t released = 0;
  during_capture(rig, [&] {
    join_and_free(rig, block, stream);
    const std::uint64_t fills = rig.pools().lane_fills(rig.context());
    REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_wait_host(stream, &released) == CUDA_SUCCESS);
    rig.free_on(small, stream);
    rig.pools().after_stream_wait(rig.context(), GENERATE(false, true) ? 0 : name_of(stream).identity, fills);
    CHECK(rig.pools().has_lanes());  // or the shim would not tell of the wait
    CHECK(now(rig.counters().deferred_bytes) == 4 * kMiB);
    CHECK(rig.on(new_stream(), kMost_bytes) == block);
  });
  released = 1;
}

TEST_CASE("old driver: a wait of the program for other work gives nobody what a stream freed while something captures") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  const CUstream idle = new_stream();
  Beside beside(rig);
  rig.use(0);
  volatile std::uint32_t released = 0;
  during_capture(rig, [&] {
    join_and_free(rig, block, stream, &released);
    rig.pools().after_stream_wait(rig.context(), name_of(idle).identity, rig.pools().lane_fills(rig.context()));
    rig.pools().after_stream_wait(beside.context, 0, ~std::uint64_t{0});
    CHECK(now(rig.counters().deferred_bytes) == kMost_bytes);
  });
  released = 1;
}

TEST_CASE("old driver: what a stream has freed while something captured stays its own, also behind its event") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  volatile std::uint32_t released = 0;
  during_capture(rig, [&] { join_and_free(rig, block, stream, &released); });
  CHECK(cusim_calls("cuEventRecord") == 1);
  CHECK(rig.on(stream, kMost_bytes) == block);
  CHECK(cusim_now_ns() == 0);
  released = 1;
}

TEST_CASE("old driver: what a default stream freed while something captures is not the default stream's of another context") {
  StreamRig rig(before_12_5());
  const StreamName legacy{CU_STREAM_LEGACY, 1};  // in each context by this name
  const CUcontext other = create(rig, 0);
  rig.use(0);
  const Result<CUdeviceptr> block = rig.pools().allocate_on(rig.context(), kMost_bytes, legacy, kDefaultPool, "cuMemAllocAsync");
  REQUIRE(block.ok());
  during_capture(rig, [&] {
    join(rig, CU_STREAM_LEGACY);
    REQUIRE(rig.pools().free_on(block.value(), rig.context(), legacy).outcome == FreeOutcome::freed);
    CHECK_FALSE(rig.pools().allocate_on(other, kMost_bytes, legacy, kDefaultPool, "cuMemAllocAsync").ok());
    CHECK(rig.pools().allocate_on(rig.context(), kMost_bytes, legacy, kDefaultPool, "cuMemAllocAsync").ok());
  });
}

TEST_CASE("old driver: a block of the driver's own that a stream freed while something captured is the device's again after it") {
  RigOptions options = before_12_5();
  options.pool.limit.all = config::parse_amount("41MiB");
  StreamRig rig(options);
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, 41 * kMiB);
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  during_capture(rig, [&] {
    join(rig, stream);
    REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
    rig.free_on(block, stream);
    CHECK_FALSE(rig.try_on(stream, 41 * kMiB).ok());
    CHECK(rig.pools().check() == "");
  });
  CHECK(rig.try_on(stream, 41 * kMiB).ok());
  CHECK(cusim_now_ns() >= 5 * kMs);
}

TEST_CASE("old driver: no work is put on the legacy stream when the program gives it none, and what that freed is others' after its next free") {
  StreamRig rig(before_12_5());
  const CUstream stream = CU_STREAM_LEGACY;
  const CUdeviceptr small = rig.on(stream, 512);
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  free_in_capture(rig, block, stream, 5 * kMs);
  CHECK_FALSE(rig.try_on(new_stream(), kMost_bytes).ok());
  CHECK(cusim_calls("cuEventRecord") == 0);
  rig.free_on(small, stream);
  CHECK(rig.on(new_stream(), kMost_bytes) == block);
  CHECK(cusim_now_ns() >= 5 * kMs);
}

TEST_CASE("old driver: a plain free covers what streams freed before it, during a capture and after one") {
  StreamRig rig(before_12_5());
  const CUstream stream = new_stream();
  const CUdeviceptr plain = rig.allocate(4 * kMiB);
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  const bool is_in_capture = GENERATE(false, true);
  during_capture(rig, [&] {
    join(rig, stream);
    REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
    rig.free_on(block, stream);
    if (is_in_capture) rig.free(plain);
    CHECK(rig.try_on(new_stream(), kMost_bytes).ok() == is_in_capture);
    if (!is_in_capture) rig.pools().stream_ending(rig.context(), name_of(stream).identity);
  });
  if (is_in_capture) return;
  rig.free(plain);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(rig.on(new_stream(), kMost_bytes) == block);
}

TEST_CASE("old driver: what a stream frees while a plain free waits is not over with that") {
  RigOptions options = before_12_5();
  options.patch = [](DriverApi& api) {
    api.cuCtxSynchronize = [] {
      const CUresult code = cuCtxSynchronize();
      CUcontext current = nullptr;
      REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
      g_at_synchronise(current);
      return code;
    };
  };
  StreamRig rig(options);
  const CUdeviceptr plain = rig.allocate(512);
  const CUdeviceptr block = rig.on(new_stream(), kMost_bytes);
  Beside beside(rig);
  rig.use(0);
  volatile std::uint32_t released = 0;
  g_at_synchronise = [&](CUcontext context) {
    if (context != beside.context) return;
    REQUIRE(cusim_launch_wait_host(beside.stream, &released) == CUDA_SUCCESS);
    cusim_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, 2);  // at the free, and in its last look
    REQUIRE(rig.pools().free_on(block, beside.context, name_of(beside.stream)).outcome == FreeOutcome::freed);
  };
  rig.free(plain);
  CHECK(now(rig.counters().deferred_bytes) == kMost_bytes);
  CHECK_FALSE(rig.try_allocate(kMost_bytes).ok());
  released = 1;
  g_at_synchronise = [](CUcontext) {};
}

TEST_CASE("old driver: a stream that is behind keeps nothing from others that another one freed while something captured") {
  StreamRig rig(before_12_5());
  const CUstream behind = new_stream();
  const CUstream stream = new_stream();
  const CUdeviceptr small = rig.on(behind, 4 * kMiB);
  const CUdeviceptr block = rig.on(stream, kMost_bytes);
  volatile std::uint32_t released = 0;
  during_capture(rig, [&] {
    join(rig, behind);
    join(rig, stream);
    REQUIRE(cusim_launch_wait_host(behind, &released) == CUDA_SUCCESS);
    rig.free_on(small, behind);
    rig.free_on(block, stream);
  });
  CHECK(rig.on(new_stream(), kMost_bytes) == block);
  CHECK(now(rig.counters().deferred_bytes) == 4 * kMiB);
  released = 1;
}

TEST_CASE("old driver: async: what a stream freed while something captured is the driver's again once it is over") {
  RigOptions options = before_12_5();
  options.pool.policy = config::Policy::async;
  StreamRig rig(options);
  const CUdeviceptr block = rig.allocate(kMost_bytes);
  free_in_capture(rig, block, new_stream(), 5 * kMs);
  CHECK(rig.try_allocate(kMost_bytes).ok());
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(waits_of_driver() == 0);
}
