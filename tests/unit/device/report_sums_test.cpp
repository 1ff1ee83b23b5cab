// A report's sums hold at every moment at which one may be written: the address map, the counters and the figures tell the same.
#include <catch2/catch.hpp>

#include <functional>
#include <thread>
#include <utility>

#include "pool/observe/ledger.hpp"
#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;
using observe::BlockState;

namespace {

/// Bytes of the address map in one state.
std::uint64_t listed(const observe::DeviceSnapshot& device, BlockState state) {
  std::uint64_t bytes = 0;
  for (const observe::BlockRow& row : device.blocks) bytes += row.state == state ? row.bytes : 0;
  return bytes;
}

std::uint64_t part(const observe::DeviceSnapshot& device, const std::string& name) {
  for (const observe::LedgerPart& one : observe::ledger_of(device).parts)
    if (one.name == name) return one.bytes;
  return 0;
}

/// What `cupool validate` adds up.
void check_sums(const observe::DeviceSnapshot& device) {
  std::uint64_t unmapped_bytes = 0;
  for (const observe::HandleTier& tier : device.pages.tiers) unmapped_bytes += tier.unmapped_bytes;
  CHECK(listed(device, BlockState::live) == observe::counter_current(device, "live_bytes"));
  CHECK(listed(device, BlockState::deferred) == observe::counter_current(device, "deferred_bytes"));
  if (device.policy != "async") CHECK(listed(device, BlockState::free) + unmapped_bytes == device.now.free_bytes);
  CHECK(device.now.largest_free_bytes <= device.now.free_bytes);
  CHECK(part(device, "metadata") == 0);
  CHECK(device.now.reserved_bytes == device.now.live_bytes + observe::counter_current(device, "deferred_bytes") + device.now.free_bytes);
  CHECK(observe::counter_current(device, "allocations") - observe::counter_current(device, "frees") -
            observe::counter_current(device, "ended_blocks") ==
        observe::counter_current(device, "live_blocks"));
}

/// Ends the capture that it has begun.
class Capture {
 public:
  explicit Capture(Rig& rig, CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL) : rig_(rig) {
    REQUIRE(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(rig.pools().begin_capture(
                stream_, [&] { return cuStreamBeginCapture_v2(stream_, mode); }, mode) == CUDA_SUCCESS);
  }
  void end() {
    CUgraph graph = nullptr;
    REQUIRE(rig_.pools().end_capture(
                stream_, [&] { return cuStreamEndCapture(stream_, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  }

 private:
  Rig& rig_;
  CUstream stream_ = nullptr;
};

observe::DeviceSnapshot report(Rig& rig) {
  observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
  check_sums(device);
  return device;
}

/// What cuMemGetInfo answers.
std::size_t told_free_bytes(Rig& rig) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);
  return free_bytes;
}

constexpr std::uint64_t kNative_bytes = 100 * kKiB;

Rig* g_rig = nullptr;
int g_reports = 0;
CUresult (*g_synchronize)(CUevent) = nullptr;

/// In the middle of a free that waits, a report is written.
CUresult report_and_synchronize(CUevent event) {
  report(*g_rig);
  ++g_reports;
  return g_synchronize(event);
}

void report_if_any() {
  if (g_rig == nullptr || g_rig->snapshot().devices.empty()) return;
  report(*g_rig);
  ++g_reports;
}

/// The driver's function with a report before it and behind it, while the pool waits for it.
template <auto kCall, class... Args> struct Reporting {
  static inline CUresult (*real)(Args...) = nullptr;
  static CUresult call(Args... args) {
    report_if_any();
    const CUresult code = real(args...);
    report_if_any();
    return code;
  }
};

template <auto kCall, class... Args> void report_at(DriverApi& api, CUresult (*DriverApi::*)(Args...)) {
  Reporting<kCall, Args...>::real = api.*kCall;
  api.*kCall = &Reporting<kCall, Args...>::call;
}

void report_at_memory_calls(DriverApi& api) {
  report_at<&DriverApi::cuMemAlloc_v2>(api, &DriverApi::cuMemAlloc_v2);
  report_at<&DriverApi::cuMemFree_v2>(api, &DriverApi::cuMemFree_v2);
  report_at<&DriverApi::cuMemFreeAsync>(api, &DriverApi::cuMemFreeAsync);
  report_at<&DriverApi::cuMemCreate>(api, &DriverApi::cuMemCreate);
  report_at<&DriverApi::cuMemRelease>(api, &DriverApi::cuMemRelease);
  report_at<&DriverApi::cuMemMap>(api, &DriverApi::cuMemMap);
  report_at<&DriverApi::cuMemUnmap>(api, &DriverApi::cuMemUnmap);
  report_at<&DriverApi::cuMemSetAccess>(api, &DriverApi::cuMemSetAccess);
}

CUresult (*g_release)(CUmemGenericAllocationHandle) = nullptr;
std::function<void()> g_when_all_is_gone;

/// When the driver has the last handle back, and before the pool knows.
CUresult release_and_tell(CUmemGenericAllocationHandle handle) {
  const CUresult code = g_release(handle);
  if (cusim_used_bytes(0) == 0 && g_when_all_is_gone) std::exchange(g_when_all_is_gone, nullptr)();
  return code;
}

}  // namespace

TEST_CASE("pages: what one thread gives back while another gets it is reserved once") {
  RigOptions options;
  options.pool.backing = config::Backing::pages;
  options.memory = "64MiB";
  options.patch = [](DriverApi& api) {
    g_release = api.cuMemRelease;
    api.cuMemRelease = &release_and_tell;
  };
  Rig rig(options);
  rig.free(rig.allocate(56 * kMiB));
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  bool is_had = false;
  g_when_all_is_gone = [&] {
    std::thread([&] {
      REQUIRE(cuCtxSetCurrent(rig.context()) == CUDA_SUCCESS);
      is_had = rig.try_allocate(56 * kMiB).ok();
    }).join();
  };
  CHECK(rig.pools().trim() >= 56 * kMiB);
  CHECK(is_had);
  CHECK(rig.counters().reserved_bytes.peak.load() <= 64 * kMiB);
  CHECK(rig.counters().mapped_bytes.peak.load() <= 64 * kMiB);
  CHECK(rig.pools().check() == "");
  report(rig);
}

TEST_CASE("a native block whose free fell into a capture is free in every figure until the driver has it back") {
  RigOptions options;
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  Rig rig(options);
  const bool is_paged = options.pool.backing == config::Backing::pages;
  cusim_fail(is_paged ? "cuMemCreate" : "cuMemAlloc_v2", 1, CUDA_ERROR_OUT_OF_MEMORY, is_paged ? 2 : 1);  // nothing of 2 MiB is left, only less
  const CUdeviceptr native = rig.allocate(kNative_bytes);
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  std::vector<CUdeviceptr> small;
  for (int i = 0; i < 64; ++i) small.push_back(rig.allocate(4096));
  Capture capture(rig);
  rig.free(native);
  for (const CUdeviceptr block : small) rig.free(block);
  CHECK(listed(report(rig), BlockState::deferred) == kNative_bytes + 64 * 4096);
  capture.end();
  const std::size_t before_bytes = told_free_bytes(rig);
  rig.allocate(4096);  // behind an event now
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.allocate(40 * kMiB);  // finds it over, and gives the driver nothing: that could block
  REQUIRE(rig.pools().find(native, nullptr) == Ownership::vacant);
  const observe::DeviceSnapshot device = report(rig);
  CHECK(part(device, "free_releasable") >= kNative_bytes);
  CHECK(told_free_bytes(rig) + 4096 + 40 * kMiB == before_bytes);  // natively the driver had it by now
  CHECK(rig.pools().trim() >= kNative_bytes);
  CHECK(rig.pools().find(native, nullptr) == Ownership::unknown);
  report(rig);
}

TEST_CASE("an out-of-memory report counts a native block whose free waits for a capture with what waits") {
  RigOptions options;
  options.pool.limit.all = config::parse_amount("33MiB");
  Rig rig(options);
  rig.allocate(22 * kMiB);
  const CUdeviceptr native = rig.allocate(10 * kMiB + 512 * kKiB);  // the limit ends within a region
  REQUIRE(now(rig.counters().native_fallbacks) == 1);
  Capture capture(rig);
  rig.free(native);
  CHECK(rig.try_allocate(10 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  capture.end();
  CHECK(rig.snapshot().ooms.at(0).evidence.releasable_with_deferred_bytes == 10 * kMiB + 512 * kKiB);
  CHECK(rig.try_allocate(10 * kMiB).ok());
}

TEST_CASE("a report that is written while a free synchronises lists its block as the counters do") {
  RigOptions options;
  options.pool.free = config::FreeMode::sync;
  options.pool.policy = GENERATE(config::Policy::grow, config::Policy::async);
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  options.patch = [](DriverApi& api) {
    g_synchronize = api.cuEventSynchronize;
    api.cuEventSynchronize = &report_and_synchronize;
  };
  g_reports = 0;
  Rig rig(options);
  g_rig = &rig;
  const CUdeviceptr block = rig.allocate(3 * kMiB);
  rig.allocate(512);
  rig.free(block);
  CHECK(g_reports == 1);
  report(rig);
}

TEST_CASE("reports add up in the middle of every growth, move and release") {
  RigOptions options;
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  options.memory = "64MiB";
  options.patch = &report_at_memory_calls;
  g_rig = nullptr;
  g_reports = 0;
  Rig rig(options);
  g_rig = &rig;
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  std::vector<CUdeviceptr> blocks;
  std::uint32_t seed = 1;
  for (int i = 0; i < 240; ++i) {
    seed = seed * 1664525 + 1013904223;
    if (i % 40 == 0) REQUIRE(cuCtxSetCurrent(i % 80 == 0 ? other : rig.context()) == CUDA_SUCCESS);  // what one holds goes to the other
    if (const Result<CUdeviceptr> block = rig.try_allocate(1 + (seed >> 8) % (9 * kMiB)); block.ok()) blocks.push_back(block.value());
    if (blocks.size() < 9) continue;
    const std::size_t at = (seed >> 4) % blocks.size();
    rig.free(blocks[at]);
    blocks.erase(blocks.begin() + static_cast<std::ptrdiff_t>(at));
  }
  if (options.pool.backing == config::Backing::pages) {
    CHECK(now(rig.counters().remaps) != 0);
    CHECK(now(rig.counters().handles_released) != 0);
  }
  rig.pools().trim();
  CHECK(g_reports > 100);
  g_rig = nullptr;
}

TEST_CASE("the live page tells what the driver has free as of the last call, for who completes a report after a kill") {
  RigOptions options;
  options.pool.policy = config::Policy::platform;
  Rig rig(options);
  const auto is_true = [&] { CHECK(rig.live().driver_free_bytes.load() == rig.live().total_bytes - cusim_used_bytes(0)); };
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 20; ++i) {
    blocks.push_back(rig.allocate(20 * kMiB));
    is_true();
  }
  for (const CUdeviceptr block : blocks) {
    rig.free(block);
    is_true();
  }
}

TEST_CASE("what the driver has free is told as of now, although it is asked now and then only") {
  RigOptions options;
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  Rig rig(options);
  const auto is_true = [&] {
    const observe::DeviceSnapshot device = report(rig);
    CHECK(device.driver_free_bytes == device.total_bytes - cusim_used_bytes(0));
    CHECK(part(device, "driver_free") == device.driver_free_bytes);
  };
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 20; ++i) {
    blocks.push_back(rig.allocate(8 * kMiB));
    is_true();
  }
  for (const CUdeviceptr block : blocks) rig.free(block);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  REQUIRE(rig.pools().trim() != 0);
  is_true();
}

TEST_CASE("what the driver has free is asked once where no growth asks: by the first allocation") {
  RigOptions options;
  options.pool.policy = GENERATE(config::Policy::platform, config::Policy::async, config::Policy::grow);
  if (options.pool.policy == config::Policy::grow) options.pool.ipc = config::IpcMode::native;
  Rig rig(options);
  Capture capture(rig, CU_STREAM_CAPTURE_MODE_RELAXED);
  const std::uint64_t before = cusim_calls("cuMemGetInfo_v2");
  rig.allocate(100 * kMiB);
  CHECK(cusim_calls("cuMemGetInfo_v2") == before);  // never while something captures
  CHECK(part(report(rig), "unattributed") == 0);
  CHECK(part(report(rig), "unknown") == kGiB - 100 * kMiB);
  capture.end();
  rig.allocate(100 * kMiB);
  rig.allocate(100 * kMiB);
  CHECK(cusim_calls("cuMemGetInfo_v2") == before + 1);
  const observe::DeviceSnapshot device = report(rig);
  CHECK(part(device, "driver_free") == kGiB - 300 * kMiB);
  CHECK(part(device, "unattributed") == 0);
  CHECK(part(device, "unknown") == 0);
}

TEST_CASE("what the driver has free is asked once where no growth asks: by the first memory outside the pool, of its device") {
  RigOptions options;
  options.devices = 2;
  Rig rig(options);
  const auto take = [&](int device, std::uint64_t key) {
    REQUIRE(rig.pools().reserve_outside(device, OutsideKind::program_vmm, kMiB, "cuMemCreate").ok());
    rig.pools().commit_outside(device, OutsideKind::program_vmm, key, kMiB);
  };
  const std::uint64_t before = cusim_calls("cuMemGetInfo_v2");
  take(1, 1);  // the current context is of device 0, and would be answered for that
  CHECK(cusim_calls("cuMemGetInfo_v2") == before);
  take(0, 2);
  take(0, 3);
  CHECK(cusim_calls("cuMemGetInfo_v2") == before + 1);
  for (const observe::DeviceSnapshot& device : rig.snapshot().devices) CHECK((device.driver_free_unix_ns != 0) == (device.ordinal == 0));
}

TEST_CASE(
    "an out-of-memory of another device than the current one asks that one, in a context that the pool knows there, and begins or retains none") {
  RigOptions options;
  options.devices = 2;
  options.memory = "1GiB,2GiB";
  options.pool.limit.all = config::parse_amount("1MiB");
  Rig rig(options);
  const bool has_context = GENERATE(true, false);
  const bool is_known = GENERATE(true, false);  // to the pool; else it has been begun again past it
  if (!has_context || !is_known)
    rig.pools().end_context(
        rig.context(1), [] { return cuDevicePrimaryCtxRelease_v2(1); }, [] { return true; });
  CUcontext again = nullptr;
  if (has_context && !is_known) REQUIRE(cuDevicePrimaryCtxRetain(&again, 1) == CUDA_SUCCESS);
  CUcontext before = nullptr;
  REQUIRE(cuCtxGetCurrent(&before) == CUDA_SUCCESS);
  CHECK_FALSE(rig.pools().reserve_outside(1, OutsideKind::program_vmm, 2 * kMiB, "cuMemCreate").ok());
  CHECK_FALSE(rig.pools().reserve_outside(0, OutsideKind::program_vmm, 2 * kMiB, "cuMemCreate").ok());
  const observe::Snapshot snapshot = rig.snapshot();
  CHECK(snapshot.ooms.at(0).evidence.driver_free_bytes == (has_context && is_known ? std::optional<std::uint64_t>(2 * kGiB) : std::nullopt));
  CHECK(snapshot.ooms.at(1).evidence.driver_free_bytes == kGiB);
  CUcontext after = nullptr;
  unsigned flags = 0;
  int is_active = -1;
  REQUIRE(cuCtxGetCurrent(&after) == CUDA_SUCCESS);
  REQUIRE(cuDevicePrimaryCtxGetState(1, &flags, &is_active) == CUDA_SUCCESS);
  CHECK(after == before);
  CHECK((is_active != 0) == has_context);
}

namespace {
CUresult (*g_wait_for_event)(CUevent) = nullptr;

/// Inside the driver, where the lock is not held.
CUresult wait_and_run_out(CUevent event) {
  CHECK(g_rig->try_allocate(16 * kGiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  return g_wait_for_event(event);
}
}  // namespace

TEST_CASE("an out-of-memory beside a free that waits in the driver counts that block among what waits") {
  RigOptions options;
  options.pool.policy = GENERATE(config::Policy::grow, config::Policy::async);
  options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
  options.pool.free = config::FreeMode::sync;
  options.patch = [](DriverApi& api) {
    g_wait_for_event = api.cuEventSynchronize;
    api.cuEventSynchronize = &wait_and_run_out;
  };
  Rig rig(options);
  g_rig = &rig;
  rig.free(rig.allocate(10 * kMiB));
  g_rig = nullptr;
  const std::vector<observe::OomRecord> ooms = rig.snapshot().ooms;
  REQUIRE(ooms.size() == 1);
  const observe::OomEvidence& evidence = ooms.front().evidence;
  CHECK(evidence.deferred_bytes == 10 * kMiB);
  CHECK(std::max(evidence.largest_free_with_deferred_bytes, *evidence.releasable_with_deferred_bytes) <=
        evidence.pool_free_bytes + evidence.deferred_bytes);
  CHECK(now(rig.counters().deferred_bytes) == 0);
}

TEST_CASE("a refusal beside a current context that has ended asks the driver nothing that needs one") {
  Rig rig;
  rig.free(rig.allocate(kMiB));
  rig.reset_device();  // it stays current
  rig.pools().warn_of_refusal(0, "cuDevicePrimaryCtxRetain");
  rig.pools().note_refusal(0, kMiB, {"cuMemCreate"});
  CHECK(rig.pools().take_messages().size() == 1);
  CHECK_FALSE(rig.snapshot().ooms.at(0).evidence.driver_free_bytes);
}
