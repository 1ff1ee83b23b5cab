// ShortRig: a StreamRig of two streams, short of memory, so that what they free has events of its own.
#pragma once

#include <cstdint>

#include <catch2/catch.hpp>

#include "tests/unit/device/stream_rig.hpp"

namespace cupool::test {

/// Two streams in 64 MiB, for which memory is short from the first free on.
struct ShortRig : StreamRig {
  explicit ShortRig(const RigOptions& options = limited_to("64MiB")) : StreamRig(options), first(new_stream()), second(new_stream()) {
    free_on(on(second, 512), second);
    CHECK(try_on(second, 80 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(cusim_calls("cuStreamWaitEvent") == 0);
  }
  /// What is written into the block is looked at later: whoever writes meanwhile is found out.
  void work_on(CUdeviceptr block, CUstream stream, std::uint8_t value, std::uint64_t duration_ns) {
    REQUIRE(cusim_launch_fill(stream, block, 4096, value, duration_ns) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_check(stream, block, 4096, value, duration_ns) == CUDA_SUCCESS);
  }
  void check_work() {
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(cusim_mismatched_bytes() == 0);
    CHECK(pools().check() == "");
  }
  CUstream first;
  CUstream second;
};

}  // namespace cupool::test
