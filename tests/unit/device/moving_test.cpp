// Memory that one thread takes to the driver, or from it, is on no list meanwhile: whoever finds none waits for that thread, and looks again.
#include <catch2/catch.hpp>

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

std::atomic<bool> g_holds{false};  ///< the next call that gives memory back, or takes it, is kept in the driver until ...
std::atomic<bool> g_is_inside{false};
std::atomic<bool> g_may_go_on{false};  ///< ... the other thread pauses, or has been answered
std::atomic<bool> g_is_done{false};    ///< the thread that was kept has done all it had to do

void keep() {
  if (!g_holds.exchange(false)) return;
  g_is_inside = true;
  while (!g_may_go_on) std::this_thread::yield();
}

/// The other thread is waiting once it pauses.
class TellingClock final : public Clock {
 public:
  std::uint64_t now_ns() const override { return cusim_now_ns(); }
  void pause(std::uint64_t) override {
    g_may_go_on = true;
    std::this_thread::yield();
  }
};

/// A pause lasts until the kept thread is done: what is looked at next is not what that thread has in its hands for a moment.
class PatientClock final : public Clock {
 public:
  std::uint64_t now_ns() const override { return cusim_now_ns(); }
  void pause(std::uint64_t) override {
    g_may_go_on = true;
    while (!g_is_done) std::this_thread::yield();
  }
};

CUresult (*g_unmap)(CUdeviceptr, std::size_t) = nullptr;
CUresult (*g_free_async)(CUdeviceptr, CUstream) = nullptr;
CUresult (*g_take_handle)(CUmemGenericAllocationHandle*, std::size_t, const CUmemAllocationProp*, unsigned long long) = nullptr;
CUresult (*g_take_block)(CUdeviceptr*, std::size_t) = nullptr;

CUresult unmap_slowly(CUdeviceptr address, std::size_t bytes) {
  keep();
  return g_unmap(address, bytes);
}

CUresult free_slowly(CUdeviceptr address, CUstream stream) {
  keep();
  return g_free_async(address, stream);
}

CUresult take_handle_slowly(CUmemGenericAllocationHandle* handle, std::size_t bytes, const CUmemAllocationProp* properties,
                            unsigned long long flags) {
  const CUresult code = g_take_handle(handle, bytes, properties, flags);
  keep();
  return code;
}

CUresult take_block_slowly(CUdeviceptr* address, std::size_t bytes) {
  const CUresult code = g_take_block(address, bytes);
  keep();
  return code;
}

RigOptions slow_driver(config::Backing backing, Clock& clock) {
  RigOptions options;
  options.memory = "128MiB";
  options.pool.backing = backing;
  options.clock = &clock;
  options.patch = [](DriverApi& api) {
    g_unmap = api.cuMemUnmap;
    g_free_async = api.cuMemFreeAsync;
    api.cuMemUnmap = &unmap_slowly;
    api.cuMemFreeAsync = &free_slowly;
    g_take_handle = api.cuMemCreate;
    g_take_block = api.cuMemAlloc_v2;
    api.cuMemCreate = &take_handle_slowly;
    api.cuMemAlloc_v2 = &take_block_slowly;
  };
  return options;
}

/// A thread that does something, and is in the driver with the memory.
class Inside {
 public:
  Inside(Rig& rig, std::function<void()> does) {
    g_is_inside = g_may_go_on = g_is_done = false;
    g_holds = true;
    thread_ = std::thread([&rig, does = std::move(does)] {
      cuCtxSetCurrent(rig.context());
      does();
      g_is_done = true;
    });
    while (!g_is_inside) std::this_thread::yield();
  }
  ~Inside() {
    g_may_go_on = true;
    thread_.join();
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

 private:
  std::thread thread_;
};

/// What is free goes back.
struct Giving {
  explicit Giving(Rig& rig) : inside(rig, [&rig] { rig.pools().trim(); }) {}
  Inside inside;
};

}  // namespace

TEST_CASE("an allocation waits for memory that another thread gives back to the driver") {
  const auto backing = GENERATE(config::Backing::pages, config::Backing::segments);
  TellingClock clock;
  Rig rig(slow_driver(backing, clock));
  rig.free(rig.allocate(100 * kMiB));
  {
    const Giving giving(rig);
    CHECK(rig.try_allocate(100 * kMiB).ok());
  }
  CHECK(now(rig.counters().failed_allocations) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("memory outside the pool waits for what another thread gives back, under a limit and where the driver has none") {
  const auto backing = GENERATE(config::Backing::pages, config::Backing::segments);
  TellingClock clock;
  RigOptions options = slow_driver(backing, clock);
  SECTION("the driver") {
    Rig rig(options);
    rig.free(rig.allocate(100 * kMiB));
    const Giving giving(rig);
    CHECK(rig.pools().make_room());
  }
  SECTION("the limit") {
    options.pool.limit.all = config::parse_amount("110MiB");
    Rig rig(options);
    rig.free(rig.allocate(100 * kMiB));
    const Giving giving(rig);
    CHECK(rig.pools().reserve_outside(0, OutsideKind::array, 100 * kMiB, "cuArrayCreate_v2").ok());
    rig.pools().cancel_outside(0, OutsideKind::array, 100 * kMiB);
  }
}

TEST_CASE("what another thread is preallocating is waited for by whoever is refused: the pool has it, and gives it back") {
  const auto backing = GENERATE(config::Backing::pages, config::Backing::segments);
  PatientClock clock;  // on segments the block it asks for is in the way of giving anything back
  RigOptions options = slow_driver(backing, clock);
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("100%");
  Rig rig(options);
  {
    const Inside preallocating(rig, [&rig] { rig.pools().free(rig.try_allocate(2 * kMiB).value()); });
    CHECK(rig.pools().make_room());
  }
  CHECK(rig.pools().check() == "");
}

TEST_CASE("an allocation that is too large does not wait for more than a second, whatever another thread does") {
  TellingClock clock;
  Rig rig(slow_driver(config::Backing::pages, clock));
  rig.free(rig.allocate(100 * kMiB));
  const Giving giving(rig);
  CHECK(rig.try_allocate(200 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("a call that was refused is worth another try when memory went back between the refusal and the question") {
  Rig rig;
  rig.free(rig.allocate(100 * kMiB));
  const std::uint64_t before = rig.pools().times_given_back();
  rig.pools().trim();  // another thread
  CHECK(rig.pools().make_room(before));
  CHECK_FALSE(rig.pools().make_room());
}
