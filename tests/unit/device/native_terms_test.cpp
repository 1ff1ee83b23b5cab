// When memory is out, other contexts' work keeps nothing that natively were free.
#include <atomic>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/device/ending.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
constexpr std::uint64_t kSecond = 1'000'000'000;

RigOptions two_devices() {
  RigOptions options;
  options.pool.limit.all = config::parse_amount("64MiB");
  options.devices = 2;
  return options;
}

/// Waits cost nothing: for one thread alone.
struct NobodysClock final : Clock {
  std::uint64_t now_ns() const override { return cusim_now_ns(); }
  void pause(std::uint64_t duration_ns) override { cusim_advance_ns(duration_ns); }
};

/// Rounds in which a block of most of the limit is used and freed: how many are served.
int rounds_served(Rig& rig, CUstream stream, int rounds) {
  int served = 0;
  for (int i = 0; i < rounds; ++i) {
    const Result<CUdeviceptr> block = rig.pools().allocate(rig.context(), 40 * kMiB, "cuMemAlloc_v2");
    if (!block.ok()) break;
    ++served;
    REQUIRE(cusim_launch_spin(stream, 2 * kMs) == CUDA_SUCCESS);
    rig.free(block.value());
  }
  return served;
}
}  // namespace

TEST_CASE("a kernel without end in another context keeps no memory from an allocation that is short of it") {
  const int elsewhere = GENERATE(0, 1);
  Rig rig(two_devices());
  const CUstream own = new_stream();
  const CUcontext other = create(rig, elsewhere);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.use(0);
  CHECK(rounds_served(rig, own, 10) == 10);
  CHECK(cusim_now_ns() < 3 * kSecond);
  released = 1;
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.use(0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a shorter one is waited for: it may be a copy of the block") {
  Rig rig(two_devices());
  cusim_advance_ns(kSecond);
  rig.use(1);
  REQUIRE(cusim_launch_spin(new_stream(), 100 * kMs) == CUDA_SUCCESS);
  rig.use(0);
  rig.free(rig.allocate(40 * kMiB));
  CHECK(rig.pools().allocate(rig.context(), 40 * kMiB, "cuMemAlloc_v2").ok());
  CHECK(cusim_now_ns() >= kSecond + 100 * kMs);
}

TEST_CASE("where devices are linked natively the free had waited for the other one too: such memory is not free") {
  Rig rig(two_devices());
  rig.pools().link_devices();
  rig.use(1);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.use(0);
  rig.free(rig.allocate(40 * kMiB));
  CHECK(rig.pools().allocate(rig.context(), 40 * kMiB, "cuMemAlloc_v2").code() == CUDA_ERROR_OUT_OF_MEMORY);
  released = 1;
  rig.use(1);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("the work of its own context keeps a block, whatever else runs") {
  Rig rig(two_devices());
  rig.use(1);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.use(0);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 700 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(rig.pools().allocate(rig.context(), 40 * kMiB, "cuMemAlloc_v2").ok());
  CHECK(cusim_now_ns() >= 700 * kMs);
  released = 1;
  rig.use(1);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("of what was freed together by several contexts the work of each must be over") {
  const int contexts = GENERATE(2, 10);
  RigOptions options;
  options.pool.limit.all = config::parse_amount("128MiB");
  Rig rig(options);
  const CUdeviceptr large = rig.allocate(80 * kMiB);
  std::vector<CUdeviceptr> small{rig.allocate(4096)};
  volatile std::uint32_t released = 0;
  for (int i = 1; i < contexts; ++i) {
    const CUcontext other = create(rig, 0);
    small.push_back(rig.pools().allocate(other, 4096, "cuMemAlloc_v2").value());
    if (i + 1 == contexts) REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  }
  for (const CUdeviceptr block : small) rig.free(block);
  rig.use(0);
  rig.free(large);
  CHECK(now(rig.counters().epochs_closed) == 1);
  CHECK(rig.try_allocate(80 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(now(rig.counters().deferred_bytes) >= 80 * kMiB);
  released = 1;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("while a context ends nothing is free that its work may touch: not what others free meanwhile, and never its own blocks") {
  NobodysClock clock;
  RigOptions options = two_devices();
  options.clock = &clock;
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(8 * kMiB);
  const CUcontext second = create(rig, 0);
  const CUdeviceptr of_second = rig.pools().allocate(second, 64 * kKiB, "cuMemAlloc_v2").value();
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.free(of_second);
  rig.use(0);
  std::uint64_t closed = 0;
  std::uint64_t deferred_bytes = 0;
  CUresult code = CUDA_SUCCESS;
  const auto end = [&] {
    cuCtxSetCurrent(rig.context());
    closed = now(rig.counters().epochs_closed);
    rig.pools().free(block);
    closed = now(rig.counters().epochs_closed) - closed;
    code = rig.pools().allocate(rig.context(), 60 * kMiB, "cuMemAlloc_v2").code();
    deferred_bytes = now(rig.counters().deferred_bytes);
    released = 1;
    return cuCtxDestroy_v2(second);
  };
  CHECK(rig.pools().end_context(second, end, [] { return true; }) == CUDA_SUCCESS);
  CHECK(closed == 0);
  CHECK(code == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(deferred_bytes == 8 * kMiB + 64 * kKiB);
  rig.use(0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("while a context ends its blocks are not free, of however many contexts others were freed with them") {
  NobodysClock clock;
  RigOptions options = two_devices();
  options.clock = &clock;
  Rig rig(options);
  std::vector<CUcontext> contexts{rig.context()};
  while (contexts.size() < 10) contexts.push_back(create(rig, 0));
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);  // in the last
  std::vector<CUdeviceptr> blocks;
  const auto allocate_in = [&](CUcontext context) { blocks.push_back(rig.pools().allocate(context, 4096, "cuMemAlloc_v2").value()); };
  for (std::size_t i = 0; i < 9; ++i) allocate_in(contexts[i]);
  allocate_in(contexts[9]);
  for (std::size_t i = 9; i-- > 0;) allocate_in(contexts[i]);  // it is the tenth from either side
  for (const CUdeviceptr block : blocks) rig.free(block);
  rig.use(0);
  std::uint64_t deferred_bytes = 0;
  const auto end = [&] {
    cuCtxSetCurrent(rig.context());
    static_cast<void>(rig.pools().allocate(rig.context(), 63 * kMiB, "cuMemAlloc_v2"));
    deferred_bytes = now(rig.counters().deferred_bytes);
    released = 1;
    return cuCtxDestroy_v2(contexts[9]);
  };
  CHECK(rig.pools().end_context(contexts[9], end, [] { return true; }) == CUDA_SUCCESS);
  CHECK(deferred_bytes == blocks.size() * 4096);
  rig.use(0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a context whose end takes for ever keeps no memory of others") {
  const int elsewhere = GENERATE(0, 1);
  g_may_leave.store(false);
  Rig rig(two_devices());
  const CUstream own = new_stream();
  const CUcontext second = create(rig, elsewhere);
  int served = 0;
  std::atomic<bool> is_done{false};
  const auto end = [&] {
    std::thread other([&] {
      cuCtxSetCurrent(rig.context());
      served = rounds_served(rig, own, 10);
      is_done.store(true);
    });
    while (!is_done.load()) std::this_thread::yield();
    other.join();
    return cuCtxDestroy_v2(second);
  };
  CHECK(rig.pools().end_context(second, end, [] { return true; }) == CUDA_SUCCESS);
  CHECK(served == 10);
  rig.use(0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a synchronising free beside a context that ends waits for no unlinked device, whatever was freed before it") {
  RigOptions options;
  options.pool.free = config::FreeMode::sync;
  options.devices = 2;
  Rig rig(options);
  const CUdeviceptr first = rig.allocate(4 * kMiB);
  const CUdeviceptr second = rig.allocate(4 * kMiB);
  rig.use(1);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  const CUcontext ending = create(rig, 0);
  std::uint64_t after_ns = 0;
  std::uint64_t deferred_bytes = 0;
  const auto end = [&] {
    rig.use(0);
    rig.free(first);
    rig.free(second);
    after_ns = cusim_now_ns();
    deferred_bytes = now(rig.counters().deferred_bytes);
    return cuCtxDestroy_v2(ending);
  };
  CHECK(rig.pools().end_context(ending, end, [] { return true; }) == CUDA_SUCCESS);
  CHECK(after_ns < 5 * kMs);
  CHECK(deferred_bytes == 8 * kMiB);
  rig.use(0);
  CHECK(rig.pools().check() == "");
}
