// Turns of calls that may make pools of the driver grow, and what is late to go back. pool/device/pool_growth.hpp.
#include <catch2/catch.hpp>

#include <functional>

#include "pool/device/pool_growth.hpp"

using namespace cupool;
using cupool::device::LimitAccount;
using cupool::device::PoolGrowth;

namespace {
/// Time stands still; something happens at each pause.
struct Pauses final : Clock {
  std::uint64_t now_ns() const override { return 0; }
  void pause(std::uint64_t) override {
    ++count;
    if (each) each();
  }
  std::uint64_t count = 0;
  std::function<void()> each;
};

struct Growth {
  explicit Growth(std::uint64_t limit_bytes) : limit(limit_bytes) {}
  LimitAccount limit;
  Pauses clock;
  PoolGrowth growth{limit, clock};
};
}  // namespace

TEST_CASE("pool growth: without a limit, and far from it, calls are in the driver together") {
  for (const std::uint64_t limit_bytes : {std::uint64_t{0}, 99 * kMiB + 3}) {
    Growth of(limit_bytes);
    const PoolGrowth::Turn first = of.growth.begin(1 * kMiB);
    const PoolGrowth::Turn second = of.growth.begin(1 * kMiB);
    const PoolGrowth::Turn third = of.growth.begin(1 * kMiB + 3);
    CHECK(of.clock.count == 0);
  }
}

TEST_CASE("pool growth: a call that could pass the limit together with others waits until they are over, and is alone") {
  Growth of(100 * kMiB);
  REQUIRE(of.limit.charge(36 * kMiB));
  PoolGrowth::Turn first = of.growth.begin(1 * kMiB);
  of.clock.each = [&] { first.end(); };
  PoolGrowth::Turn second = of.growth.begin(1 * kMiB);
  CHECK(of.clock.count == 1);
  REQUIRE(of.limit.charge(40 * kMiB));
  second.end();
  PoolGrowth::Turn alone = of.growth.begin(1 * kMiB);
  CHECK(of.clock.count == 1);
  of.limit.refund(76 * kMiB);  // what the limit has left meanwhile, enough for both, lets nobody in
  of.clock.each = [&] { alone.end(); };
  const PoolGrowth::Turn last = of.growth.begin(512);
  CHECK(of.clock.count == 2);
}

TEST_CASE("pool growth: a thread that the driver keeps is waited for a second, and for no longer by those who come later") {
  Growth of(16 * kMiB);
  PoolGrowth::Turn kept = of.growth.begin(1 * kMiB);
  PoolGrowth::Turn second = of.growth.begin(1 * kMiB);
  CHECK(of.clock.count * kDriverCallPause_ns >= 1'000'000'000);
  const std::uint64_t pauses = of.clock.count;
  kept.end();  // says nothing about the second
  of.clock.each = [&] { second.end(); };
  const PoolGrowth::Turn third = of.growth.begin(1 * kMiB);
  CHECK(of.clock.count == pauses + 1);
}

TEST_CASE("pool growth: what lies in a late step is known by its address, however many there are") {
  Growth of(64 * kMiB);
  constexpr std::uint64_t kStep = PoolGrowth::kStep_bytes;
  CHECK_FALSE(of.growth.has_late());
  for (std::uint64_t i = 1; i <= 20; ++i) of.growth.note_late(i * 10 * kStep, 2 * kMiB, kStep);
  CHECK(of.growth.has_late());
  for (std::uint64_t i = 1; i <= 20; ++i) {
    CHECK(of.growth.is_late(i * 10 * kStep + kStep - 512, 512));
    CHECK(of.growth.is_late(i * 10 * kStep + 2 * kMiB - kStep, 512));
  }
  CHECK_FALSE(of.growth.is_late(10 * kStep + kStep, 512));
  CHECK_FALSE(of.growth.is_late(10 * kStep + 2 * kMiB - kStep - 512, 512));
  of.growth.forget_late();
  CHECK_FALSE(of.growth.is_late(10 * kStep, 512));
}
