// What tests of streams' frees in captures share, on drivers without events that cover a context.
#pragma once

#include <catch2/catch.hpp>

#include "tests/unit/device/beside.hpp"

namespace cupool::test {

inline constexpr std::size_t kMost_bytes = 40 * kMiB;  // no two of them fit

inline RigOptions before_12_5(int devices = 1) {
  RigOptions options = limited_to("64MiB");
  options.driver_version = "12040";
  options.devices = devices;
  return options;
}

/// The stream, in the current context, may have come into the capture: a thread is making it wait for something, until all captures are over.
inline void join(Rig& rig, CUstream stream) {
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  rig.pools().stream_will_wait(stream);
  REQUIRE(cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS);
}

/// The block is freed on the stream, which may have come into the capture.
inline void join_and_free(StreamRig& rig, CUdeviceptr block, CUstream stream) {
  join(rig, stream);
  rig.free_on(block, stream);
}

/// The same behind work that lasts until the host has set `*released`.
inline void join_and_free(StreamRig& rig, CUdeviceptr block, CUstream stream, volatile std::uint32_t* released) {
  REQUIRE(cusim_launch_wait_host(stream, released) == CUDA_SUCCESS);
  join_and_free(rig, block, stream);
}

/// The block is freed on the stream, which has work for so long, while something captures.
inline void free_in_capture(StreamRig& rig, CUdeviceptr block, CUstream stream, std::uint64_t duration_ns) {
  during_capture(rig, [&] {
    REQUIRE(cusim_launch_spin(stream, duration_ns) == CUDA_SUCCESS);
    join_and_free(rig, block, stream);
  });
}

inline std::uint64_t waits_of_driver() {
  return cusim_calls("cuCtxSynchronize") + cusim_calls("cuEventSynchronize") + cusim_calls("cuStreamSynchronize");
}

}  // namespace cupool::test
