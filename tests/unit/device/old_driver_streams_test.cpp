// Stream-ordered frees on drivers before CUDA 12.5, where no event covers a context: an epoch there has none, so each free finds an event on a
// stream, now or when others want its bytes. A job that only ever frees in stream order would lose them otherwise.
#include <catch2/catch.hpp>

#include "tests/unit/device/ending.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

RigOptions old_driver(const char* limit) {
  RigOptions options = limited_to(limit);
  options.driver_version = "12020";
  options.memory = "8GiB";
  return options;
}

/// No thread may have waited for the GPU.
void check_nobody_waited() { CHECK(cusim_calls("cuCtxSynchronize") + cusim_calls("cuEventSynchronize") + cusim_calls("cuStreamSynchronize") == 0); }

}  // namespace

TEST_CASE("old driver: many more streams than lanes hold what their blocks in flight need") {
  StreamRig rig(old_driver("4GiB"));
  std::vector<CUstream> streams(200);
  for (CUstream& stream : streams) stream = new_stream();
  for (int round = 0; round < 20; ++round)
    for (const CUstream stream : streams) rig.free_on(rig.on(stream, 2 * kMiB), stream);
  CHECK(peak(rig.counters().reserved_bytes) <= 512 * kMiB);
  CHECK(rig.pools().check() == "");
  check_nobody_waited();
}

TEST_CASE("old driver: where every lane is in use a free has an event of its own") {
  StreamRig rig(old_driver("4GiB"));
  const CUstream another = new_stream();
  const CUdeviceptr block = rig.on(another, 64 * kMiB);
  for (std::size_t i = 0; i < device::StreamLanes::kMostLanes; ++i) {
    const CUstream stream = new_stream();
    const CUdeviceptr small = rig.on(stream, kMiB);
    REQUIRE(cusim_launch_spin(stream, 5'000 * kMs) == CUDA_SUCCESS);
    rig.free_on(small, stream);
  }
  // The lane that would be emptied for it cannot be: its stream gets no event.
  cusim_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, 1);
  rig.free_on(block, another);
  CHECK(now(rig.counters().deferred_bytes) == 64 * kMiB);
  CHECK(rig.on(new_stream(), 64 * kMiB) == block);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("old driver: a lane whose stream gets no event this time keeps its bytes for the next") {
  StreamRig rig(old_driver("100MiB"));
  const CUstream stale = new_stream();
  const CUdeviceptr block = rig.on(stale, 40 * kMiB);
  REQUIRE(cusim_launch_spin(stale, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, stale);
  const CUstream stream = new_stream();
  for (std::uint64_t i = 0; i <= device::StreamLanes::kStaleUses; ++i) rig.free_on(rig.on(stream, 512), stream);
  const std::uint64_t asked = cusim_calls("cuEventRecord");  // before the pool grew for the first of them
  REQUIRE(asked == 1);
  cusim_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, 2);  // as a stale lane, and as one that might be idle
  rig.on(stream, 40 * kMiB);
  REQUIRE(cusim_calls("cuEventRecord") == asked + 2);
  cusim_advance_ns(5 * kMs);
  CHECK(rig.on(stream, 40 * kMiB) == block);
  CHECK(rig.pools().check() == "");
  check_nobody_waited();
}

TEST_CASE("old driver: a stamped free that gets no event is its stream's all the same") {
  StreamRig rig(old_driver("64MiB"));
  const CUstream stream = new_stream();
  rig.free_on(rig.on(new_stream(), 512), stream);  // several streams
  const CUdeviceptr block = rig.on(stream, 40 * kMiB);
  CHECK_FALSE(rig.try_on(stream, 80 * kMiB).ok());  // from here on frees are stamped
  cusim_fail("cuEventRecord", 1, CUDA_ERROR_UNKNOWN, 1);
  rig.free_on(block, stream);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(rig.on(new_stream(), 40 * kMiB) == block);
}

TEST_CASE("old driver: a block that is freed on a stream of another context comes back behind that stream") {
  StreamRig rig(old_driver("64MiB"));
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, 40 * kMiB);
  const CUcontext second = create(rig, 0);
  const CUstream of_second = new_stream();
  REQUIRE(cusim_launch_spin(of_second, 5 * kMs) == CUDA_SUCCESS);
  REQUIRE(rig.pools().free_on(block, second, name_of(of_second)).outcome == FreeOutcome::freed);
  rig.use(0);
  CHECK(rig.on(stream, 40 * kMiB) == block);
  CHECK(cusim_calls("cuStreamWaitEvent") == 1);
  CHECK(rig.pools().check() == "");
  check_nobody_waited();
}

TEST_CASE("old driver: what a default stream freed is not the default stream's of another context") {
  StreamRig rig(old_driver("64MiB"));
  const CUstream stream = CU_STREAM_LEGACY;
  volatile std::uint32_t released = 0;
  for (std::uint32_t i = 0; i < device::StreamLanes::kLoneFrees; ++i) rig.free_on(rig.on(stream, 512), stream);
  const CUdeviceptr block = rig.on(stream, 40 * kMiB);
  REQUIRE(cusim_launch_wait_host(stream, &released) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  CHECK_FALSE(rig.try_allocate(40 * kMiB).ok());  // from here on it waits behind an event of its stream
  CHECK(now(rig.counters().deferred_bytes) >= 40 * kMiB);
  const CUcontext second = create(rig, 0);
  CHECK_FALSE(rig.pools().allocate_on(second, 40 * kMiB, name_of(stream), kDefaultPool, "cuMemAllocAsync").ok());
  rig.use(0);
  CHECK(rig.pools().check() == "");
  CHECK(rig.on(stream, 40 * kMiB) == block);
  released = 1;
}

TEST_CASE("old driver: a block of the driver's own comes back behind the stream that freed it") {
  StreamRig rig(old_driver("41MiB"));
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, 41 * kMiB);
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  CHECK(rig.try_on(stream, 41 * kMiB).ok());
  CHECK(cusim_now_ns() >= 5 * kMs);
  check_nobody_waited();
}

TEST_CASE("old driver: a wait that fails for no reason of the GPU's is tried again, and the free is done") {
  StreamRig rig(old_driver("1GiB"));
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  cusim_fail("cuCtxSynchronize", 1, CUDA_ERROR_UNKNOWN, 1);
  rig.free(block);
  CHECK(now(rig.counters().deferred_bytes) == 0);
}

namespace {
const StreamName kLegacy{CU_STREAM_LEGACY, 1};  // in each context by this name

/// A block of `context`, freed on the legacy stream of `freeing` behind work that does not end.
CUdeviceptr freed_on_legacy(StreamRig& rig, CUcontext context, CUcontext freeing, volatile std::uint32_t* released) {
  const Result<CUdeviceptr> block = rig.pools().allocate_on(context, 40 * kMiB, kLegacy, kDefaultPool, "cuMemAllocAsync");
  REQUIRE(block.ok());
  REQUIRE(cuCtxSetCurrent(freeing) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_wait_host(CU_STREAM_LEGACY, released) == CUDA_SUCCESS);
  REQUIRE(rig.pools().free_on(block.value(), freeing, kLegacy).outcome == FreeOutcome::freed);
  rig.use(0);
  return block.value();
}
}  // namespace

TEST_CASE("old driver: what another context's default stream freed is not this one's, though both have one name") {
  StreamRig rig(old_driver("64MiB"));
  const CUcontext other = create(rig, 0);
  rig.use(0);
  const bool is_of_other = GENERATE(false, true);
  volatile std::uint32_t released = 0;
  freed_on_legacy(rig, is_of_other ? other : rig.context(), other, &released);
  for (int i = 0; i < 2; ++i) {
    const CUresult code = rig.pools().allocate_on(rig.context(), 40 * kMiB, kLegacy, kDefaultPool, "cuMemAllocAsync").code();
    CHECK(code == (is_of_other || i == 1 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS));
  }
  CHECK(cusim_calls("cuStreamWaitEvent") == (is_of_other ? 0 : 1));  // on the device, behind the free
  released = 1;
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.use(0);
  CHECK(rig.pools().check() == "");
}
