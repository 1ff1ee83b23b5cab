// A thread that is stopped inside its magazine (a signal handler keeps it there) holds up no report, and nothing is lost when it goes on.
//
// Where a signal hits the thread is chance: it is stopped and asked until it was inside. ThreadSanitizer delivers signals at calls only, never there.
#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <atomic>
#include <thread>

#include <catch2/catch.hpp>

#include "pool/observe/ledger.hpp"
#include "tests/unit/device/churn.hpp"

using namespace cupool;
using namespace cupool::test;

#if !defined(__SANITIZE_THREAD__)

namespace {

constexpr int kMostStops = 20'000;

std::atomic<bool> g_is_stopped{false};
std::atomic<bool> g_may_go_on{false};

void stay(int) {
  g_is_stopped.store(true);
  while (!g_may_go_on.load()) sched_yield();
  g_may_go_on.store(false);
  g_is_stopped.store(false);
}

/// Allocates and frees until told to end; can be stopped wherever it is.
class Worker {
 public:
  explicit Worker(Rig& rig) : thread_([this, &rig] { work(rig); }) {
    while (!is_under_way_.load()) sched_yield();
  }
  ~Worker() {
    is_over_.store(true);
    thread_.join();
  }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  void stop() {
    pthread_kill(thread_.native_handle(), SIGUSR1);
    while (!g_is_stopped.load()) sched_yield();
  }
  void go_on() {
    g_may_go_on.store(true);
    while (g_is_stopped.load()) sched_yield();
  }
  std::uint64_t pairs() const { return pairs_.load(); }

 private:
  void work(Rig& rig) {
    cuCtxSetCurrent(rig.context());
    std::vector<CUdeviceptr> ring(300, 0);
    churn(rig, ring, 4096, 3000);
    is_under_way_.store(true);
    while (!is_over_.load(std::memory_order_relaxed)) {
      churn(rig, ring, 4096, 300);
      pairs_.fetch_add(300);
    }
    free_them(rig, ring);
  }

  std::atomic<bool> is_under_way_{false};
  std::atomic<bool> is_over_{false};
  std::atomic<std::uint64_t> pairs_{0};
  std::thread thread_;
};

/// What `cupool validate` asks of an incomplete report too.
void check_counts(const observe::DeviceSnapshot& device) {
  for (const observe::CounterValue& row : device.counters)
    if (row.is_gauge) CHECK(row.current <= row.peak);
  const auto value = [&](const char* name) { return observe::counter_current(device, name); };
  CHECK(value("requested_bytes") <= value("live_bytes"));
  CHECK(value("live_blocks") <= value("allocations") - value("frees"));
  CHECK(value("live_blocks") >= 298);
  CHECK(value("live_blocks") <= 301);
  CHECK(device.now.live_bytes == value("live_bytes"));
}

}  // namespace

TEST_CASE("magazines: a report does without a thread that is stopped inside, and says so") {
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = &stay;
  REQUIRE(sigaction(SIGUSR1, &action, &before) == 0);
  SystemClock clock;  // the simulator's asks the driver, and the thread may be stopped there
  RigOptions options;
  options.clock = &clock;
  Rig rig(options);
  {
    Worker worker(rig);
    int found = 0;
    for (int i = 0; i < kMostStops && found < 3; ++i) {
      worker.stop();
      const observe::Snapshot snapshot = rig.pools().snapshot(std::chrono::microseconds(300));
      worker.go_on();
      if (snapshot.complete || snapshot.devices.empty()) continue;  // outside, or with the device's lock
      ++found;
      check_counts(snapshot.devices.at(0));
      CHECK(snapshot.devices.at(0).blocks.size() >= 298);
      const std::uint64_t pairs = worker.pairs();
      while (worker.pairs() < pairs + 900) sched_yield();  // it is served again, from its magazine too
      const observe::Snapshot later = rig.snapshot();
      CHECK(later.complete);
      check_counts(later.devices.at(0));
    }
    CHECK(found == 3);
  }
  const observe::Snapshot snapshot = rig.snapshot();
  CHECK(snapshot.complete);
  CHECK(counter_named(snapshot, "live_blocks") == 0);
  CHECK(counter_named(snapshot, "allocations") == counter_named(snapshot, "frees"));
  REQUIRE(sigaction(SIGUSR1, &before, nullptr) == 0);
}

#endif
