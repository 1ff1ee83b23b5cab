// What a program did before does not make its ordinary operations dear: after each state pairs of small blocks, and of large ones where memory is
// plenty, are served by their thread's magazine. Counted, not timed: how many the device was told of at once, as it is of those under its lock, and
// the driver's calls.
#include <catch2/catch.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/device/beside.hpp"
#include "tests/unit/device/churn.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::size_t kDevice_bytes = 64 * kGiB;

/// A program so far.
struct Program : StreamRig {
  using StreamRig::StreamRig;
  std::vector<CUdeviceptr> live;

  /// Blocks of 64 KiB to 64 MiB, until so many bytes are live.
  void load(std::size_t bytes) {
    std::mt19937_64 random(3);
    for (std::size_t loaded_bytes = 0;;) {
      const std::size_t block_bytes = (64 * kKiB << random() % 10) + random() % (64 * kKiB);
      if ((loaded_bytes += block_bytes) > bytes) return;
      live.push_back(take(block_bytes));
    }
  }
  /// One of `every` blocks stays; 0: none.
  void free_but(std::size_t every) {
    std::vector<CUdeviceptr> kept;
    for (std::size_t i = 0; i < live.size(); ++i) {
      if (every != 0 && i % every == 0) kept.push_back(live[i]);
      else free(live[i]);
    }
    live = kept;
  }
  void wait() {
    const std::uint64_t fills = pools().has_lanes() ? pools().lane_fills(context()) : 0;
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    if (fills != 0) pools().after_stream_wait(context(), 0, fills);
    pools().after_wait(context());
  }
  /// For any thread, and without a call of the driver: Rig asks it which context is current.
  CUdeviceptr take(std::size_t bytes) { return pools().allocate(context(), bytes, "cuMemAlloc_v2").value(); }
  void give_back(CUdeviceptr address) { pools().free(address); }
  void fill_until_refused() {
    for (Result<CUdeviceptr> block = try_allocate(64 * kMiB); block.ok(); block = try_allocate(64 * kMiB)) live.push_back(block.value());
  }
};

struct State {
  const char* name;
  std::function<void(Program&)> reach;
  std::size_t largest_bytes = 16 * kMiB;  ///< larger blocks are the heap's afterwards, by its rules
};

void take_steps(Program& program, int steps, bool waits) {
  for (int step = 0; step < steps; ++step) {
    program.load(kDevice_bytes / 4);
    std::reverse(program.live.begin(), program.live.end());
    program.free_but(0);
    if (waits) program.wait();
  }
}

void end_threads(Program& program) {
  for (int i = 0; i < 8; ++i)
    std::thread([&program] {
      cuCtxSetCurrent(program.context());
      std::vector<CUdeviceptr> ring(8, 0);
      for (const std::size_t bytes : {4 * kKiB, 300 * kKiB}) churn(program, ring, bytes, 500);
      free_them(program, ring);
      program.pools().thread_ending();
    }).join();
}

void end_streams(Program& program) {
  for (int i = 0; i < 200; ++i) {
    const CUstream stream = new_stream();
    for (const std::size_t bytes : {64 * kKiB, 2 * kMiB}) program.free_on(program.on(stream, bytes), stream);
    program.pools().stream_ending(program.context(), name_of(stream).identity);
    REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  }
}

void free_in_lanes(Program& program) {
  for (int i = 0; i < 2; ++i) {
    const CUstream stream = new_stream();
    std::vector<CUdeviceptr> blocks;
    for (int k = 0; k < 1000; ++k) blocks.push_back(program.on(stream, 16 * kMiB));
    for (const CUdeviceptr block : blocks) program.free_on(block, stream);
  }
}

const std::vector<State>& states() {
  static const std::vector<State> all{
      {"nothing", [](Program&) {}},
      {"rings of 1 GiB",
       [](Program& program) {
         for (int step = 0; step < 3; ++step) {
           std::vector<CUdeviceptr> ring(16, 0);
           churn(program, ring, kGiB, 32);
           free_them(program, ring);
           program.wait();
         }
       }},
      {"60% live", [](Program& program) { program.load(kDevice_bytes / 10 * 6); }, 2 * kMiB},
      {"97% live", [](Program& program) { program.load(kDevice_bytes / 100 * 97); }, 32 * kKiB},
      {"97% freed", [](Program& program) { program.load(kDevice_bytes / 100 * 97), program.free_but(0), program.wait(); }, 32 * kKiB},
      {"all but a third of 60% freed", [](Program& program) { program.load(kDevice_bytes / 10 * 6), program.free_but(3), program.wait(); }, 2 * kMiB},
      {"steps", [](Program& program) { take_steps(program, 6, true); }},
      {"steps that nobody waits for", [](Program& program) { take_steps(program, 6, false); }},
      {"a refusal of more than there is", [](Program& program) { CHECK_FALSE(program.try_allocate(2 * kDevice_bytes).ok()); }},
      {"out of memory, and all freed", [](Program& program) { program.fill_until_refused(), program.free_but(0), program.wait(); }, 32 * kKiB},
      {"out of memory, and half freed", [](Program& program) { program.fill_until_refused(), program.free_but(2), program.wait(); }, 32 * kKiB},
      {"small blocks of which a tenth stays",
       [](Program& program) {
         for (int i = 0; i < 20'000; ++i) program.live.push_back(program.take(1024));
         program.free_but(10);
       }},
      {"threads that ended", end_threads},
      {"streams that ended", end_streams},
      {"half of the device in the lanes of two streams", free_in_lanes},
      {"a trim", [](Program& program) { take_steps(program, 2, true), program.pools().trim(); }},
      {"three reports",
       [](Program& program) {
         take_steps(program, 2, true);
         for (int i = 0; i < 3; ++i) program.snapshot();
       }},
      {"frees while a stream captured",
       [](Program& program) {
         during_capture(program, [&] {
           for (int i = 0; i < 300; ++i) program.free(program.allocate(64 * kKiB));
         });
       }},
  };
  return all;
}

/// A second thread, which does what it is told and is waited for.
class SecondThread {
 public:
  explicit SecondThread(Program& program) : thread_([this, &program] { run(program); }) {}
  ~SecondThread() {
    do_it(nullptr, true);
    thread_.join();
  }
  void do_it(std::function<void()> call, bool is_last = false) {
    std::unique_lock<std::mutex> guard(mutex_);
    call_ = std::move(call);
    is_last_ = is_last;
    has_call_ = true;
    changed_.notify_all();
    if (!is_last) changed_.wait(guard, [this] { return !has_call_; });
  }

 private:
  void run(Program& program) {
    cuCtxSetCurrent(program.context());
    std::unique_lock<std::mutex> guard(mutex_);
    for (;;) {
      changed_.wait(guard, [this] { return has_call_; });
      if (is_last_) break;
      call_();
      has_call_ = false;
      changed_.notify_all();
    }
    program.pools().thread_ending();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> call_;
  bool has_call_ = false;
  bool is_last_ = false;
  std::thread thread_;
};

void check_pairs(Program& program, const std::string& what, int pairs, const std::function<void()>& pair) {
  INFO(what);
  for (int i = 0; i < 3 * pairs; ++i) pair();
  const std::uint64_t refused = now(program.counters().failed_allocations);
  const std::uint64_t calls = cusim_total_calls();
  int told = 0;
  for (int i = 0; i < pairs; ++i) {
    const std::uint64_t before = now(program.counters().allocations);
    pair();
    if (now(program.counters().allocations) != before) ++told;
  }
  CHECK(told <= pairs / 5);
  CHECK(now(program.counters().failed_allocations) == refused);
  CHECK(cusim_total_calls() - calls <= static_cast<std::uint64_t>(pairs) / 10);
}

void check_ordinary_pairs(Program& program, std::size_t largest_bytes) {
  std::vector<CUdeviceptr> more(64, 0);  // at its very peak each operation is counted by the device at once
  churn(program, more, 512, 64);
  free_them(program, more);
  {
    SecondThread second(program);
    check_pairs(program, "two threads", 300, [&] {
      program.give_back(program.take(512));
      second.do_it([&program] { program.give_back(program.take(512)); });
    });
  }
  for (const std::size_t bytes : {std::size_t{512}, 4 * kKiB, 32 * kKiB, 256 * kKiB, 2 * kMiB, 16 * kMiB})
    if (bytes <= largest_bytes) check_pairs(program, std::to_string(bytes), 1000, [&] { program.give_back(program.take(bytes)); });
  std::mt19937_64 random(5);
  std::vector<CUdeviceptr> ring;
  for (int i = 0; i < 16; ++i) ring.push_back(program.allocate(512));
  check_pairs(program, "small ones of all sizes", 1000, [&] {
    CUdeviceptr& block = ring[random() % ring.size()];
    program.give_back(block);
    block = program.take(512 * (1 + random() % 64));
  });
  free_them(program, ring);
}

}  // namespace

TEST_CASE("aftermath: whatever a program did before, its ordinary pairs are served without the lock and the driver") {
  for (const config::Backing backing : {config::Backing::segments, config::Backing::pages}) {
    for (const State& state : states()) {
      INFO((backing == config::Backing::pages ? "pages: " : "segments: ") << state.name);
      RigOptions options = device_of("64GiB");
      options.pool.backing = backing;
      Program program(options);
      state.reach(program);
      check_ordinary_pairs(program, state.largest_bytes);
    }
  }
}
