// Host time of a driver call, many times: the median and the spread, never the mean.
#pragma once

#include <algorithm>
#include <chrono>

#include "tests/gpu/probes/probe.hpp"

namespace probe {

[[nodiscard]] inline std::uint64_t now_ns() {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

class Samples {
 public:
  /// Times one call; its result goes through prepare, so that only successful calls are measured.
  template <class Call> void time(const char* step, Call&& call) {
    const std::uint64_t start = now_ns();
    const CUresult code = call();
    const std::uint64_t end = now_ns();
    prepare(code, step);
    taken_ns_.push_back(end - start);
  }
  [[nodiscard]] Json json() const {
    if (taken_ns_.empty()) throw Unprepared("nothing was measured");
    std::vector<std::uint64_t> sorted = taken_ns_;
    std::sort(sorted.begin(), sorted.end());
    const auto at = [&](std::size_t percent) { return std::to_string(sorted[(sorted.size() - 1) * percent / 100]); };
    return Json::raw("{\"median_ns\": " + at(50) + ", \"p10_ns\": " + at(10) + ", \"p90_ns\": " + at(90) + ", \"p99_ns\": " + at(99) +
                     ", \"max_ns\": " + at(100) + ", \"first_ns\": " + std::to_string(taken_ns_.front()) +
                     ", \"count\": " + std::to_string(sorted.size()) + "}");
  }

 private:
  std::vector<std::uint64_t> taken_ns_;
};

}  // namespace probe
