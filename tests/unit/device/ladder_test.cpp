// What a miss does, rung by rung.
#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("regions double from 2 MiB, so that few driver calls serve many blocks") {
  Rig rig;
  for (int i = 0; i < 600; ++i) rig.allocate(kMiB);
  CHECK(cusim_calls("cuMemAlloc_v2") <= 10);
  CHECK(now(rig.counters().rung_grow) == cusim_calls("cuMemAlloc_v2"));
  CHECK(now(rig.counters().rung_grow) + now(rig.counters().rung_hole) == 600);
  CHECK(now(rig.counters().regions_created) == cusim_calls("cuMemAlloc_v2"));
}

TEST_CASE("a large request gets exactly what it needs") {
  Rig rig(device_of("8GiB"));
  rig.allocate(kGiB + 3);
  CHECK(now(rig.counters().reserved_bytes) == kGiB + 2 * kMiB);
}

TEST_CASE("growth backs off to the exact need when the driver refuses, and the last region is usable") {
  Rig rig(device_of("70MiB"));
  for (int i = 0; i < 34; ++i) rig.allocate(2 * kMiB);
  CHECK(now(rig.counters().failed_allocations) == 0);
  CHECK(now(rig.counters().native_fallbacks) == 0);
}

TEST_CASE("growth near the limit takes what the limit leaves") {
  RigOptions options;
  options.pool.limit.all = config::parse_amount("100MiB");
  Rig rig(options);
  for (int i = 0; i < 50; ++i) rig.allocate(2 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) == 100 * kMiB);
  CHECK(now(rig.counters().failed_allocations) == 0);
}

TEST_CASE("whole free regions go back under pressure, so that a larger block fits") {
  Rig rig(device_of("256MiB"));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(rig.allocate(60 * kMiB));
  for (const CUdeviceptr block : blocks) rig.free(block);
  const CUdeviceptr large = rig.allocate(200 * kMiB);
  CHECK(now(rig.counters().rung_release) + now(rig.counters().rung_poll) == 1);
  CHECK(now(rig.counters().regions_released) >= 3);
  rig.free(large);
}

TEST_CASE("no more goes back than is missing") {
  Rig rig(device_of("256MiB"));
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(rig.allocate(60 * kMiB));
  for (const CUdeviceptr block : blocks) rig.free(block);
  rig.allocate(70 * kMiB);
  CHECK(now(rig.counters().regions_released) == 1);
}

TEST_CASE("nothing goes back when it would not be enough") {
  Rig rig(device_of("256MiB"));
  const CUdeviceptr keep = rig.allocate(100 * kMiB);
  rig.free(rig.allocate(100 * kMiB));
  CHECK(rig.try_allocate(180 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(now(rig.counters().regions_released) == 0);
  rig.free(keep);
}

TEST_CASE("free regions of the device's other context go back too") {
  Rig rig(device_of("256MiB"));
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  rig.pools().context_seen(second, 0);
  rig.free(rig.allocate(200 * kMiB));  // in the created context, which is current
  rig.use(0);
  const CUdeviceptr block = rig.allocate(200 * kMiB);
  BlockView view;
  REQUIRE(rig.pools().find(block, &view) == Ownership::live);
  CHECK(view.context == rig.context());
  CUcontext current = nullptr;
  REQUIRE(cuCtxGetCurrent(&current) == CUDA_SUCCESS);
  CHECK(current == rig.context());
}

TEST_CASE("regions go back for a larger block behind nothing, whatever the GPU works on; by a free that waits only when it is idle") {
  const bool in_order = GENERATE(true, false);
  RigOptions options = device_of("256MiB");
  if (!in_order) options.patch = [](DriverApi& api) { api.cuMemFreeAsync = nullptr; };
  Rig rig(options);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(rig.allocate(60 * kMiB));
  for (const CUdeviceptr block : blocks) rig.free(block);
  REQUIRE(cusim_launch_spin(stream, 300'000'000) == CUDA_SUCCESS);
  const CUdeviceptr large = rig.allocate(200 * kMiB);  // without: after 0.3 s of polling
  CHECK(now(rig.counters().rung_poll) == (in_order ? 0 : 1));
  CHECK((cusim_now_ns() >= 300'000'000) == !in_order);
  rig.free(large);
}

TEST_CASE("the native call is the last rung: its block is an allocation of its own, and counted") {
  Rig rig;
  cusim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
  const CUdeviceptr block = rig.allocate(100 * kKiB);
  BlockView view;
  REQUIRE(rig.pools().find(block + 5, &view) == Ownership::live);
  CHECK(view.is_native);
  CHECK(view.region_base == block);
  CHECK(now(rig.counters().native_fallbacks) == 1);
  rig.free(block);
  CHECK(cusim_calls("cuMemFree_v2") == 1);
  CHECK(now(rig.counters().reserved_bytes) == 0);
}

TEST_CASE("an out of memory carries the evidence for its cause") {
  RigOptions options = device_of("256MiB");
  options.pool.limit.all = config::parse_amount("200MiB");
  Rig rig(options);
  const CUdeviceptr keep = rig.allocate(100 * kMiB);
  REQUIRE(rig.try_allocate(150 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(rig.pools().take_untold_oom() != 0);
  CHECK(rig.pools().take_untold_oom() == 0);
  const observe::OomRecord oom = rig.snapshot().ooms.at(0);
  CHECK(oom.api == "cuMemAlloc_v2");
  CHECK(oom.requested_bytes == 150 * kMiB);
  CHECK(oom.result == 2);
  CHECK(oom.time_unix_ns != 0);
  CHECK(oom.evidence.request_bytes == 150 * kMiB);
  CHECK(oom.evidence.device_total_bytes == 256 * kMiB);
  CHECK(oom.evidence.driver_free_bytes == 156 * kMiB);
  CHECK(oom.evidence.limit_bytes == 200 * kMiB);
  CHECK(oom.evidence.held_bytes == 100 * kMiB);
  rig.free(keep);
}

TEST_CASE("above the release threshold empty regions go back, at a free and not before") {
  RigOptions options;
  options.pool.release_threshold_bytes = 100 * kMiB;
  Rig rig(options);
  const CUdeviceptr a = rig.allocate(90 * kMiB);
  const CUdeviceptr b = rig.allocate(80 * kMiB);
  rig.free(a);
  CHECK(now(rig.counters().reserved_bytes) == 170 * kMiB);
  rig.free(b);
  CHECK(now(rig.counters().reserved_bytes) <= 100 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) > 0);
}

TEST_CASE("threshold 0 keeps nothing") {
  RigOptions options;
  options.pool.release_threshold_bytes = 0;
  Rig rig(options);
  rig.free(rig.allocate(90 * kMiB));
  CHECK(now(rig.counters().reserved_bytes) == 0);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("trim gives every empty region back") {
  Rig rig;
  const CUdeviceptr keep = rig.allocate(3 * kMiB);
  rig.free(rig.allocate(90 * kMiB));
  CHECK(rig.pools().trim() == 90 * kMiB);
  CHECK(rig.pools().find(keep, nullptr) == Ownership::live);
}

TEST_CASE("preallocate takes its share at the first pooled allocation, on that device only") {
  RigOptions options;
  options.devices = 2;
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("75%");
  Rig rig(options);
  CHECK(cusim_used_bytes(0) == 0);
  rig.allocate(4096);
  CHECK(now(rig.counters(0).reserved_bytes) == 768 * kMiB);
  CHECK(cusim_used_bytes(1) == 0);
  for (int i = 0; i < 100; ++i) rig.allocate(7 * kMiB);
  CHECK(cusim_calls("cuMemAlloc_v2") == 2);
  CHECK(rig.pools().take_messages().empty());
  rig.allocate(100 * kMiB);  // beyond it: the pool grows
  CHECK(now(rig.counters(0).failed_allocations) == 0);
}

TEST_CASE("a preallocation is clamped to the limit, then to what is free, with one warning") {
  RigOptions options;
  options.pool.preallocate = config::parse_amount("900MiB");  // under grow: the same
  SECTION("limit") { options.pool.limit.all = config::parse_amount("300MiB"); }
  Rig rig(options);
  CUdeviceptr neighbour = 0;
  if (options.pool.limit.empty()) REQUIRE(cuMemAlloc_v2(&neighbour, 724 * kMiB) == CUDA_SUCCESS);
  rig.allocate(4096);
  CHECK(now(rig.counters().reserved_bytes) == 300 * kMiB);
  CHECK(rig.pools().take_messages().size() == 1);
  if (neighbour != 0) CHECK(cuMemFree_v2(neighbour) == CUDA_SUCCESS);
}

TEST_CASE("a preallocation that the driver refuses backs off") {
  RigOptions options;
  options.pool.preallocate = config::parse_amount("75%");
  Rig rig(options);
  cusim_fail("cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, 3);
  rig.allocate(4096);
  CHECK(now(rig.counters().reserved_bytes) >= 500 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) < 768 * kMiB);
  CHECK(rig.pools().take_messages().size() == 1);
}
