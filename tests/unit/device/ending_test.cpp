// While one thread ends a context others free, allocate, capture and make contexts of the same handle.
#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "tests/unit/device/ending.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
CUresult (*g_is_capturing)(CUstream, CUstreamCaptureStatus*) = nullptr;
CUstream g_slow_stream = nullptr;

CUresult is_capturing_slowly(CUstream stream, CUstreamCaptureStatus* status) {
  if (stream != g_slow_stream) return g_is_capturing(stream, status);
  g_inside.store(true);
  while (!g_may_leave.load()) std::this_thread::yield();
  const CUresult code = g_is_capturing(stream, status);
  g_inside.store(false);
  return code;
}
}  // namespace

TEST_CASE("ending a context waits for the thread that asks about a stream of it") {
  g_inside.store(false);
  g_may_leave.store(false);
  ReleasingClock clock;
  RigOptions options;
  options.clock = &clock;
  options.patch = [](DriverApi& api) {
    g_is_capturing = api.cuStreamIsCapturing;
    api.cuStreamIsCapturing = &is_capturing_slowly;
  };
  Rig rig(options);
  const CUcontext second = create(rig, 0);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const StreamName name{stream, reinterpret_cast<std::uintptr_t>(stream)};
  const Result<CUdeviceptr> block = rig.pools().allocate_on(second, kMiB, name, 1, "cuMemAllocAsync");
  REQUIRE(block.ok());
  REQUIRE(rig.pools().free_on(block.value(), second, name).outcome == FreeOutcome::freed);
  rig.use(0);
  CUstream capturing = nullptr;
  REQUIRE(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(rig.pools().begin_capture(
              capturing, [&] { return cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED); }, CU_STREAM_CAPTURE_MODE_RELAXED) ==
          CUDA_SUCCESS);
  g_slow_stream = stream;
  std::thread other([&rig] {
    cuCtxSetCurrent(rig.context());
    rig.pools().trim();
  });
  while (!g_inside.load()) std::this_thread::yield();
  bool inside_at_end = true;
  const CUresult ended = rig.pools().end_context(
      second,
      [&] {
        inside_at_end = g_inside.load();
        g_may_leave.store(true);
        return cuCtxDestroy_v2(second);
      },
      [] { return true; });
  other.join();
  g_slow_stream = nullptr;
  CHECK(ended == CUDA_SUCCESS);
  CHECK_FALSE(inside_at_end);
  CUgraph graph = nullptr;
  CHECK(rig.pools().end_capture(
            capturing, [&] { return cuStreamEndCapture(capturing, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("while a context ends an allocation in another waits for what was just freed, and is served after that") {
  g_may_leave.store(false);
  ReleasingClock clock(true);
  RigOptions options;
  options.clock = &clock;
  options.pool.limit.all = config::parse_amount("64MiB");
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  const CUcontext second = create(rig, 0);
  std::thread other;
  std::atomic<bool> is_done{false};
  CUresult code = CUDA_ERROR_UNKNOWN;
  const auto end = [&] {
    other = std::thread([&] {
      cuCtxSetCurrent(rig.context());
      rig.pools().free(block);
      code = rig.pools().allocate(rig.context(), 40 * kMiB, "cuMemAlloc_v2").code();
      is_done.store(true);
    });
    while (!g_may_leave.load() && !is_done.load()) std::this_thread::yield();
    return cuCtxDestroy_v2(second);
  };
  CHECK(rig.pools().end_context(second, end, [] { return true; }) == CUDA_SUCCESS);
  other.join();
  CHECK(code == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a synchronising free waits for its own context's work also while another context ends, whose own keeps the block") {
  const char* version = GENERATE("13000", "12000");  // with events that cover a context, and without
  RigOptions options;
  options.pool.free = config::FreeMode::sync;
  options.driver_version = version;
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(4 * kMiB);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(stream, 5'000'000) == CUDA_SUCCESS);
  const CUcontext second = create(rig, 0);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);  // it may copy the block
  std::uint64_t after_ns = 0;
  CUdeviceptr next = 0;
  const auto end = [&] {
    rig.use(0);
    rig.free(block);
    after_ns = cusim_now_ns();
    next = rig.allocate(4 * kMiB);
    released = 1;
    return cuCtxDestroy_v2(second);
  };
  CHECK(rig.pools().end_context(second, end, [] { return true; }) == CUDA_SUCCESS);
  CHECK(after_ns >= 5'000'000);
  CHECK(next != block);
  rig.use(0);
  rig.free(next);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a capture that begins in the next context of the same handle outlives the end of the one before") {
  cusim_configure("REUSE_HANDLES", "1");
  Rig rig;
  const CUcontext second = create(rig, 0);
  CUstream stream = nullptr;
  const auto is_dead = [&] {
    CUcontext next = nullptr;  // another thread's: the driver has given the handle again
    REQUIRE(cuCtxCreate_v2(&next, 0, 0) == CUDA_SUCCESS);
    REQUIRE(next == second);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(rig.pools().begin_capture(
                stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED); }, CU_STREAM_CAPTURE_MODE_RELAXED) ==
            CUDA_SUCCESS);
    return true;
  };
  CHECK(rig.pools().end_context(
            second, [&] { return cuCtxDestroy_v2(second); }, is_dead) == CUDA_SUCCESS);
  CHECK(rig.pools().capturing());
  CUgraph graph = nullptr;
  CHECK(rig.pools().end_capture(
            stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  cusim_configure("REUSE_HANDLES", nullptr);
}

TEST_CASE("an allocation in a new context that waited for the end of the old one of the same handle is served") {
  g_may_leave.store(false);
  cusim_configure("REUSE_HANDLES", "1");
  ReleasingClock clock;
  RigOptions options;
  options.clock = &clock;
  Rig rig(options);
  const CUcontext second = create(rig, 0);
  std::thread other;
  CUresult code = CUDA_ERROR_UNKNOWN;
  const auto is_dead = [&] {
    CUcontext next = nullptr;
    REQUIRE(cuCtxCreate_v2(&next, 0, 0) == CUDA_SUCCESS);
    REQUIRE(next == second);
    g_may_leave.store(false);
    other = std::thread([&] {
      cuCtxSetCurrent(next);
      code = rig.pools().allocate(next, kMiB, "cuMemAlloc_v2").code();
      g_may_leave.store(true);  // or it has been answered
    });
    while (!g_may_leave.load()) std::this_thread::yield();
    return true;
  };
  CHECK(rig.pools().end_context(
            second, [&] { return cuCtxDestroy_v2(second); }, is_dead) == CUDA_SUCCESS);
  other.join();
  CHECK(code == CUDA_SUCCESS);
  cusim_configure("REUSE_HANDLES", nullptr);
}

TEST_CASE("who frees in a capture and waits for one context keeps no other from ending") {
  g_inside.store(false);
  g_may_leave.store(false);
  ReleasingClock clock;
  RigOptions options;
  options.clock = &clock;
  options.patch = [](DriverApi& api) {
    api.cuMemFree_v2 = [](CUdeviceptr address) {
      g_inside.store(true);
      while (!g_may_leave.load()) std::this_thread::yield();
      const CUresult result = cuMemFree_v2(address);
      g_inside.store(false);
      return result;
    };
  };
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(4 * kMiB);
  const CUcontext second = create(rig, 0);
  rig.use(0);
  CUstream capturing = nullptr;
  REQUIRE(cuStreamCreate(&capturing, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(rig.pools().begin_capture(
              capturing, [&] { return cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED); }, CU_STREAM_CAPTURE_MODE_RELAXED) ==
          CUDA_SUCCESS);
  std::thread other([&] {
    cuCtxSetCurrent(rig.context());
    rig.pools().free(block);
  });
  while (!g_inside.load()) std::this_thread::yield();
  bool inside_at_end = false;
  rig.pools().end_context(
      second,
      [&] {
        inside_at_end = g_inside.load();
        return cuCtxDestroy_v2(second);
      },
      [] { return true; });
  CHECK(inside_at_end);  // nobody had to pause for it
  g_may_leave.store(true);
  other.join();
  CUgraph graph = nullptr;
  CHECK(rig.pools().end_capture(
            capturing, [&] { return cuStreamEndCapture(capturing, &graph); }, [] { return false; }) == CUDA_SUCCESS);
}

TEST_CASE("of two threads that give back references of a context, the one with the last ends it here too, whoever was first") {
  ReleasingClock clock;
  RigOptions options;
  options.clock = &clock;
  Rig rig(options);
  const CUcontext context = create(rig, 0);
  const CUdeviceptr block = rig.allocate(4096);
  cuCtxPopCurrent_v2(nullptr);
  g_inside = false;
  g_may_leave = false;
  std::thread first([&] {  // its reference was not the last, and it learns so before the other is gone
    rig.pools().end_context(
        context, [] { return CUDA_SUCCESS; },
        [] {
          g_inside = true;
          while (!g_may_leave) std::this_thread::yield();
          return false;
        });
  });
  while (!g_inside) std::this_thread::yield();
  bool is_dead = false;
  CHECK(rig.pools().end_context(
            context,
            [&] {
              const CUresult result = cuCtxDestroy_v2(context);
              is_dead = result == CUDA_SUCCESS;
              g_may_leave = true;
              return result;
            },
            [&] { return is_dead; }) == CUDA_SUCCESS);
  first.join();
  CHECK(rig.pools().find(block, nullptr) == Ownership::unknown);
}

namespace {

/// Where the driver gives an address of a context that is just being ended to somebody else, before the books of that context are closed.
struct NewOwner {
  CUdeviceptr address = 0;
  Ownership found = Ownership::vacant;
  FreeOutcome outcome = FreeOutcome::failed;
};

/// Ends a context that holds 14 MiB. In the middle of that another thread has `allocate` bring a block in the primary context, asks about it and frees it.
template <class Allocate> NewOwner free_while_ending(Rig& rig, CUdeviceptr* old, Allocate&& allocate) {
  g_may_leave.store(false);
  const CUcontext second = create(rig, 0);
  *old = rig.pools().allocate(second, 14 * kMiB, "cuMemAlloc_v2").value();
  rig.use(0);
  NewOwner owner;
  std::atomic<bool> is_done{false};
  std::thread other;
  const CUresult ended = rig.pools().end_context(
      second,
      [&] {
        const CUresult destroyed = cuCtxDestroy_v2(second);
        cuCtxSetCurrent(rig.context());
        other = std::thread([&] {
          cuCtxSetCurrent(rig.context());
          owner.address = allocate();
          owner.found = rig.pools().find(owner.address, nullptr);
          owner.outcome = rig.pools().free(owner.address).outcome;
          is_done.store(true);
        });
        while (!g_may_leave.load() && !is_done.load()) std::this_thread::yield();
        return destroyed;
      },
      [] { return true; });
  other.join();
  REQUIRE(ended == CUDA_SUCCESS);
  return owner;
}

RigOptions native_options(Clock& clock) {
  RigOptions options;
  options.clock = &clock;
  options.pool.policy = config::Policy::platform;
  return options;
}

}  // namespace

TEST_CASE("a free of what the driver took from an ending context and gave to somebody else is passed on") {
  ReleasingClock clock(true);
  Rig rig(native_options(clock));
  const std::size_t before_bytes = GENERATE(std::size_t{0}, 2 * kMiB);  // the second block then begins inside the old one
  CUdeviceptr old = 0;
  CUdeviceptr before = 0;
  const NewOwner owner = free_while_ending(rig, &old, [&] {
    CUdeviceptr block = 0;
    if (before_bytes != 0) cuMemAlloc_v2(&before, before_bytes);
    cuMemAlloc_v2(&block, 2 * kMiB);
    return block;
  });
  REQUIRE(owner.address == old + before_bytes);
  CHECK(owner.found == Ownership::unknown);
  CHECK(owner.outcome == FreeOutcome::unknown);
  CHECK(cuMemFree_v2(owner.address) == CUDA_SUCCESS);
  if (before != 0) CHECK(cuMemFree_v2(before) == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a block of ours at an address of an ending context is the one that is found and freed") {
  ReleasingClock clock(true);
  Rig rig(native_options(clock));
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  CUdeviceptr old = 0;
  BlockView found;
  const NewOwner owner = free_while_ending(rig, &old, [&] {
    const CUdeviceptr block = rig.pools().allocate(rig.context(), 2 * kMiB, "cuMemAlloc_v2").value();
    rig.pools().find(block, &found);
    return block;
  });
  REQUIRE(owner.address == old);
  CHECK(owner.outcome == FreeOutcome::freed);
  CHECK(found.context == rig.context());
  CHECK(found.bytes == 2 * kMiB);
  std::size_t now_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&now_bytes, &total_bytes) == CUDA_SUCCESS);
  CHECK(now_bytes == free_bytes);
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("contexts that end one after another beside work that does not end cost little") {
  Rig rig;
  rig.free(rig.allocate(kMiB));
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  const std::uint64_t before_ns = cusim_now_ns();
  for (int i = 0; i < 10; ++i) {
    const CUcontext second = create(rig, 0);
    const Result<CUdeviceptr> block = rig.pools().allocate(second, 1000, "cuMemAlloc_v2");
    REQUIRE(block.ok());
    REQUIRE(rig.pools().free(block.value()).outcome == FreeOutcome::freed);
    CHECK(rig.pools().end_context(
              second, [&] { return cuCtxDestroy_v2(second); }, [] { return true; }) == CUDA_SUCCESS);
  }
  CHECK(cusim_now_ns() - before_ns < 200'000'000);  // the first waits 100 ms for what could touch its blocks
  released = 1;
  CHECK(rig.pools().check() == "");
}
