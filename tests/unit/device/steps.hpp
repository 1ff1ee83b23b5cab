// Steps of jobs: what several tests repeat, and measure the calls of.
#pragma once

#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/conformance/random_step.hpp"
#include "tests/conformance/rig.hpp"

namespace cupool::test {

inline constexpr std::uint64_t kStepKernel_ns = 50'000;

/// `launch()` after each allocation.
template <class F> void run_step(Rig& rig, const std::vector<Operation>& step, F&& launch) {
  std::vector<CUdeviceptr> blocks;
  for (const Operation& operation : step) {
    if (operation.bytes == 0) {
      rig.free(blocks.at(operation.index));
      continue;
    }
    blocks.push_back(rig.allocate(operation.bytes));
    launch();
  }
}

}  // namespace cupool::test
