#include "tests/conformance/rig.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <thread>

#include "tests/sim/sim_driver_api.hpp"

namespace cupool::test {

void SimClock::pause(std::uint64_t duration_ns) {
  cusim_advance_ns(duration_ns);
  // Not sched_yield: threads that pause in turn would keep the simulator's lock from one that is in a driver call, while a second passes.
  std::this_thread::sleep_for(std::chrono::microseconds(1));
}

void DriversClock::pause(std::uint64_t) { std::this_thread::sleep_for(std::chrono::microseconds(1)); }

Rig::Rig(const RigOptions& options) {
  cusim_configure("DEVICES", std::to_string(options.devices).c_str());
  cusim_configure("MEMORY", options.memory);
  cusim_configure("DRIVER_VERSION", options.driver_version);
  cusim_reset();
  const DriverApi& api = cusim_driver_api();
  REQUIRE(api.cuInit(0) == CUDA_SUCCESS);
  lives_ = std::make_unique<observe::LiveDevice[]>(observe::kMaxDevices);
  api_ = api;
  if (options.patch != nullptr) options.patch(api_);
  pools_ = std::make_unique<PoolSet>(api_, options.pool, lives_.get(), observe::kMaxDevices, options.clock != nullptr ? options.clock : &clock_);
  for (int device = 0; device < options.devices; ++device) {
    CUcontext context = nullptr;
    REQUIRE(api.cuDevicePrimaryCtxRetain(&context, device) == CUDA_SUCCESS);
    contexts_.push_back(context);
    pools_->context_seen(context, device);
  }
  use(0);
}

Rig::~Rig() {
  const std::string broken = pools_->check();
  if (!broken.empty()) FAIL_CHECK("invariant: " << broken);
  if (violations_expected_) return;
  for (std::size_t i = 0; i < cusim_violation_count(); ++i) FAIL_CHECK("the simulated driver saw: " << cusim_violation(i));
}

void Rig::use(int device) { REQUIRE(cuCtxSetCurrent(context(device)) == CUDA_SUCCESS); }

Result<CUdeviceptr> Rig::try_allocate(std::size_t bytes) {
  CUcontext current = nullptr;
  if (const CUresult code = cuCtxGetCurrent(&current); code != CUDA_SUCCESS) return Error{code, "cuCtxGetCurrent"};
  return pools_->allocate(current, bytes, "cuMemAlloc_v2");
}

CUdeviceptr Rig::allocate(std::size_t bytes) {
  const Result<CUdeviceptr> block = try_allocate(bytes);
  INFO("allocating " << bytes << " bytes: " << block.error().where);
  REQUIRE(block.code() == CUDA_SUCCESS);
  return block.value();
}

void Rig::ask_for_odd_sizes() {
  for (int i = 0; i < 8; ++i) REQUIRE(try_allocate((std::size_t{1} << 40) + 512).code() == CUDA_ERROR_OUT_OF_MEMORY);
}

void Rig::free(CUdeviceptr address) {
  const FreeResult result = pools_->free(address);
  REQUIRE(result.error.code == CUDA_SUCCESS);
  REQUIRE(result.outcome == FreeOutcome::freed);
}

void Rig::reset_device(int device) {
  const CUresult code = pools_->end_context(
      context(device), [&] { return cuDevicePrimaryCtxReset_v2(device); },
      [&] {
        unsigned int flags = 0;
        int active = 1;
        cuDevicePrimaryCtxGetState(device, &flags, &active);
        return active == 0;
      },
      PoolBlocks::go);
  REQUIRE(code == CUDA_SUCCESS);
}

CUstream new_stream() {
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  return stream;
}

std::uint64_t memory_and_sync_calls() {
  std::uint64_t calls = 0;
  for (const char* symbol : {"cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuMemCreate", "cuMemMap", "cuMemUnmap", "cuMemSetAccess",
                             "cuMemRelease", "cuCtxSynchronize", "cuEventSynchronize", "cuStreamSynchronize"})
    calls += cusim_calls(symbol);
  return calls;
}

}  // namespace cupool::test
