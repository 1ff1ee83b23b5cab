// Blocks of memory pools that streams of other contexts have freed, when their own context ends. pool/device/stamped_frees.cpp, leave_pool_blocks.
#include <catch2/catch.hpp>

#include "tests/unit/device/beside.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("pages: memory of pools that another context's stream has freed outlives the end of its own until that stream is done with it") {
  const bool has_context_events = GENERATE(false, true);
  RigOptions options = on_pages();
  if (!has_context_events) options.driver_version = "12040";
  StreamRig rig(options);
  const CUstream busy = new_stream();
  Beside beside(rig);
  const CUdeviceptr block = beside.on(8 * kMiB);
  rig.use(0);
  REQUIRE(cusim_launch_fill(busy, block, 8 * kMiB, 1, 50 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, busy);
  beside.destroy();
  CHECK(rig.pools().check() == "");
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
  rig.pools().after_wait(rig.context());
  give_back_all(rig);
}

TEST_CASE("pages: where no event covers a context, the end of the last one gives back what was freed of an orphan during a capture") {
  RigOptions options = on_pages();
  options.driver_version = "12040";
  StreamRig rig(options);
  const CUstream stream = new_stream();
  Beside beside(rig);
  const CUdeviceptr left = beside.on(8 * kMiB);
  beside.destroy();
  during_capture(rig, [&] { rig.free_on(left, stream); });
  rig.reset_device();
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("segments: where no event covers a context, what another one's stream has freed goes with the context, out of every list") {
  RigOptions options;
  options.driver_version = "12040";
  StreamRig rig(options);
  const Beside beside(rig);
  const Result<CUdeviceptr> block = rig.pools().allocate_on(beside.context, kMiB, name_of(beside.stream), kDefaultPool, "cuMemAllocAsync");
  REQUIRE(block.code() == CUDA_SUCCESS);
  rig.use(0);
  rig.free_on(block.value(), new_stream());
  Beside(beside).destroy();
  CHECK(rig.pools().check() == "");
  rig.free(rig.allocate(kMiB));
  give_back_all(rig);
}
