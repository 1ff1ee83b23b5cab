// While another thread captures: a plain free waits where the native one would have, and what it freed can be had again.
#include <catch2/catch.hpp>

#include <future>
#include <optional>
#include <thread>
#include <vector>

#include "tests/unit/device/churn.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// Another thread, which captures from its beginning to end().
class CapturingThread {
 public:
  CapturingThread(Rig& rig, CUstreamCaptureMode mode) : stream_(new_stream()) {
    std::promise<CUresult> began;
    std::future<CUresult> has_begun = began.get_future();
    thread_ = std::thread([this, &rig, mode, began = std::move(began)]() mutable {
      cuCtxSetCurrent(rig.context());
      began.set_value(rig.pools().begin_capture(
          stream_, [&] { return cuStreamBeginCapture_v2(stream_, mode); }, mode));
      may_end_.get_future().wait();
      CUgraph graph = nullptr;
      result_ = rig.pools().end_capture(
          stream_, [&] { return cuStreamEndCapture(stream_, &graph); }, [] { return false; });
    });
    REQUIRE(has_begun.get() == CUDA_SUCCESS);
  }
  ~CapturingThread() { end(); }
  /// What the driver says of the capture.
  CUresult end() {
    if (!thread_.joinable()) return result_;
    may_end_.set_value();
    thread_.join();
    return result_;
  }

 private:
  CUstream stream_;
  std::promise<void> may_end_;
  CUresult result_ = CUDA_ERROR_UNKNOWN;
  std::thread thread_;
};

/// Calls from now on as from a thread that is in `mode`.
class ThreadMode {
 public:
  explicit ThreadMode(CUstreamCaptureMode mode) : mode_(mode) { cuThreadExchangeStreamCaptureMode(&mode_); }
  ~ThreadMode() { cuThreadExchangeStreamCaptureMode(&mode_); }

 private:
  CUstreamCaptureMode mode_;
};

}  // namespace

TEST_CASE("what is freed while another thread captures can be had again, after its work, where the native free would have waited") {
  Rig rig(limited_to("64MiB"));
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  CapturingThread other(rig, kThreadLocal);
  REQUIRE(cusim_launch_fill(new_stream(), block, 4096, 1, 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(rig.allocate(40 * kMiB) == block);
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("the same in every mode of capture and thread that lets a native free through, and in no other") {
  struct Case {
    CUstreamCaptureMode capture, thread;
    bool waits;
  };
  const Case cases[] = {
      {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL, false},  {CU_STREAM_CAPTURE_MODE_GLOBAL, kThreadLocal, true},
      {CU_STREAM_CAPTURE_MODE_GLOBAL, CU_STREAM_CAPTURE_MODE_RELAXED, true},  {kThreadLocal, CU_STREAM_CAPTURE_MODE_GLOBAL, true},
      {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_GLOBAL, true},  {kThreadLocal, kThreadLocal, true},
      {CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED, true},
  };
  for (const Case& one : cases) {
    INFO("capture " << one.capture << ", thread " << one.thread);
    Rig rig(limited_to("64MiB"));
    const CUdeviceptr block = rig.allocate(40 * kMiB);
    CapturingThread other(rig, one.capture);
    {
      const ThreadMode mode(one.thread);
      REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
      rig.free(block);
      CHECK((cusim_now_ns() >= 5 * kMs) == one.waits);
      CHECK(rig.try_allocate(40 * kMiB).ok() == one.waits);
      CUstreamCaptureMode left = CU_STREAM_CAPTURE_MODE_RELAXED;
      cuThreadExchangeStreamCaptureMode(&left);
      CHECK(left == one.thread);
      cuThreadExchangeStreamCaptureMode(&left);
    }
    CHECK(other.end() == CUDA_SUCCESS);
  }
}

TEST_CASE("in a capture of its own a thread waits only if that is relaxed") {
  for (const CUstreamCaptureMode mode : {CU_STREAM_CAPTURE_MODE_GLOBAL, kThreadLocal, CU_STREAM_CAPTURE_MODE_RELAXED}) {
    Rig rig(limited_to("64MiB"));
    const CUdeviceptr block = rig.allocate(40 * kMiB);
    const CUstream stream = new_stream();
    REQUIRE(rig.pools().begin_capture(
                stream, [&] { return cuStreamBeginCapture_v2(stream, mode); }, mode) == CUDA_SUCCESS);
    rig.free(block);
    CHECK(rig.try_allocate(40 * kMiB).ok() == (mode == CU_STREAM_CAPTURE_MODE_RELAXED));
    CUgraph graph = nullptr;
    CHECK(rig.pools().end_capture(
              stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  }
}

TEST_CASE("what is freed while another thread captures makes room for a block of another size") {
  Rig rig(limited_to("64MiB"));
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  CapturingThread other(rig, kThreadLocal);
  rig.free(block);
  rig.allocate(60 * kMiB);
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("a free waits while another thread captures also on a device that is full to the last byte") {
  RigOptions options;
  options.memory = "64MiB";
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(64 * kMiB);
  REQUIRE(cusim_used_bytes(0) == 64 * kMiB);
  CapturingThread other(rig, kThreadLocal);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(rig.allocate(64 * kMiB) == block);
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("a block that is freed while another thread captures is used again only when no other hole will do") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(16 * kMiB);
  const CUdeviceptr hole = rig.allocate(32 * kMiB);
  rig.free(hole);
  rig.free(rig.allocate(2 * kMiB));
  CapturingThread other(rig, kThreadLocal);
  rig.free(block);
  CHECK(now(rig.counters().deferred_bytes) >= 16 * kMiB);
  const CUdeviceptr next = rig.allocate(8 * kMiB);
  CHECK((next < block || next >= block + 16 * kMiB));
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("many small frees while another thread captures wait once for many") {
  Rig rig;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 256; ++i) blocks.push_back(rig.allocate(4096));
  CapturingThread other(rig, kThreadLocal);
  const std::uint64_t before = cusim_calls("cuMemFree_v2");
  for (const CUdeviceptr block : blocks) rig.free(block);
  CHECK(cusim_calls("cuMemFree_v2") - before == 4);
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("what was freed before a capture has its event, and can be had while it lasts") {
  Rig rig(limited_to("64MiB"));
  const CUdeviceptr block = rig.allocate(2 * kMiB);
  rig.allocate(62 * kMiB);
  rig.free(block);
  CapturingThread other(rig, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CHECK(rig.allocate(2 * kMiB) == block);
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("a stream-ordered free never waits for another thread's capture, and a later plain one covers it") {
  Rig rig(limited_to("64MiB"));
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  const CUdeviceptr small = rig.allocate(4 * kMiB);
  const CUstream stream = new_stream();
  CapturingThread other(rig, kThreadLocal);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  REQUIRE(rig.pools().free_on(block, rig.context(), {stream, reinterpret_cast<std::uintptr_t>(stream)}).outcome == FreeOutcome::freed);
  CHECK(cusim_now_ns() < 5 * kMs);
  rig.free(small);
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(rig.try_allocate(40 * kMiB).ok());
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("while another thread captures nothing is waited for in a context that a native free leaves alone, nor kept from others for it") {
  RigOptions options = limited_to("64MiB");
  options.devices = 2;
  Rig rig(options);
  rig.use(1);
  rig.free(rig.allocate(4096));
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.use(0);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  CapturingThread other(rig, kThreadLocal);
  rig.free(block);  // a wait for device 1 would never end
  const std::uint64_t freed_ns = cusim_now_ns();
  CHECK(rig.allocate(40 * kMiB) == block);
  CHECK(cusim_now_ns() >= freed_ns + 200 * kMs);
  rig.free(block);
  released = 1;
  CHECK(other.end() == CUDA_SUCCESS);
  CHECK(rig.allocate(40 * kMiB) == block);
}

TEST_CASE("where frees synchronise they do so while another thread captures") {
  for (const char* driver : {"12040", "13000"}) {
    RigOptions options = limited_to("64MiB");
    options.driver_version = driver;
    options.pool.free = config::FreeMode::sync;
    Rig rig(options);
    const CUdeviceptr block = rig.allocate(40 * kMiB);
    CapturingThread other(rig, kThreadLocal);
    REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
    rig.free(block);
    CHECK(cusim_now_ns() >= 5 * kMs);
    CHECK(rig.allocate(40 * kMiB) == block);
    CHECK(other.end() == CUDA_SUCCESS);
  }
}

TEST_CASE("a native block goes back to the driver while another thread captures, where the program's own free had been served") {
  Rig rig;
  cusim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
  const CUdeviceptr native = rig.allocate(100 * kKiB);
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  CapturingThread other(rig, kThreadLocal);
  rig.free(native);
  CHECK(rig.pools().find(native, nullptr) == Ownership::unknown);
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("async: what is freed while another thread captures can be had again") {
  RigOptions options = limited_to("64MiB");
  options.pool.policy = config::Policy::async;
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  CapturingThread other(rig, kThreadLocal);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(rig.allocate(40 * kMiB) != 0);
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("a driver that refuses the wait leaves the block deferred, and keeps nothing of ours") {
  Rig rig(limited_to("64MiB"));
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  const std::uint64_t used_bytes = cusim_used_bytes(0);
  CapturingThread other(rig, kThreadLocal);
  cusim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_NOT_PERMITTED, 1);
  rig.free(block);
  CHECK(now(rig.counters().deferred_bytes) == 40 * kMiB);
  CHECK(cusim_used_bytes(0) == used_bytes);
  CHECK(other.end() == CUDA_SUCCESS);
  CHECK(rig.allocate(40 * kMiB) == block);
}

TEST_CASE("one answer that a context is gone, while it lives, is no proof that its work is over") {
  Rig rig(limited_to("64MiB"));
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  CapturingThread other(rig, kThreadLocal);
  const CUstream stream = new_stream();
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  cusim_fail("cuCtxPushCurrent_v2", 1, CUDA_ERROR_INVALID_CONTEXT, 1);
  rig.free(block);
  REQUIRE(cusim_now_ns() == 0);  // nobody has waited
  CHECK_FALSE(rig.try_allocate(40 * kMiB).ok());
  CHECK(other.end() == CUDA_SUCCESS);
  CHECK(rig.allocate(40 * kMiB) == block);
  CHECK(cusim_now_ns() >= 5 * kMs);
}

TEST_CASE("waiting for a context waits for its work and ends no capture that permits it") {
  for (const char* driver : {"12040", "13000"}) {
    for (const bool captures : {false, true}) {
      RigOptions options = limited_to("64MiB");
      options.driver_version = driver;
      Rig rig(options);
      rig.free(rig.allocate(4096));
      std::optional<CapturingThread> other;
      if (captures) other.emplace(rig, kThreadLocal);
      const std::uint64_t used_bytes = cusim_used_bytes(0);
      REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
      CHECK(rig.pools().wait_for_context(rig.context()) == CUDA_SUCCESS);
      CHECK(cusim_now_ns() >= 5 * kMs);
      CHECK(cusim_used_bytes(0) == used_bytes);
      if (other) CHECK(other->end() == CUDA_SUCCESS);
    }
  }
}

TEST_CASE("a thread that a capture forbids to wait for a context is told so, and the capture ends as natively") {
  Rig rig(limited_to("64MiB"));
  rig.free(rig.allocate(4096));
  CapturingThread other(rig, CU_STREAM_CAPTURE_MODE_GLOBAL);
  CHECK(rig.pools().wait_for_context(rig.context()) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(other.end() == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_CASE("waiting for a context tells what keeps it from being known") {
  Rig rig(limited_to("64MiB"));
  rig.free(rig.allocate(4096));
  SECTION("no memory for the driver's way") {
    CapturingThread other(rig, kThreadLocal);
    cusim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, 2);
    cusim_fail("cuMemAllocManaged", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    CHECK(rig.pools().wait_for_context(rig.context()) == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(other.end() == CUDA_SUCCESS);
  }
  SECTION("a broken context") {
    cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
    CHECK(rig.pools().wait_for_context(rig.context()) == CUDA_ERROR_ILLEGAL_ADDRESS);
  }
  SECTION("no event") {
    cusim_fail("cuCtxRecordEvent", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
    REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
    CHECK(rig.pools().wait_for_context(rig.context()) == CUDA_SUCCESS);
    CHECK(cusim_now_ns() >= 5 * kMs);
  }
}

TEST_CASE("what was freed before a capture begins has its events by then, what a thread keeps included") {
  Rig rig;
  std::vector<CUdeviceptr> ring(40, 0);
  churn(rig, ring, 4096, 2000);
  REQUIRE(untold_deferred_bytes(rig) != 0);
  const std::uint64_t closed = now(rig.counters().epochs_closed);
  CapturingThread capturing(rig, kThreadLocal);
  CHECK(untold_deferred_bytes(rig) == 0);
  CHECK(now(rig.counters().epochs_closed) == closed + 1);
  CHECK(now(rig.counters().deferred_bytes) != 0);
  rig.pools().after_wait(rig.context());
  CHECK(capturing.end() == CUDA_SUCCESS);
}

TEST_CASE("a free that waits during a capture leaves no block behind where the driver refuses the first free of it") {
  Rig rig;
  const CUdeviceptr block = rig.allocate(4 * kMiB);
  CapturingThread capturing(rig, kThreadLocal);
  const std::uint64_t used_bytes = cusim_used_bytes(0);
  cusim_fail("cuMemFree_v2", 1, CUDA_ERROR_UNKNOWN, 1);
  rig.free(block);
  CHECK(cusim_calls("cuMemFree_v2") == 2);
  CHECK(cusim_used_bytes(0) == used_bytes);
  CHECK(capturing.end() == CUDA_SUCCESS);
}
