// The `async` policy: plain calls from the driver's stream-ordered pool.
#include <catch2/catch.hpp>

#include <functional>
#include <thread>
#include <utility>

#include "pool/observe/report.hpp"
#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

RigOptions async(const char* preallocate = nullptr, const char* limit = nullptr) {
  RigOptions options;
  options.pool.policy = config::Policy::async;
  if (preallocate != nullptr) options.pool.preallocate = config::parse_amount(preallocate);
  if (limit != nullptr) options.pool.limit.all = config::parse_amount(limit);
  return options;
}

}  // namespace

TEST_CASE("async: a free does not wait for the host, and its block is not reused before the work that may touch it is over") {
  Rig rig(async());
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.allocate(kMiB);
  REQUIRE(cusim_launch_fill(stream, block, 4096, 1, 5 * kMs) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(stream, block, 4096, 1, 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() < 5 * kMs);
  const CUdeviceptr next = rig.allocate(kMiB);
  REQUIRE(cusim_launch_fill(new_stream(), next, 4096, 2, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  rig.free(next);
}

TEST_CASE("async: an allocation may be used on any stream when it returns") {
  Rig rig(async());
  for (int i = 0; i < 20; ++i) {
    const CUdeviceptr block = rig.allocate(kMiB);
    REQUIRE(cusim_launch_fill(new_stream(), block, kMiB, 3, kMs) == CUDA_SUCCESS);
    rig.free(block);
  }
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
}

TEST_CASE("async: CUPOOL_PREALLOCATE primes the driver's pool, which serves from it") {
  Rig rig(async("256MiB"));
  const CUdeviceptr first = rig.allocate(kMiB);
  CHECK(cusim_used_bytes(0) >= 256 * kMiB);
  CHECK(now(rig.counters().reserved_bytes) >= 256 * kMiB);
  CHECK(rig.pools().take_messages().empty());
  rig.free(first);
  CHECK(rig.live().policy == std::string("async"));
}

TEST_CASE("async: what the driver's pool keeps idle counts as held, and is not counted twice") {
  Rig rig(async(nullptr, "64MiB"));
  for (int i = 0; i < 10; ++i) rig.free(rig.allocate(40 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  CHECK(rig.try_allocate(40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  rig.free(block);
}

TEST_CASE("async: a free during a capture waits for its end") {
  Rig rig(async());
  const CUstream capturing = new_stream();
  const CUdeviceptr block = rig.allocate(kMiB);
  REQUIRE(rig.pools().begin_capture(capturing, [&] { return cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL); }) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_calls("cuMemFreeAsync") == 0);
  CHECK(cusim_calls("cuCtxRecordEvent") == 0);
  const CUdeviceptr during = rig.allocate(kMiB);
  CUgraph graph = nullptr;
  REQUIRE(rig.pools().end_capture(
              capturing, [&] { return cuStreamEndCapture(capturing, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  CHECK(graph != nullptr);
  rig.free(during);
  for (int i = 0; i < 64; ++i) rig.free(rig.allocate(512));
  CHECK(cusim_calls("cuMemFreeAsync") >= 64);
  CHECK(now(rig.counters().deferred_bytes) < kMiB);
}

TEST_CASE("async: a device without memory pools is served as by grow, and the user is told") {
  RigOptions options = async();
  options.patch = [](DriverApi& api) { api.cuMemAllocAsync = nullptr; };
  Rig rig(options);
  rig.free(rig.allocate(kMiB));
  CHECK(rig.live().policy == std::string("grow"));
  CHECK(rig.pools().take_messages().size() == 1);
}

TEST_CASE("async: trim gives back what the driver's pool keeps") {
  Rig rig(async());
  rig.free(rig.allocate(64 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(rig.pools().trim() != 0);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("async: what the driver's pool has between live blocks is free in pieces, and not called releasable") {
  const bool is_limited = GENERATE(false, true);
  RigOptions options = async(nullptr, is_limited ? "64MiB" : nullptr);
  if (!is_limited) options.memory = "64MiB";
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (Result<CUdeviceptr> block = rig.try_allocate(kMiB); block.ok(); block = rig.try_allocate(kMiB)) blocks.push_back(block.value());
  REQUIRE(blocks.size() >= 40);
  rig.pools().take_untold_oom();
  for (std::size_t i = 0; i < blocks.size(); i += 2) rig.free(blocks[i]);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(rig.try_allocate(12 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(rig.pools().take_untold_oom() != 0);
  const observe::OomEvidence evidence = rig.snapshot().ooms.back().evidence;
  CHECK(evidence.pool_free_bytes >= 12 * kMiB);
  CHECK(evidence.releasable_bytes < 12 * kMiB);
  const observe::OomVerdict verdict = observe::classify(evidence, {});
  CHECK(observe::name_of(verdict.cause) == std::string(is_limited ? "limit" : "external_fragmentation"));  // behind the limit the driver has enough
  CHECK(verdict.shortfall_bytes > 0);
  for (std::size_t i = 1; i < blocks.size(); i += 2) rig.free(blocks[i]);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.free(rig.allocate(12 * kMiB));
}

TEST_CASE("async: what the driver's pool keeps idle makes room within the limit for other memory") {
  Rig rig(async(nullptr, "96MiB"));
  rig.free(rig.allocate(64 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(rig.pools().reserve_outside(0, OutsideKind::array, 80 * kMiB, "cuArrayCreate_v2").ok());
  rig.pools().cancel_outside(0, OutsideKind::array, 80 * kMiB);
}

TEST_CASE("async: a context that dies takes its blocks along") {
  Rig rig(async());
  rig.allocate(kMiB);
  rig.reset_device();
  CHECK(now(rig.counters().reserved_bytes) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("platform: a free in stream order is the driver's own, and does not wait") {
  RigOptions options;
  options.pool.policy = config::Policy::platform;
  Rig rig(options);
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.allocate(700 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  const FreeResult result = rig.pools().free_on(block, rig.context(), {stream, reinterpret_cast<std::uintptr_t>(stream)});
  CHECK(result.outcome == FreeOutcome::freed);
  CHECK(cusim_now_ns() < 5 * kMs);
  CHECK(cusim_calls("cuMemFreeAsync") == 1);
  CHECK(now(rig.counters().live_blocks) == 0);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(rig.allocate(700 * kMiB) != 0);
}

TEST_CASE("async: plain blocks come from the device's default pool, whatever pool is current, and outlive that one") {
  Rig rig(async());
  CUmemPoolProps properties{};
  properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, 0};
  CUmemoryPool own = nullptr;
  REQUIRE(cuMemPoolCreate(&own, &properties) == CUDA_SUCCESS);
  REQUIRE(cuDeviceSetMemPool(0, own) == CUDA_SUCCESS);
  const CUdeviceptr block = rig.allocate(kMiB);
  cuuint64_t used_bytes = 1;
  REQUIRE(cuMemPoolGetAttribute(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes) == CUDA_SUCCESS);
  CHECK(used_bytes == 0);
  REQUIRE(cuMemPoolDestroy(own) == CUDA_SUCCESS);
  rig.free(block);
  rig.free(rig.allocate(2 * kMiB));
}

TEST_CASE("async: on a driver without events that cover a context a free synchronises, and nothing is reused early") {
  RigOptions options = async();
  options.patch = [](DriverApi& api) { api.cuCtxRecordEvent = nullptr; };
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() >= 5 * kMs);
  rig.free(rig.allocate(kMiB));
}

TEST_CASE("async: an allocation waits for no event that the whole context waits for") {
  Rig rig(async(nullptr, "256MiB"));
  CUevent event = nullptr;
  volatile std::uint32_t released = 0;
  const CUstream held = new_stream();
  REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  rig.free(rig.allocate(512));
  REQUIRE(cusim_launch_wait_host(held, &released) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, held) == CUDA_SUCCESS);
  REQUIRE(cuCtxWaitEvent(rig.context(), event) == CUDA_SUCCESS);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 8; ++i) blocks.push_back(rig.allocate(kMiB));  // a wait would never end
  released = 1;
  for (const CUdeviceptr block : blocks) REQUIRE(cusim_launch_fill(held, block, 4096, 1, kMs) == CUDA_SUCCESS);
  for (const CUdeviceptr block : blocks) rig.free(block);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(rig.pools().trim() != 0);
}

TEST_CASE("async: an allocation waits for no stream-ordered free of the program's, and the next ones are served again") {
  RigOptions options = async();
  options.memory = "64MiB";
  Rig rig(options);
  volatile std::uint32_t released = 0;
  const CUstream held = new_stream();
  CUdeviceptr own = 0;
  REQUIRE(cuMemAllocAsync(&own, 40 * kMiB, held) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_wait_host(held, &released) == CUDA_SUCCESS);
  REQUIRE(cuMemFreeAsync(own, held) == CUDA_SUCCESS);
  CHECK(rig.try_allocate(40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);  // as natively; a wait would never end
  const CUdeviceptr small = rig.allocate(kMiB);
  REQUIRE(cusim_launch_fill(new_stream(), small, kMiB, 1, 0) == CUDA_SUCCESS);
  released = 1;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(rig.allocate(40 * kMiB) != 0);
  rig.free(small);
}

TEST_CASE("async: the release threshold that the program gave the default pool stays") {
  Rig rig(async());
  CUmemoryPool pool = nullptr;
  cuuint64_t threshold_bytes = 5 * kMiB;
  REQUIRE(cuDeviceGetDefaultMemPool(&pool, 0) == CUDA_SUCCESS);
  REQUIRE(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold_bytes) == CUDA_SUCCESS);
  rig.free(rig.allocate(kMiB));
  threshold_bytes = 0;
  REQUIRE(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold_bytes) == CUDA_SUCCESS);
  CHECK(threshold_bytes == 5 * kMiB);
}

TEST_CASE("async: an allocation that is short of memory waits for what was freed, however long its work takes") {
  RigOptions options = async();
  options.memory = "64MiB";
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 5'000 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(rig.allocate(40 * kMiB) != 0);
  CHECK(cusim_now_ns() >= 5'000 * kMs);
}

TEST_CASE("async: what waits for its work goes back to the device for whoever takes memory in the driver") {
  RigOptions options = async();
  options.memory = "64MiB";
  Rig rig(options);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 5'000 * kMs) == CUDA_SUCCESS);
  CHECK(rig.try_allocate(40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);  // from here on each free has an event of its own
  rig.free(block);
  REQUIRE(cusim_used_bytes(0) >= 40 * kMiB);
  CHECK(rig.pools().make_room());
  CHECK(cusim_used_bytes(0) == 0);
}

namespace {
CUresult (*g_attribute)(CUmemoryPool, CUmemPool_attribute, void*) = nullptr;
std::function<void()> g_meanwhile;

/// The driver has answered, and before the pool knows it another thread is served.
CUresult answer_late(CUmemoryPool pool, CUmemPool_attribute attribute, void* value) {
  const CUresult code = g_attribute(pool, attribute, value);
  if (attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT)
    if (const std::function<void()> meanwhile = std::exchange(g_meanwhile, nullptr)) std::thread(meanwhile).join();
  return code;
}
}  // namespace

TEST_CASE("async: what one context's thread was told before another's took it is not counted twice") {
  RigOptions options = async();
  options.memory = "64MiB";
  options.patch = [](DriverApi& api) {
    g_attribute = api.cuMemPoolGetAttribute;
    api.cuMemPoolGetAttribute = &answer_late;
  };
  g_meanwhile = nullptr;
  Rig rig(options);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  REQUIRE(rig.pools().allocate(other, 512, "cuMemAlloc_v2").ok());
  rig.use(0);
  rig.free(rig.allocate(40 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  bool is_served = false;
  g_meanwhile = [&] { is_served = cuCtxSetCurrent(other) == CUDA_SUCCESS && rig.pools().allocate(other, 40 * kMiB, "cuMemAlloc_v2").ok(); };
  rig.allocate(512);  // gives back what was freed
  CHECK(is_served);
  CHECK(peak(rig.counters().reserved_bytes) <= 64 * kMiB);
  CHECK(rig.pools().check() == "");
}

namespace {
CUresult (*g_mem_info)(std::size_t*, std::size_t*) = nullptr;

/// While the driver answers, another thread is served.
CUresult tell_late(std::size_t* free_bytes, std::size_t* total_bytes) {
  if (const std::function<void()> meanwhile = std::exchange(g_meanwhile, nullptr)) std::thread(meanwhile).join();
  return g_mem_info(free_bytes, total_bytes);
}
}  // namespace

TEST_CASE("async: what the driver's pool has in one piece is unknown in every out-of-memory, also of memory outside the pool") {
  RigOptions options = async();
  options.patch = [](DriverApi& api) {
    g_mem_info = api.cuMemGetInfo_v2;
    api.cuMemGetInfo_v2 = &tell_late;
  };
  g_meanwhile = nullptr;
  Rig rig(options);
  const std::vector<CUdeviceptr> blocks = {rig.allocate(40 * kMiB), rig.allocate(40 * kMiB)};
  bool has_come = false;
  g_meanwhile = [&] {  // after the pool has given back what lay idle
    rig.use(0);
    for (const CUdeviceptr block : blocks) rig.free(block);
    has_come = true;
  };
  rig.pools().note_refusal(0, 2 * kGiB, {"cuMemCreate"});
  const observe::Snapshot snapshot = rig.snapshot();
  REQUIRE(snapshot.ooms.size() == 1);
  const observe::OomEvidence& evidence = snapshot.ooms.front().evidence;
  REQUIRE(evidence.is_outside_pool);
  CHECK(has_come);
  CHECK(evidence.releasable_bytes > 0);
  CHECK_FALSE(evidence.holes_known);
  CHECK(evidence.largest_free_bytes == 0);
}

TEST_CASE("async: where the driver takes more for a block than the limit has left, the limit is the cause") {
  Rig rig(async(nullptr, "64MiB"));
  while (rig.try_allocate(700'000).ok()) {}
  const observe::Snapshot snapshot = rig.snapshot();
  REQUIRE(snapshot.ooms.size() == 1);
  CHECK(snapshot.ooms.front().evidence.refused_by_limit);
  CHECK(observe::classify(snapshot.ooms.front().evidence, {}).cause == observe::OomCause::limit);
}

TEST_CASE("async: what the driver's pool gives back at a synchronisation is not told as free twice") {
  RigOptions options = async();
  options.pool.release_threshold_bytes = 0;
  Rig rig(options);
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(rig.allocate(16 * kMiB));
  for (int i = 0; i < 8; ++i) rig.free(blocks[static_cast<std::size_t>(i)]);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  for (int i = 0; i < 2; ++i) {  // as it was, and a moment later
    std::size_t free_bytes = 0;
    std::size_t total_bytes = 0;
    REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
    rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);
    CHECK(free_bytes == kGiB - 2 * 16 * kMiB);
  }
}

TEST_CASE("async: what a reset or the last release of the primary context leaves in the driver's pool is nobody's any more, and comes back") {
  const bool stays = GENERATE(true, false);
  RigOptions options = async(nullptr, GENERATE(as<const char*>{}, "100MiB", static_cast<const char*>(nullptr)));
  struct Setting {
    explicit Setting(const char* value) { cusim_configure("RESET_LEAVES_POOLS", value); }
    ~Setting() { cusim_configure("RESET_LEAVES_POOLS", nullptr); }
  } const setting(stays ? "1" : "0");
  options.memory = "256MiB";
  Rig rig(options);
  for (int life = 0; life < 4; ++life) {
    const CUdeviceptr small = rig.allocate(4096);
    const CUdeviceptr block = rig.allocate(90 * kMiB);
    rig.reset_device(0);
    CHECK(rig.pools().find(block, nullptr) == Ownership::unknown);
    CHECK(rig.pools().find(small, nullptr) == Ownership::unknown);
    CUcontext context = nullptr;
    REQUIRE(cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS);
    REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
    rig.pools().context_seen(context, 0);
  }
  CHECK(rig.allocate(90 * kMiB) != 0);
  CHECK(cusim_used_bytes(0) < 100 * kMiB);
  CHECK(now(rig.counters().live_bytes) == 90 * kMiB);
  CHECK(rig.pools().check() == "");
}

TEST_CASE(
    "async: where the driver does not serve from its pool although it says that it has one, its plain call does, and its answer is the program's") {
  const CUresult code = GENERATE(CUDA_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_INVALID_VALUE);
  Rig rig(async());
  cusim_fail("cuMemAllocFromPoolAsync", 1, code, 1'000'000);
  const CUdeviceptr block = rig.allocate(kMiB);
  CHECK(cusim_calls("cuMemAlloc_v2") == 1);
  CHECK(rig.try_allocate(std::size_t{1} << 50).code() == CUDA_ERROR_OUT_OF_MEMORY);
  rig.free(block);
  CHECK(rig.pools().check() == "");
}
