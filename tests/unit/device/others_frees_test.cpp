// What other threads freed: natively they had waited, so an allocation that needs it waits as well, but never without end. That work may be waiting for
// the thread that allocates, which natively would have been refused, and gone on.
#include <catch2/catch.hpp>

#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "pool/device/device_pool.hpp"
#include "pool/device/patience.hpp"
#include "tests/conformance/rig.hpp"
#include "tests/unit/device/guest_clock.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::size_t kFreed_bytes = 512 * kMiB;
constexpr std::size_t kSmall_bytes = 64 * kMiB;
constexpr std::size_t kWanted_bytes = 256 * kMiB;

/// A full device of 1 GiB, of which 512 MiB are `block`'s and 64 MiB `small`'s.
struct Full {
  explicit Full(config::Backing backing, Clock* clock = nullptr, const char* limit = nullptr) : rig(options(backing, clock, limit)) {
    block = rig.allocate(kFreed_bytes);
    small = rig.allocate(kSmall_bytes);
    for (std::size_t bytes = kFreed_bytes + kSmall_bytes; bytes != kGiB; bytes += 32 * kMiB) rig.allocate(32 * kMiB);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    started_ns = cusim_now_ns();
  }
  static RigOptions options(config::Backing backing, Clock* clock, const char* limit) {
    RigOptions options;
    options.pool.backing = backing;
    options.clock = clock;
    if (limit != nullptr) {
      options.memory = "2GiB";
      options.pool.limit.all = config::parse_amount(limit);
    }
    return options;
  }
  void run(std::uint64_t duration_ns) { REQUIRE(cusim_launch_spin(stream, duration_ns) == CUDA_SUCCESS); }
  void run_until_told() { REQUIRE(cusim_launch_wait_host(stream, &told) == CUDA_SUCCESS); }
  /// By another thread, of which nothing is left then.
  void others_free(CUdeviceptr address) {
    std::thread([this, address] {
      rig.use(0);
      rig.free(address);
    }).join();
  }
  std::uint64_t passed_ns() const { return cusim_now_ns() - started_ns; }

  volatile std::uint32_t told = 0;
  Rig rig;
  CUdeviceptr block = 0;
  CUdeviceptr small = 0;
  CUstream stream = nullptr;
  std::uint64_t started_ns = 0;
};

config::Backing each_backing() { return GENERATE(config::Backing::segments, config::Backing::pages); }

constexpr std::uint64_t kBound_ns = device::DevicePool::kPollBound_ns + device::Patience::kFreedBound_ns;

}  // namespace

TEST_CASE("others' frees: an allocation that needs what another thread freed waits for its work") {
  Full full(each_backing());
  full.run(50 * kS);
  full.others_free(full.block);
  CHECK(full.rig.try_allocate(kWanted_bytes).ok());
  CHECK(full.passed_ns() >= 50 * kS);
}

TEST_CASE("others' frees: where that work waits for the thread that allocates, memory is out") {
  Full full(each_backing());
  full.run_until_told();
  full.others_free(full.block);
  CHECK(full.rig.try_allocate(kWanted_bytes).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(full.passed_ns() >= kBound_ns);
  CHECK(full.passed_ns() < kBound_ns + kS);
  tell(full.told);
  CHECK(full.rig.try_allocate(kWanted_bytes).ok());
}

TEST_CASE("others' frees: so it is where several were freed") {
  Rig rig(Full::options(each_backing(), nullptr, nullptr));
  const std::array blocks{rig.allocate(kSmall_bytes), rig.allocate(kSmall_bytes)};
  volatile std::uint32_t told = 0;
  REQUIRE(cusim_launch_wait_host(CU_STREAM_PER_THREAD, &told) == CUDA_SUCCESS);
  for (const CUdeviceptr block : blocks) {
    std::thread([&] {
      rig.use(0);
      rig.free(block);
    }).join();
  }
  REQUIRE(now(rig.counters().epochs_closed) == 2);
  CHECK(rig.try_allocate(kGiB - kSmall_bytes).code() == CUDA_ERROR_OUT_OF_MEMORY);
  tell(told);
  CHECK(rig.try_allocate(kGiB - kSmall_bytes).ok());
}

TEST_CASE("others' frees: so it is while the other thread waits for that work without end") {
  Full full(each_backing());
  full.run_until_told();
  std::atomic<bool> has_freed = false;
  bool is_served = false;
  std::thread other([&] {
    full.rig.use(0);
    full.rig.free(full.block);
    has_freed = true;
    is_served = full.rig.try_allocate(kWanted_bytes).ok();
  });
  while (!has_freed) std::this_thread::yield();
  CHECK(full.rig.try_allocate(kWanted_bytes).code() == CUDA_ERROR_OUT_OF_MEMORY);
  tell(full.told);
  other.join();
  CHECK(is_served);
}

TEST_CASE("others' frees: what this thread freed itself is waited for without end, also behind what another freed") {
  Full full(each_backing());
  full.run(3600 * kS);
  const bool is_behind = GENERATE(false, true);
  if (is_behind) full.others_free(full.small);
  full.rig.free(full.block);
  CHECK(full.rig.try_allocate(kWanted_bytes).ok());
  CHECK(full.passed_ns() >= 3600 * kS);
}

TEST_CASE("others' frees: what this thread freed itself is waited for without end, also behind an epoch that another closed") {
  Rig rig(Full::options(each_backing(), nullptr, nullptr));
  rig.allocate(480 * kMiB);
  const std::array blocks{rig.allocate(40 * kMiB), rig.allocate(80 * kMiB)};
  REQUIRE(cusim_launch_spin(CU_STREAM_PER_THREAD, 3600 * kS) == CUDA_SUCCESS);
  std::thread([&] {
    rig.use(0);
    rig.free(blocks[0]);
  }).join();
  rig.free(blocks[1]);
  const std::uint64_t started_ns = cusim_now_ns();
  REQUIRE(now(rig.counters().deferred_bytes) == 120 * kMiB);  // so little that no free waits for it
  REQUIRE(now(rig.counters().epochs_closed) == 2);
  const std::uint64_t questions = cusim_calls("cuEventQuery");
  CHECK(rig.try_allocate(490 * kMiB).ok());
  CHECK(cusim_now_ns() >= started_ns + 3600 * kS - kS);
  CHECK(cusim_calls("cuEventQuery") - questions < 10);  // it does not ask again and again
}

TEST_CASE("others' frees: what this thread freed itself is waited for without end, also behind what another waits for in another context") {
  ClockWithGuest clock;
  Rig rig(Full::options(each_backing(), &clock, nullptr));
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  const CUdeviceptr own = rig.allocate(kFreed_bytes);
  rig.use(0);
  const CUdeviceptr others = rig.allocate(kFreed_bytes);
  volatile std::uint32_t told = 0;
  REQUIRE(cusim_launch_wait_host(CU_STREAM_PER_THREAD, &told) == CUDA_SUCCESS);
  bool is_served = false;
  std::thread other([&] {
    rig.use(0);
    rig.free(others);
    is_served = rig.try_allocate(kWanted_bytes).ok();
  });
  while (cusim_calls("cuEventSynchronize") == 0) std::this_thread::yield();
  REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(CU_STREAM_PER_THREAD, 3 * kBound_ns) == CUDA_SUCCESS);
  const std::uint64_t started_ns = cusim_now_ns();
  clock.each = [&] {
    if (cusim_now_ns() > started_ns + 2 * kBound_ns) tell(told);
  };
  rig.free(own);
  CHECK(rig.try_allocate(kWanted_bytes).ok());
  CHECK(cusim_now_ns() >= started_ns + 2 * kBound_ns);
  tell(told);  // it may be served before: natively the other context's work is not in its way
  other.join();
  CHECK(is_served);
}

TEST_CASE("others' frees: what this thread freed is not waited for together with what another freed later") {
  Full full(each_backing());
  full.run(2 * kS);
  full.rig.free(full.small);
  full.run_until_told();
  full.others_free(full.block);
  CHECK(full.rig.try_allocate(kSmall_bytes).ok());
  CHECK(full.passed_ns() < 3 * kS);
  tell(full.told);
}

TEST_CASE("others' frees: for what is freed while an allocation waits it waits no longer than a second") {
  ClockWithGuest clock;
  Full full(each_backing(), &clock);
  full.run(kS / 2);
  full.others_free(full.small);
  bool is_served = false;
  clock.guest = [&] {  // another thread takes what would do, and frees it again behind longer work
    std::thread([&] {
      full.rig.use(0);
      const Result<CUdeviceptr> taken = full.rig.try_allocate(kSmall_bytes);
      is_served = taken.ok();
      full.run(50 * kS);
      full.rig.free(taken.value());
    }).join();
  };
  CHECK(full.rig.try_allocate(kSmall_bytes).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(is_served);
  CHECK(full.passed_ns() < 2 * kS);
}

TEST_CASE("others' frees: nobody waits where all that could come back is too little") {
  const bool is_limited = GENERATE(false, true);
  const std::size_t more_bytes = GENERATE(0, 2 * kMiB);
  Full full(each_backing(), nullptr, is_limited ? "1GiB" : nullptr);
  full.run(50 * kS);
  full.others_free(full.block);
  CHECK(full.rig.try_allocate(kFreed_bytes + more_bytes).ok() == (more_bytes == 0));
  CHECK((full.passed_ns() < kS) == (more_bytes != 0));
}

TEST_CASE("others' frees: before nobody waits the driver is asked, which may have more than was known") {
  Rig rig(Full::options(each_backing(), nullptr, nullptr));
  CUdeviceptr outside = 0;
  REQUIRE(cuMemAlloc_v2(&outside, 128 * kMiB) == CUDA_SUCCESS);
  const CUdeviceptr block = rig.allocate(kFreed_bytes);
  while (rig.try_allocate(32 * kMiB).ok()) {}
  REQUIRE(cuMemFree_v2(outside) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(CU_STREAM_PER_THREAD, 50 * kS) == CUDA_SUCCESS);
  std::thread([&] {
    rig.use(0);
    rig.free(block);
  }).join();
  CHECK(rig.try_allocate(kFreed_bytes + 128 * kMiB).ok());
}

TEST_CASE("others' frees: make_room waits for them, but not without end") {
  const bool is_told = GENERATE(false, true);
  Full full(each_backing());
  if (is_told) full.run(50 * kS);
  else full.run_until_told();
  full.others_free(full.block);
  CHECK(full.rig.pools().make_room() == is_told);
  CHECK(full.passed_ns() >= (is_told ? 50 * kS : kBound_ns));
  CHECK(full.passed_ns() < kBound_ns + kS);
  tell(full.told);
}

TEST_CASE("others' frees: where too much waits a free waits for what another thread freed in the same context, and not for its own work") {
  Full full(GENERATE(config::Backing::segments, config::Backing::pages));
  full.run(5 * kMs);
  full.others_free(full.block);
  CHECK(full.passed_ns() < 5 * kMs);
  full.rig.free(full.small);
  CHECK(full.passed_ns() >= 5 * kMs);
  CHECK(now(full.rig.counters().deferred_bytes) <= kSmall_bytes);
}

TEST_CASE("others' frees: a free does not wait for what another thread freed in another context") {
  Rig rig(Full::options(each_backing(), nullptr, nullptr));
  const CUdeviceptr block = rig.allocate(768 * kMiB);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const std::uint64_t end_ns = cusim_now_ns() + 50 * kS;
  REQUIRE(cusim_launch_spin(stream, 50 * kS) == CUDA_SUCCESS);
  CUcontext second = nullptr;
  REQUIRE(cuCtxCreate_v2(&second, 0, 0) == CUDA_SUCCESS);
  const std::array own{rig.allocate(64 * kMiB), rig.allocate(64 * kMiB)};
  const bool is_others = GENERATE(false, true);
  const auto free = [&] {
    rig.use(0);
    rig.free(block);
  };
  if (is_others) std::thread(free).join();
  else free();
  REQUIRE(cuCtxSetCurrent(second) == CUDA_SUCCESS);
  for (const CUdeviceptr one : own) rig.free(one);
  CHECK((cusim_now_ns() < end_ns) == is_others);
}

namespace {
/// A device of 1 GiB with two contexts, one of them current: three blocks of 256 MiB in that, work in a stream of the other.
struct TwoContexts {
  explicit TwoContexts(std::uint64_t duration_ns) : rig(Full::options(each_backing(), nullptr, nullptr)) {
    std::array<CUcontext, 2> contexts{rig.context(), nullptr};
    REQUIRE(cuCtxCreate_v2(&contexts[1], 0, 0) == CUDA_SUCCESS);
    for (const CUcontext context : contexts) {
      REQUIRE(cuCtxSetCurrent(context) == CUDA_SUCCESS);
      rig.allocate(kMiB);
    }
    if (GENERATE(false, true)) std::swap(contexts[0], contexts[1]);
    REQUIRE(cuCtxSetCurrent(contexts[1]) == CUDA_SUCCESS);
    launch(duration_ns);
    first = contexts[0];
    use_first();
    for (CUdeviceptr& block : blocks) block = rig.allocate(256 * kMiB);
  }
  void use_first() const { REQUIRE(cuCtxSetCurrent(first) == CUDA_SUCCESS); }
  static void launch(std::uint64_t duration_ns) {
    CUstream stream = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_spin(stream, duration_ns) == CUDA_SUCCESS);
  }

  Rig rig;
  std::array<CUdeviceptr, 3> blocks{};
  CUcontext first = nullptr;
};
}  // namespace

TEST_CASE(
    "others' frees: for the work of contexts that no free waits for natively an allocation waits a fifth of a second, or five where devices are "
    "linked") {
  const bool is_linked = GENERATE(false, true);
  const std::uint64_t duration_ns = GENERATE(4, 40) * kS;
  TwoContexts two(duration_ns);
  if (is_linked) two.rig.pools().link_devices();
  const std::uint64_t started_ns = cusim_now_ns();
  for (const CUdeviceptr block : two.blocks) two.rig.free(block);
  CHECK(two.rig.try_allocate(512 * kMiB).ok() == (!is_linked || duration_ns == 4 * kS));
  CHECK(cusim_now_ns() < started_ns + (is_linked ? 6 * kS : kS));
}

TEST_CASE("others' frees: behind a free whose own work is over there may be one that still had been waited for natively") {
  TwoContexts two(40 * kS);
  const std::uint64_t started_ns = cusim_now_ns();
  const bool is_others = GENERATE(false, true);
  const auto free = [&] {
    two.use_first();
    two.rig.free(two.blocks[0]);
    TwoContexts::launch(50 * kS);
    two.rig.free(two.blocks[1]);
    two.rig.free(two.blocks[2]);
  };
  if (is_others) std::thread(free).join();
  else free();
  CHECK(two.rig.try_allocate(512 * kMiB).ok());
  CHECK(cusim_now_ns() >= started_ns + 50 * kS);
}
