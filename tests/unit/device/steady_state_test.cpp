// A training job that repeats itself costs the driver nothing from the third step on.
#include <deque>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
/// Activations grow layer by layer, gradients replace them backwards, temporaries come and go: sizes as in a small model.
void training_step(Rig& rig, CUstream stream) {  // the device has done nothing of it at its end
  std::vector<CUdeviceptr> activations;
  for (std::size_t layer = 1; layer <= 48; ++layer) {
    const CUdeviceptr workspace = rig.allocate(layer * 37 * kKiB);
    activations.push_back(rig.allocate(layer * 90 * kKiB));
    REQUIRE(cusim_launch_spin(stream, 50'000) == CUDA_SUCCESS);
    rig.free(workspace);
  }
  while (!activations.empty()) {
    const CUdeviceptr gradient = rig.allocate(activations.size() * 80 * kKiB);
    REQUIRE(cusim_launch_spin(stream, 80'000) == CUDA_SUCCESS);
    rig.free(activations.back());
    rig.free(gradient);
    activations.pop_back();
  }
}

/// The host waits for each step, or (`behind` 1) for the one before.
void check_steady(const RigOptions& options, std::size_t behind = 0) {
  Rig rig(options);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::deque<CUevent> ends;
  const auto run_step = [&] {
    training_step(rig, stream);
    ends.push_back(nullptr);
    REQUIRE(cuEventCreate(&ends.back(), CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
    REQUIRE(cuEventRecord(ends.back(), stream) == CUDA_SUCCESS);
    if (ends.size() <= behind) return;
    REQUIRE(cuEventSynchronize(ends.front()) == CUDA_SUCCESS);
    REQUIRE(cuEventDestroy_v2(ends.front()) == CUDA_SUCCESS);
    ends.pop_front();
  };
  const int first = 2 + static_cast<int>(behind);
  for (int step = 0; step < first; ++step) run_step();
  for (int step = first; step < 60; ++step) {
    INFO("step " << step);
    const std::uint64_t frees = now(rig.counters().frees);
    const std::uint64_t own_syncs = 1;  // the program's own, at the end of the step
    const std::uint64_t calls = memory_and_sync_calls();
    const std::uint64_t records = cusim_calls("cuCtxRecordEvent");
    const std::uint64_t queries = cusim_calls("cuEventQuery");
    const std::uint64_t exchanges = cusim_calls("cuThreadExchangeStreamCaptureMode");
    run_step();
    const std::uint64_t batches = (now(rig.counters().frees) - frees) / 64 + 1;
    CHECK(memory_and_sync_calls() - calls == own_syncs);
    // 144 frees and about 300 MiB a step: an epoch closes by count or by bytes, whichever is first.
    const std::uint64_t by_bytes = 300 * kMiB / (64 * kMiB) + 1;
    CHECK(cusim_calls("cuCtxRecordEvent") - records <= batches + by_bytes);
    CHECK(cusim_calls("cuEventQuery") - queries <= batches + by_bytes);
    CHECK(cusim_calls("cuThreadExchangeStreamCaptureMode") == exchanges);
  }
  CHECK(now(rig.counters().failed_allocations) == 0);
}
}  // namespace

TEST_CASE("identical training steps: no memory or synchronising call from the third on") { check_steady(RigOptions{}); }

TEST_CASE("identical training steps in a preallocated pool: the same") {
  RigOptions options;
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("75%");
  check_steady(options);
}

TEST_CASE("identical training steps where threads keep large blocks: the same") {
  for (const config::Backing backing : {config::Backing::segments, config::Backing::pages}) {
    RigOptions options;
    options.memory = "64GiB";
    options.pool.backing = backing;
    check_steady(options);
    check_steady(options, 1);
  }
}

TEST_CASE("small blocks: one record and one query per 64 frees, and no other driver call") {
  Rig rig;
  std::vector<CUdeviceptr> ring(512, 0);
  for (CUdeviceptr& slot : ring) slot = rig.allocate(4096);
  const auto churn = [&](int frees) {
    for (int i = 0; i < frees; ++i) {
      CUdeviceptr& slot = ring[static_cast<std::size_t>(i) % ring.size()];
      rig.free(slot);
      slot = rig.allocate(4096);
    }
  };
  churn(6400);
  const std::uint64_t total = cusim_total_calls();
  const std::uint64_t context_reads = cusim_calls("cuCtxGetCurrent");  // the rig's, as the shim's
  churn(6400);
  CHECK(cusim_calls("cuCtxRecordEvent") <= 200);
  CHECK(cusim_calls("cuCtxRecordEvent") >= 45);  // 256 go at once, at most
  CHECK(cusim_calls("cuEventQuery") <= 202);
  CHECK(cusim_total_calls() - total - (cusim_calls("cuCtxGetCurrent") - context_reads) <= 202);
}
