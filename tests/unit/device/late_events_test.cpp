// Frees that share an event recorded after them: work that began in between is in front of it, which natively is in nobody's way.
#include <catch2/catch.hpp>

#include <thread>

#include "pool/device/device_pool.hpp"
#include "pool/device/patience.hpp"
#include "tests/conformance/rig.hpp"
#include "tests/unit/device/guest_clock.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kLateBound_ns = device::DevicePool::kPollBound_ns + device::Patience::kLateBound_ns;

/// A device of 1 GiB of which 500 MiB live, and 40 MiB in blocks that are freed too soon for an event of their own; the work that comes next is in front of the event that they get later.
struct Late {
  explicit Late(Clock* clock = nullptr) : rig(options(clock)) {
    rig.allocate(480 * kMiB);
    other = rig.allocate(20 * kMiB);
    const CUdeviceptr block = rig.allocate(kFreedLate_bytes);
    rig.free(block);
    REQUIRE(now(rig.counters().epochs_closed) == 0);
    started_ns = cusim_now_ns();
  }
  static RigOptions options(Clock* clock) {
    RigOptions options;
    options.pool.backing = GENERATE(config::Backing::segments, config::Backing::pages);
    options.clock = clock;
    return options;
  }
  std::uint64_t passed_ns() const { return cusim_now_ns() - started_ns; }
  bool is_served() { return rig.try_allocate(kGiB - 512 * kMiB).ok(); }

  static constexpr std::size_t kFreedLate_bytes = 40 * kMiB;
  Rig rig;
  CUdeviceptr other = 0;
  std::uint64_t started_ns = 0;
};
}  // namespace

TEST_CASE("late events: an allocation waits for work that began after the free, which natively is not in its way") {
  Late late;
  const bool has_made_room = GENERATE(false, true);
  REQUIRE(cusim_launch_spin(CU_STREAM_PER_THREAD, 4 * kS) == CUDA_SUCCESS);
  while (has_made_room && late.rig.pools().make_room()) {}
  CHECK(late.passed_ns() < 2 * kS);  // that does not know that these frees would do
  CHECK(late.is_served());
  CHECK(late.passed_ns() >= 4 * kS);
  CHECK(late.passed_ns() < 5 * kS);
}

TEST_CASE("late events: where that work waits for the thread that allocates, memory is out, and the next call is told sooner") {
  Late late;
  volatile std::uint32_t told = 0;
  REQUIRE(cusim_launch_wait_host(CU_STREAM_PER_THREAD, &told) == CUDA_SUCCESS);
  CHECK(!late.is_served());
  const std::uint64_t first_ns = late.passed_ns();
  CHECK(first_ns >= kLateBound_ns);
  CHECK(first_ns < kLateBound_ns + kS);
  CHECK(!late.is_served());
  CHECK(late.passed_ns() < first_ns + 2 * kS);
  tell(told);
  CHECK(late.is_served());
}

TEST_CASE("late events: what is freed while a call waits in vain is not given up with the rest") {
  ClockWithGuest clock;
  Late late(&clock);
  volatile std::uint32_t told = 0;
  REQUIRE(cusim_launch_wait_host(CU_STREAM_PER_THREAD, &told) == CUDA_SUCCESS);
  clock.guest = [&] {
    std::thread([&] {
      late.rig.use(0);
      late.rig.free(late.other);
    }).join();
  };
  CHECK(!late.is_served());
  const std::uint64_t first_ns = late.passed_ns();
  CHECK(!late.is_served());
  CHECK(late.passed_ns() >= first_ns + kLateBound_ns);
  const std::uint64_t second_ns = late.passed_ns();
  CHECK(!late.is_served());
  CHECK(late.passed_ns() < second_ns + 2 * kS);
  tell(told);
  CHECK(late.is_served());
}
