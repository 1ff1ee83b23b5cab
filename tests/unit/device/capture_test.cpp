// While anything captures, the pool records nothing and synchronises nothing, and it invalidates no capture.
#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
/// A capture of `stream` through the pool's gate, as the shim begins and ends it.
class Capture {
 public:
  Capture(Rig& rig, CUstream stream, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) : rig_(rig), stream_(stream) {
    REQUIRE(rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, mode); }) == CUDA_SUCCESS);
  }
  /// What the driver says of the capture.
  CUresult end() {
    CUgraph graph = nullptr;
    const CUresult result = rig_.pools().end_capture(
        stream_, [&] { return cuStreamEndCapture(stream_, &graph); },
        [&] {
          CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
          return cuStreamIsCapturing(stream_, &status) == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
        });
    return result;
  }

 private:
  Rig& rig_;
  CUstream stream_;
};
}  // namespace

TEST_CASE("frees and allocations during a capture, growth included, leave the capture valid") {
  for (const config::FreeMode free : {config::FreeMode::deferred, config::FreeMode::sync, config::FreeMode::immediate}) {
    INFO("free mode " << static_cast<int>(free));
    RigOptions options;
    options.pool.free = free;
    Rig rig(options);
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 200; ++i) blocks.push_back(rig.allocate(64 * kKiB));
    Capture capture(rig, new_stream());
    const std::uint64_t records = cusim_calls("cuCtxRecordEvent");
    const std::uint64_t syncs = cusim_calls("cuCtxSynchronize") + cusim_calls("cuEventSynchronize");
    for (const CUdeviceptr block : blocks) rig.free(block);
    for (int i = 0; i < 10; ++i) rig.allocate(20 * kMiB);
    CHECK(cusim_calls("cuCtxRecordEvent") == records);
    CHECK(cusim_calls("cuCtxSynchronize") + cusim_calls("cuEventSynchronize") == syncs);
    CHECK(cusim_calls("cuMemFree_v2") == 0);
    CHECK(capture.end() == CUDA_SUCCESS);
  }
}

TEST_CASE("what is freed during a capture waits, and is handled at the next operation after it") {
  Rig rig;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 100; ++i) blocks.push_back(rig.allocate(4096));
  {
    Capture capture(rig, new_stream());
    for (const CUdeviceptr block : blocks) rig.free(block);
    CHECK(now(rig.counters().deferred_bytes) == 100 * 4096);
    REQUIRE(capture.end() == CUDA_SUCCESS);
  }
  CHECK(now(rig.counters().deferred_bytes) == 100 * 4096);
  rig.allocate(4096);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(now(rig.counters().epochs_closed) == 1);
}

TEST_CASE("blocks freed during a capture are not reused while it lasts") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(kMiB);
  Capture capture(rig, new_stream());
  rig.free(block);
  for (int i = 0; i < 20; ++i) CHECK(rig.allocate(kMiB) != block);
  CHECK(capture.end() == CUDA_SUCCESS);
}

TEST_CASE("an epoch that was closed before a capture may be queried during it") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 1000) == CUDA_SUCCESS);
  rig.free(block);
  REQUIRE(now(rig.counters().deferred_bytes) == 64 * kMiB);
  Capture capture(rig, new_stream());
  cusim_advance_ns(2000);
  CHECK(rig.allocate(64 * kMiB) == block);
  CHECK(capture.end() == CUDA_SUCCESS);
}

TEST_CASE("memory that is out during a capture is out at once: nothing is waited for or given back") {
  RigOptions options;
  options.pool.limit.all = config::parse_amount("64MiB");
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  Capture capture(rig, new_stream());
  rig.free(block);
  CHECK(rig.try_allocate(40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(capture.end() == CUDA_SUCCESS);
  CHECK(rig.allocate(40 * kMiB) == block);
}

TEST_CASE("two captures: the pool waits for the last") {
  Rig rig;
  Capture first(rig, new_stream());
  Capture second(rig, new_stream());
  rig.free(rig.allocate(64 * kMiB));
  CHECK(first.end() == CUDA_SUCCESS);
  rig.free(rig.allocate(64 * kMiB));
  CHECK(cusim_calls("cuCtxRecordEvent") == 0);
  CHECK(second.end() == CUDA_SUCCESS);
  rig.free(rig.allocate(4096));
  CHECK(cusim_calls("cuCtxRecordEvent") == 1);
}

TEST_CASE("a capture that never began does not close the gate") {
  Rig rig;
  CHECK(rig.pools().begin_capture(nullptr, [] { return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; }) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  rig.free(rig.allocate(64 * kMiB));
  CHECK(cusim_calls("cuCtxRecordEvent") == 1);
}

TEST_CASE("a capture that only a thread could end is over with the thread, and only that") {
  Rig rig;
  const auto begun = [] { return CUDA_SUCCESS; };
  REQUIRE(rig.pools().begin_capture(CU_STREAM_PER_THREAD, begun, CU_STREAM_CAPTURE_MODE_GLOBAL, 7) == CUDA_SUCCESS);
  REQUIRE(rig.pools().begin_capture(CU_STREAM_PER_THREAD, begun, CU_STREAM_CAPTURE_MODE_GLOBAL, 7) == CUDA_SUCCESS);
  REQUIRE(rig.pools().begin_capture(CU_STREAM_PER_THREAD, begun, CU_STREAM_CAPTURE_MODE_GLOBAL, 8) == CUDA_SUCCESS);
  rig.pools().forget_captures_of_thread(0);
  rig.pools().forget_captures_of_thread(7);
  CHECK(rig.pools().capturing());
  rig.pools().forget_captures_of_thread(8);
  CHECK_FALSE(rig.pools().capturing());
  rig.free(rig.allocate(64 * kMiB));
  CHECK(cusim_calls("cuCtxRecordEvent") == 1);
}

TEST_CASE("captures of a context are over with it") {
  Rig rig;
  Capture first(rig, new_stream());
  rig.pools().forget_captures(nullptr, rig.pools().captures_begun());
  CHECK(rig.pools().capturing());
  rig.pools().forget_captures(rig.context(), rig.pools().captures_begun() - 1);  // it has begun since
  CHECK(rig.pools().capturing());
  rig.pools().forget_captures(rig.context(), rig.pools().captures_begun());
  CHECK_FALSE(rig.pools().capturing());
  CHECK(first.end() == CUDA_SUCCESS);
}

TEST_CASE("a native block freed during a capture goes back to the driver after it") {
  Rig rig;
  cusim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);  // no region of 2 MiB is left, only less
  const CUdeviceptr native = rig.allocate(100 * kKiB);
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  Capture capture(rig, new_stream());
  rig.free(native);
  CHECK(cusim_calls("cuMemFree_v2") == 0);
  CHECK(capture.end() == CUDA_SUCCESS);
  for (int i = 0; i < 64; ++i) rig.free(rig.allocate(4096));
  CHECK(cusim_calls("cuMemFree_v2") + cusim_calls("cuMemFreeAsync") == 1);
  CHECK(rig.pools().find(native, nullptr) == Ownership::unknown);
}

TEST_CASE("where frees synchronise, one that fell into a capture is served after the next free, and no allocation waits for the host") {
  RigOptions options;
  options.driver_version = "12040";
  options.pool.limit.all = config::parse_amount("64MiB");
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  const CUdeviceptr small = rig.allocate(512);
  Capture capture(rig, new_stream());
  rig.free(block);
  REQUIRE(capture.end() == CUDA_SUCCESS);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  CHECK(rig.try_allocate(40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_calls("cuCtxSynchronize") == 0);
  released = 1;
  rig.free(small);
  CHECK(rig.allocate(40 * kMiB) == block);
}

TEST_CASE("a capture that began in a new stream is not over with the old one of the same handle") {
  Rig rig;
  const CUstream stream = new_stream();
  const auto begin = [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED); };
  const auto never = [] { return false; };
  // What a destroyed stream runs; before it is booked another thread has a new stream of that handle, and captures.
  rig.pools().end_capture(
      stream, [&] { return rig.pools().begin_capture(stream, std::cref(begin), CU_STREAM_CAPTURE_MODE_RELAXED); }, never);
  CHECK(rig.pools().capturing());
  CUgraph graph = nullptr;
  CHECK(rig.pools().end_capture(
            stream, [&] { return cuStreamEndCapture(stream, &graph); }, never) == CUDA_SUCCESS);
  CHECK_FALSE(rig.pools().capturing());
}
