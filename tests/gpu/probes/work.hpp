// Work that keeps the GPU busy for a known time without touching memory: a PTX kernel that watches the clock, or the
// simulated driver's own spin.
#pragma once

#include "tests/gpu/probes/probe.hpp"

namespace probe {

class Spin {
 public:
  /// Throws Unprepared or Missing where no kernel can be had.
  Spin();
  void launch(CUstream stream, std::uint64_t duration_ns) const;

 private:
  CUfunction kernel_ = nullptr;
};

}  // namespace probe
