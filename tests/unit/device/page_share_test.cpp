// What the outside does to memory on mapped pages: other devices reach it, SYNC_MEMOPS, pins.
#include <catch2/catch.hpp>

#include <thread>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

RigOptions paged(int devices = 1) {
  RigOptions options = on_pages();
  options.devices = devices;
  return options;
}

/// Whether a kernel of the current device could write there.
bool may_write(CUdeviceptr address) {
  unsigned flags = 0;
  REQUIRE(cuPointerGetAttribute(&flags, CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, address) == CUDA_SUCCESS);
  return flags == CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
}

bool has_memops(PoolSet& pools, CUdeviceptr address) {
  BlockView view;
  REQUIRE(pools.find(address, &view) == Ownership::live);
  return view.sync_memops;
}

/// The primary context of device 0 ends and begins again.
CUdeviceptr allocate_in_next_life(Rig& rig, std::size_t bytes) {
  rig.reset_device(0);
  CUcontext context = nullptr;
  REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
  rig.pools().context_seen(context, 0);
  const Result<CUdeviceptr> block = rig.pools().allocate(context, bytes, "test");
  REQUIRE(block.ok());
  return block.value();
}

}  // namespace

TEST_CASE("pages: another device reaches what there is and what comes, once it was let, and only then") {
  Rig rig(paged(2));
  const CUdeviceptr before = rig.allocate(10 * kMiB);
  rig.use(1);
  const CUdeviceptr theirs = rig.allocate(kMiB);
  CHECK_FALSE(may_write(before));
  REQUIRE(rig.pools().share_pages(rig.context(0), 1).ok());
  CHECK(may_write(before));
  CHECK(may_write(before + 10 * kMiB - 1));
  const std::uint64_t calls = cusim_calls("cuMemSetAccess");
  REQUIRE(rig.pools().share_pages(rig.context(0), 1).ok());
  CHECK(cusim_calls("cuMemSetAccess") == calls);  // it does already
  rig.use(0);
  const CUdeviceptr after = rig.allocate(100 * kMiB);
  CHECK_FALSE(may_write(theirs));  // the other way was not asked for
  rig.use(1);
  CHECK(may_write(after));
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: a context that comes later starts without the reach of the one before") {
  Rig rig(paged(2));
  rig.allocate(kMiB);
  REQUIRE(rig.pools().share_pages(rig.context(0), 1).ok());
  const CUdeviceptr fresh = allocate_in_next_life(rig, kMiB);
  rig.use(1);
  CHECK_FALSE(may_write(fresh));
}

TEST_CASE("pages: where access is refused, everything is as before, and the pool goes on") {
  Rig rig(paged(2));
  const CUdeviceptr block = rig.allocate(kMiB);
  cusim_fail("cuMemSetAccess", 1, CUDA_ERROR_INVALID_DEVICE, 2);
  CHECK(rig.pools().share_pages(rig.context(0), 1).code() == CUDA_ERROR_INVALID_DEVICE);
  const CUdeviceptr large = rig.allocate(200 * kMiB);
  rig.use(1);
  CHECK_FALSE(may_write(block));
  CHECK_FALSE(may_write(large));
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: sharing beside threads that allocate, free and trim reaches every block there is in the end") {
  DriversClock clock;
  RigOptions options = paged(2);
  options.clock = &clock;
  Rig rig(options);
  std::vector<CUdeviceptr> kept;
  for (int i = 0; i < 8; ++i) kept.push_back(rig.allocate(3 * kMiB));
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&rig] {
      cuCtxSetCurrent(rig.context(0));
      for (int i = 0; i < 200; ++i) {
        const Result<CUdeviceptr> block = rig.pools().allocate(rig.context(0), static_cast<std::size_t>(i % 7 + 1) * 5 * kMiB, "test");
        if (!block.ok()) continue;
        static_cast<void>(rig.pools().free(block.value()));
        rig.pools().trim();
      }
    });
  }
  while (cusim_calls("cuMemUnmap") == 0) std::this_thread::yield();
  CHECK(rig.pools().share_pages(rig.context(0), 1).ok());
  for (std::thread& thread : threads) thread.join();
  kept.push_back(rig.allocate(300 * kMiB));
  rig.use(1);
  for (const CUdeviceptr block : kept) CHECK(may_write(block));
  CHECK(rig.pools().check() == "");
}

TEST_CASE("pages: SYNC_MEMOPS is the block's alone, asks nothing of the driver, and keeps the pages until somebody needs them") {
  Rig rig(paged());
  PoolSet& pools = rig.pools();
  rig.allocate(512);  // so that what follows shares pages
  const CUdeviceptr large = rig.allocate(20 * kMiB), small = rig.allocate(4096);
  REQUIRE(pools.set_sync_memops(large + 10 * kMiB, true).ok());
  CHECK((has_memops(pools, large) && !has_memops(pools, small)));
  REQUIRE(pools.set_sync_memops(small, true).ok());
  REQUIRE(pools.set_sync_memops(large, false).ok());
  CHECK((!has_memops(pools, large) && has_memops(pools, small)));
  REQUIRE(pools.set_sync_memops(large, true).ok());
  CHECK(cusim_calls("cuPointerSetAttribute") == 0);
  rig.free(large);
  CHECK(has_memops(pools, small));
  rig.free(small);
  const CUdeviceptr again = rig.allocate(20 * kMiB);
  CHECK_FALSE(has_memops(pools, again));
  rig.free(again);
  for (CUdeviceptr at = large; at < large + 20 * kMiB; at += 2 * kMiB) CHECK(may_write(at));
  pools.trim();
  CHECK(cusim_used_bytes(0) <= 4 * kMiB);  // natively its pages had gone with it
  CHECK(pools.check() == "");
}

TEST_CASE("pages: SYNC_MEMOPS of blocks that died with their context does not hold for the next") {
  Rig rig(paged());
  REQUIRE(rig.pools().set_sync_memops(rig.allocate(5 * kMiB), true).ok());
  const CUdeviceptr fresh = allocate_in_next_life(rig, 5 * kMiB);
  CHECK_FALSE(has_memops(rig.pools(), fresh));
  REQUIRE(rig.pools().set_sync_memops(fresh, true).ok());
  CHECK(has_memops(rig.pools(), fresh));
}
