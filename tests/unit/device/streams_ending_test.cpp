// Streams end that nobody names: those of a green context. What they had is everybody's, behind their work; a thread's own default stream goes on.
#include <catch2/catch.hpp>

#include "stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("streams that end with their green context leave what they freed to all, and default streams keep theirs") {
  StreamRig rig;
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, 64 * kMiB, 1);
  REQUIRE(cusim_launch_spin(stream, 5'000'000) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  const std::uint64_t drained = now(rig.counters().lanes_drained);
  rig.pools().streams_ending(rig.context());
  CHECK(now(rig.counters().lanes_drained) == drained + 1);
  CHECK(now(rig.counters().deferred_bytes) >= 64 * kMiB);  // not before that work is over
  const StreamName own{CU_STREAM_PER_THREAD, 12345};
  const Result<CUdeviceptr> second = rig.pools().allocate_on(rig.context(), 32 * kMiB, own, 1, "cuMemAllocAsync");
  REQUIRE(second.ok());
  rig.pools().free_on(second.value(), rig.context(), own);
  const std::uint64_t later = now(rig.counters().lanes_drained);
  rig.pools().streams_ending(rig.context());
  CHECK(now(rig.counters().lanes_drained) == later);
  CHECK(rig.pools().check() == "");
}
