// Every driver call of a workload fails once, at every position, with every kind of error: nothing leaks, nothing breaks,
// and the program sees only what the native driver could have returned from the call it made.
#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

/// Growth, deferral, epochs, pressure, release, native blocks, sync: every road once. Returns what allocations answered.
void workload(Rig& rig, std::vector<CUresult>& answers) {
  std::vector<CUdeviceptr> held;
  const auto take = [&](std::size_t bytes) {
    const Result<CUdeviceptr> block = rig.try_allocate(bytes);
    answers.push_back(block.code());
    if (block.ok()) held.push_back(block.value());
  };
  const auto give_all = [&] {
    for (const CUdeviceptr block : held) {
      const FreeResult result = rig.pools().free(block);
      answers.push_back(result.error.code);
      if (result.outcome == FreeOutcome::failed && rig.pools().find(block, nullptr) == Ownership::live) rig.pools().free(block);
    }
    held.clear();
  };
  CUstream stream = nullptr;
  cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING);
  for (std::size_t i = 0; i < 70; ++i) take((1 + i % 5) * 4096);
  give_all();
  for (int i = 0; i < 5; ++i) take(20 * kMiB);
  cusim_launch_spin(stream, 1'000'000);
  give_all();
  take(90 * kMiB);
  take(30 * kMiB);
  give_all();
  take(110 * kMiB);
  give_all();
  cuStreamSynchronize(stream);
  cuStreamDestroy_v2(stream);
}

void check_every_position(const RigOptions& options, const char* symbol, CUresult code) {
  for (std::uint64_t nth = 1; nth < 200; ++nth) {
    INFO(symbol << " fails with " << code << " at call " << nth);
    Rig rig(options);
    rig.allocate(512);  // the device is known; the fault falls into the workload
    const std::uint64_t before = cusim_calls(symbol);
    cusim_fail(symbol, nth, code, 1);
    std::vector<CUresult> answers;
    workload(rig, answers);
    for (const CUresult answer : answers) {
      INFO("an operation answered " << answer);
      CHECK((answer == CUDA_SUCCESS || answer == code || answer == CUDA_ERROR_OUT_OF_MEMORY));
    }
    REQUIRE(rig.pools().check().empty());
    cusim_fail(symbol, 1, CUDA_SUCCESS, 0);
    // What the driver thinks is allocated is what we think is ours: nothing leaked, nothing was freed twice.
    CHECK(cusim_allocation_count(0) == rig.snapshot().devices.at(0).regions.size());
    rig.pools().trim();
    CHECK(cusim_allocation_count(0) == rig.snapshot().devices.at(0).regions.size());
    if (cusim_calls(symbol) - before < nth) return;  // past the last call
  }
  FAIL("the workload makes more calls than are tried");
}

RigOptions small_device(config::FreeMode free, config::Policy policy = config::Policy::grow) {
  RigOptions options;
  options.memory = "128MiB";
  options.pool.free = free;
  options.pool.policy = policy;
  if (policy == config::Policy::preallocate) options.pool.preallocate = config::parse_amount("50%");
  return options;
}

}  // namespace

TEST_CASE("every driver call fails once at every position: out of memory") {
  for (const char* symbol : {"cuMemAlloc_v2", "cuEventCreate", "cuCtxRecordEvent", "cuMemGetInfo_v2", "cuCtxPushCurrent_v2"})
    check_every_position(small_device(config::FreeMode::deferred), symbol, CUDA_ERROR_OUT_OF_MEMORY);
  check_every_position(small_device(config::FreeMode::deferred, config::Policy::preallocate), "cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY);
  check_every_position(small_device(config::FreeMode::sync), "cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY);
  check_every_position(small_device(config::FreeMode::deferred, config::Policy::platform), "cuMemAlloc_v2", CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("every driver call fails once at every position: an error of its own") {
  for (const char* symbol : {"cuMemAlloc_v2", "cuMemFree_v2", "cuEventCreate", "cuCtxRecordEvent", "cuEventQuery", "cuEventSynchronize",
                             "cuMemGetInfo_v2", "cuCtxPushCurrent_v2", "cuThreadExchangeStreamCaptureMode"})
    check_every_position(small_device(config::FreeMode::deferred), symbol, CUDA_ERROR_UNKNOWN);
  for (const char* symbol : {"cuCtxSynchronize", "cuMemFree_v2", "cuMemAlloc_v2"})
    check_every_position(small_device(config::FreeMode::sync), symbol, CUDA_ERROR_UNKNOWN);
  for (const char* symbol : {"cuMemFree_v2", "cuMemAlloc_v2"})
    check_every_position(small_device(config::FreeMode::deferred, config::Policy::platform), symbol, CUDA_ERROR_UNKNOWN);
}

TEST_CASE("what the driver says of our questions is no answer to the program: a free succeeds once, and takes place once") {
  for (const char* symbol : {"cuEventQuery", "cuCtxRecordEvent", "cuEventCreate", "cuCtxPushCurrent_v2", "cuCtxSynchronize"}) {
    for (const CUresult code : {CUDA_ERROR_NOT_PERMITTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_UNKNOWN}) {
      for (const config::FreeMode mode : {config::FreeMode::deferred, config::FreeMode::sync}) {
        INFO(symbol << " answers " << code);
        Rig rig(small_device(mode));
        const CUdeviceptr block = rig.allocate(64 * kMiB);  // large enough for its free to be due
        cusim_fail(symbol, 1, code, 1000);
        const FreeResult result = rig.pools().free(block);
        CHECK(result.outcome == FreeOutcome::freed);
        CHECK(rig.pools().find(block, nullptr) != Ownership::live);
      }
    }
  }
}

TEST_CASE("a capture that we were not told of: the frees wait, and nothing is lost") {
  check_every_position(small_device(config::FreeMode::deferred), "cuCtxRecordEvent", CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

TEST_CASE("a device whose birth fails is served by the driver, and the next call is pooled") {
  Rig rig;
  // The rig has made the devices known; a second set starts cold.
  auto lives = std::make_unique<observe::LiveDevice[]>(2);
  PoolSet cold(
      *[] {
        static DriverApi api;
        api.cuCtxGetDevice = &cuCtxGetDevice;
        api.cuMemAlloc_v2 = &cuMemAlloc_v2;
        api.cuMemFree_v2 = &cuMemFree_v2;
        api.cuMemGetInfo_v2 = &cuMemGetInfo_v2;
        api.cuDeviceTotalMem_v2 = &cuDeviceTotalMem_v2;
        api.cuCtxGetCurrent = &cuCtxGetCurrent;
        api.cuCtxPushCurrent_v2 = &cuCtxPushCurrent_v2;
        api.cuCtxPopCurrent_v2 = &cuCtxPopCurrent_v2;
        api.cuCtxSynchronize = &cuCtxSynchronize;
        return &api;
      }(),
      config::Options{}, lives.get(), 2);
  cusim_fail("cuCtxGetDevice", 1, CUDA_ERROR_UNKNOWN, 1);
  const Result<CUdeviceptr> drivers = cold.allocate(rig.context(), 4096, "cuMemAlloc_v2");
  REQUIRE(drivers.ok());
  CHECK_FALSE(cold.owns(drivers.value()));
  CHECK(cuMemFree_v2(drivers.value()) == CUDA_SUCCESS);
  const Result<CUdeviceptr> block = cold.allocate(rig.context(), 4096, "cuMemAlloc_v2");
  REQUIRE(block.ok());
  CHECK(cold.free(block.value()).outcome == FreeOutcome::freed);  // with the nine functions that no pool can do without
  CHECK(cold.snapshot(std::chrono::seconds(1)).devices.at(0).uuid == "GPU-ordinal-0");
}
