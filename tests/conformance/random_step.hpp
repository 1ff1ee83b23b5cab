// A random step of a job, for tests and benches that repeat one.
#pragma once

#include <cstddef>
#include <vector>

#include "pool/core/bytes.hpp"

namespace cupool::test {

/// One step of a job: allocations, and frees of what an earlier one made.
struct Operation {
  std::size_t bytes = 0;  ///< 0: a free
  std::size_t index = 0;
};

/// Tens of blocks of 0.1 to 60 MiB, some of which are freed in between.
template <class Random> std::vector<Operation> make_step(Random& random) {
  const auto up_to = [&random](std::size_t most) { return static_cast<std::size_t>(random() % most); };
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

}  // namespace cupool::test
