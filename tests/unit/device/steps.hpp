// Steps of jobs: what several tests repeat, and measure the calls of.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/conformance/rig.hpp"

namespace cupool::test {

inline constexpr std::uint64_t kStepKernel_ns = 50'000;

/// One step of a job: allocations, and frees of what an earlier one made.
struct Operation {
  std::size_t bytes = 0;  ///< 0: a free
  std::size_t index = 0;
};

/// Tens of blocks of 0.1 to 60 MiB, some of which are freed in between.
inline std::vector<Operation> make_step(std::mt19937& random) {
  const auto up_to = [&random](std::size_t most) { return random() % most; };
  std::vector<Operation> step;
  std::vector<std::size_t> live;
  const std::size_t blocks = 10 + up_to(50);
  const auto free_at = [&](std::size_t place) {
    step.push_back({0, live[place]});
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(place));
  };
  for (std::size_t i = 0; i < blocks; ++i) {
    step.push_back({(100 + up_to(60'000)) * kKiB, i});
    live.push_back(i);
    if (up_to(3) == 0) free_at(up_to(live.size()));
  }
  while (!live.empty()) free_at(up_to(2) == 0 ? live.size() - 1 : up_to(live.size()));
  return step;
}

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
