// A clock at whose pauses something happens, and a word to the work that waits for one: for tests in which a call waits and others go on.
#pragma once

#include <cstdint>
#include <functional>
#include <utility>

#include "pool/core/clock.hpp"
#include "tests/conformance/rig.hpp"

namespace cupool::test {

inline constexpr std::uint64_t kS = 1'000'000'000;

/// Work waits for it, on whichever thread.
inline void tell(volatile std::uint32_t& flag) { __atomic_store_n(&flag, 1U, __ATOMIC_RELEASE); }

/// Something happens at the first pause that the pool makes.
class ClockWithGuest final : public Clock {
 public:
  std::uint64_t now_ns() const override { return clock_.now_ns(); }
  void pause(std::uint64_t duration_ns) override {
    if (const auto once = std::exchange(guest, nullptr)) once();
    if (each) each();
    clock_.pause(duration_ns);
  }
  std::function<void()> guest;
  std::function<void()> each;  ///< at every one

 private:
  SimClock clock_;
};

}  // namespace cupool::test
