// What page_model measures of one job under one rule, and the rules that it compares.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/bench/page_model/page_pool.hpp"
#include "tests/bench/trace.hpp"

namespace page_model {

struct Figures {
  double ratio = 0, calls = 0, later = 0, waits = 0, moved = 0, fresh = 0;
  bool completes = false;      ///< at 1.05 times the smallest capacity
  bool over_capacity = false;  ///< above 1.02 x peak + 8 MiB
};

/// Bisects the capacity, then replays at 1.05 times it. With `check`, throws std::logic_error at the first broken invariant.
Figures measure(const trace::Trace& job, const Rule& rule, std::uint64_t pending, bool check);

/// `best` first, then with one thing changed in each.
std::vector<Rule> rules_to_compare(const Rule& best);

}  // namespace page_model
