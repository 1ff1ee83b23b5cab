// A report's sums hold at every moment at which one may be written: the address map, the counters and the figures tell the same.
#include <catch2/catch.hpp>

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
}

/// Ends the capture that it has begun.
class Capture {
 public:
  explicit Capture(Rig& rig) : rig_(rig) {
    REQUIRE(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    const auto mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    REQUIRE(rig.pools().begin_capture(stream_, [&] { return cuStreamBeginCapture_v2(stream_, mode); }, mode) == CUDA_SUCCESS);
  }
  void end() {
    CUgraph graph = nullptr;
    REQUIRE(rig_.pools().end_capture(stream_, [&] { return cuStreamEndCapture(stream_, &graph); }, [] { return false; }) == CUDA_SUCCESS);
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

}  // namespace

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
