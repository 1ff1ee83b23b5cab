// Magazines and streams: what a thread frees on a stream is its own business until somebody else could need it, or the stream ends.
#include <algorithm>
#include <array>
#include <atomic>
#include <future>
#include <random>
#include <stdexcept>
#include <thread>
#include <tuple>
#include <vector>

#include <catch2/catch.hpp>

#include "tests/unit/device/churn.hpp"
#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::size_t kPiece_bytes = 4096;

bool is_one_of(const std::vector<CUdeviceptr>& blocks, CUdeviceptr block) { return std::find(blocks.begin(), blocks.end(), block) != blocks.end(); }

}  // namespace

TEST_CASE("stream magazines: a stream's own pairs are not told to the device, and nobody can tell from a report") {
  StreamRig rig;
  const CUstream stream = new_stream();
  const std::vector<CUdeviceptr> blocks = kept_blocks(rig, stream, kPiece_bytes, 20);
  const std::uint64_t before = now(rig.counters().allocations) + untold_allocations(rig);
  std::uint64_t most = 0;
  for (int i = 0; i < 500; ++i) {
    rig.free_on(rig.on(stream, kPiece_bytes - 7), stream);
    most = std::max(most, untold_allocations(rig));
  }
  CHECK(most >= 400);
  CHECK(now(rig.counters().allocations) + untold_allocations(rig) == before + 500);
  CHECK(cusim_calls("cuCtxRecordEvent") + cusim_calls("cuEventRecord") + cusim_calls("cuEventQuery") == 0);
  const observe::Snapshot snapshot = rig.snapshot();
  CHECK(untold_allocations(rig) == 0);
  CHECK(counter_named(snapshot, "allocations") == before + 500);
  CHECK(counter_named(snapshot, "frees") == before + 500);
  CHECK(counter_named(snapshot, "live_bytes") == 0);
  CHECK(counter_named(snapshot, "deferred_bytes") == 0);
  std::uint64_t allocated = 0;
  std::uint64_t completed = 0;
  for (const observe::Event& event : snapshot.devices.at(0).timeline) {
    allocated += event.kind == observe::EventKind::allocate ? 1 : 0;
    completed += event.kind == observe::EventKind::free_completed ? 1 : 0;
  }
  CHECK(allocated == before + 500);
  CHECK(completed == before + 500);
  CHECK(snapshot.devices.at(0).now.free_bytes == now(rig.counters().reserved_bytes));
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stream magazines: what is kept for a stream is nobody else's while its work is pending, and anybody's once memory is short") {
  StreamRig rig(limited_to("16MiB"));
  const CUstream stream = new_stream();
  const std::vector<CUdeviceptr> blocks = kept_blocks(rig, stream, kPiece_bytes, 2);
  std::vector<CUdeviceptr> held;
  for (int i = 0; i < 3; ++i) rig.free_on(rig.on(stream, kPiece_bytes), stream);
  REQUIRE(untold_allocations(rig) != 0);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  const CUstream other = new_stream();
  for (int i = 0; i < 3; ++i) {
    held.push_back(rig.on(other, kPiece_bytes));
    CHECK_FALSE(is_one_of(blocks, held.back()));
    held.push_back(rig.allocate(kPiece_bytes));
    CHECK_FALSE(is_one_of(blocks, held.back()));
  }
  CHECK(cusim_now_ns() < 5 * kMs);
  bool found = false;
  for (std::size_t left = 16 * kMiB / kPiece_bytes - held.size(); left != 0; --left) {
    held.push_back(rig.allocate(kPiece_bytes));  // to the last byte
    found = found || is_one_of(blocks, held.back());
  }
  CHECK(found);
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(rig.try_allocate(512).code() == CUDA_ERROR_OUT_OF_MEMORY);
}

TEST_CASE("stream magazines: some time after a refusal streams keep what they free again, also in a program without a plain free") {
  for (const std::size_t count : {1, 2}) {
    INFO(count << " streams");
    StreamRig rig;
    std::vector<CUstream> streams(count, nullptr);
    for (CUstream& stream : streams) stream = rig.lone_stream();
    const auto untold_pairs = [&](int pairs) {  // how many the device was not told of at once
      int untold = 0;
      for (int i = 0; i < pairs; ++i) {
        const std::uint64_t told = now(rig.counters().allocations);
        for (const CUstream stream : streams) rig.free_on(rig.on(stream, kPiece_bytes), stream);
        untold += now(rig.counters().allocations) == told ? 1 : 0;
      }
      return untold;
    };
    untold_pairs(400);
    REQUIRE(untold_pairs(400) >= 399);
    REQUIRE(rig.try_on(streams.front(), 2 * kGiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    untold_pairs(1100);
    CHECK(untold_pairs(400) >= 399);
  }
}

TEST_CASE("stream magazines: a stream that ends takes nothing along, and what it left waits for its work") {
  StreamRig rig;
  const bool of_any_context = GENERATE(false, true);
  const CUstream stream = new_stream();
  const std::vector<CUdeviceptr> blocks = kept_blocks(rig, stream, kPiece_bytes, 8);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  if (of_any_context) rig.pools().stream_ending(nullptr, name_of(stream).identity);
  else rig.pools().stream_ending(rig.context(), name_of(stream).identity);
  CHECK(now(rig.counters().deferred_bytes) >= 8 * kPiece_bytes);
  for (int i = 0; i < 50; ++i) CHECK_FALSE(is_one_of(blocks, rig.on(stream, kPiece_bytes)));  // a new stream with the same handle
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stream magazines: memory pools know what is used, and the most that ever was") {
  StreamRig rig;
  const CUstream stream = new_stream();
  kept_blocks(rig, stream, kPiece_bytes, 10);
  CHECK(rig.pools().mempool_figures(0, 1).used_bytes == 0);
  CHECK(rig.pools().mempool_figures(0, 1).used_high_bytes == 10 * kPiece_bytes);
  std::vector<CUdeviceptr> live;
  for (int i = 0; i < 4; ++i) live.push_back(rig.on(stream, kPiece_bytes));
  CHECK(untold_allocations(rig) != 0);
  CHECK(rig.pools().mempool_figures(0, 1).used_bytes == 4 * kPiece_bytes);
  rig.pools().reset_mempool_high(0, 1);
  for (int i = 0; i < 3; ++i) live.push_back(rig.on(stream, kPiece_bytes));
  for (int i = 0; i < 5; ++i) {
    rig.free_on(live.back(), stream);
    live.pop_back();
  }
  CHECK(rig.pools().mempool_figures(0, 1).used_bytes == 2 * kPiece_bytes);
  CHECK(rig.pools().mempool_figures(0, 1).used_high_bytes == 7 * kPiece_bytes);
  live.push_back(rig.on(stream, kPiece_bytes, 2));  // the same stream and size in the name of another pool
  CHECK(rig.pools().mempool_figures(0, 1).used_bytes == 2 * kPiece_bytes);
  CHECK(rig.pools().mempool_figures(0, 2).used_bytes == kPiece_bytes);
  BlockView view;
  REQUIRE(rig.pools().find(live.back(), &view) == Ownership::live);
  CHECK(view.mempool == 2);
  for (const CUdeviceptr block : live) rig.free_on(block, stream);
  for (const std::uint8_t mempool : {std::uint8_t{1}, std::uint8_t{2}}) CHECK(rig.pools().mempool_figures(0, mempool).used_bytes == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stream magazines: the most that ever was used is what two threads had together, also where neither told the device") {
  StreamRig rig;
  const CUstream stream = new_stream();
  const CUstream others = new_stream();
  std::promise<void> is_kept;
  std::promise<void> may_begin;
  std::thread other([&] {
    cuCtxSetCurrent(rig.context());
    const auto take = [&] { return rig.pools().allocate_on(rig.context(), kPiece_bytes, name_of(others), kDefaultPool, "cuMemAllocAsync").value(); };
    std::array<CUdeviceptr, 4> blocks{};
    const auto pass = [&] {
      for (CUdeviceptr& block : blocks) block = take();
      for (const CUdeviceptr block : blocks) rig.pools().free_on(block, rig.context(), name_of(others));
    };
    rig.pools().free_on(take(), rig.context(), name_of(others));
    pass();
    pass();
    is_kept.set_value();
    may_begin.get_future().wait();
    pass();
    rig.pools().thread_ending();
  });
  is_kept.get_future().wait();
  kept_blocks(rig, stream, kPiece_bytes, 4);
  CHECK(rig.pools().mempool_figures(0, kDefaultPool).used_high_bytes == 4 * kPiece_bytes);
  std::vector<CUdeviceptr> live;
  for (int i = 0; i < 4; ++i) live.push_back(rig.on(stream, kPiece_bytes));
  may_begin.set_value();
  other.join();
  CHECK(rig.pools().mempool_figures(0, kDefaultPool).used_bytes == 4 * kPiece_bytes);
  CHECK(rig.pools().mempool_figures(0, kDefaultPool).used_high_bytes == 8 * kPiece_bytes);
  CHECK(peak(rig.counters().live_bytes) == 8 * kPiece_bytes);
}

TEST_CASE("stream magazines: plain and stream-ordered calls on the same blocks, frees that are none, and captures") {
  StreamRig rig;
  const CUstream stream = new_stream();
  kept_blocks(rig, stream, kPiece_bytes, 10);
  const CUdeviceptr ordered = rig.on(stream, kPiece_bytes);
  rig.free_on(ordered, stream);
  CHECK(rig.pools().free_on(ordered, rig.context(), name_of(stream)).outcome == FreeOutcome::invalid);
  CHECK(rig.pools().free(ordered).outcome == FreeOutcome::invalid);
  const CUdeviceptr again = rig.on(stream, kPiece_bytes);
  CHECK(rig.pools().free_on(again + 512, rig.context(), name_of(stream)).outcome == FreeOutcome::invalid);
  rig.free(again);  // plainly: the caller says that nothing uses it, and nothing is waited for
  CHECK(now(rig.counters().deferred_bytes) == 0);
  std::vector<CUdeviceptr> several(130);
  for (CUdeviceptr& block : several) block = rig.on(stream, kPiece_bytes);
  for (const CUdeviceptr block : several) rig.free_on(block, stream);
  for (CUdeviceptr& block : several) block = rig.on(stream, kPiece_bytes);
  for (const CUdeviceptr block : several) rig.free(block);
  BlockView view;
  std::vector<CUdeviceptr> ring(300, 0);
  for (int pass = 0; pass < 3; ++pass) {
    churn(rig, ring, kPiece_bytes, 300);
    for (const CUdeviceptr block : ring) {
      REQUIRE(rig.pools().find(block, &view) == Ownership::live);
      REQUIRE(view.mempool == 0);
    }
  }
  churn(rig, ring, kPiece_bytes, 1000);
  for (CUdeviceptr& block : ring) {
    REQUIRE(rig.pools().find(block, &view) == Ownership::live);
    CHECK(view.mempool == 0);
    rig.free_on(block, stream);
    block = rig.on(stream, kPiece_bytes);
    REQUIRE(rig.pools().find(block, &view) == Ownership::live);
    CHECK(view.mempool == kDefaultPool);
  }
  const CUstream capturing = new_stream();
  CUgraph graph = nullptr;
  REQUIRE(rig.pools().begin_capture(capturing, [&] { return cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED); }) == CUDA_SUCCESS);
  const std::uint64_t deferred_bytes = now(rig.counters().deferred_bytes);
  rig.free_on(ring.back(), stream);  // the graph may name it
  CHECK(now(rig.counters().deferred_bytes) == deferred_bytes + kPiece_bytes);
  CHECK(rig.on(stream, kPiece_bytes) != ring.back());
  REQUIRE(rig.pools().end_capture(
              capturing, [&] { return cuStreamEndCapture(capturing, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stream magazines: a trim, a thread that ends and a context that dies find all of it") {
  StreamRig rig;
  const CUstream stream = new_stream();
  kept_blocks(rig, stream, kPiece_bytes, 30);
  CHECK(rig.pools().trim() != 0);
  CHECK(now(rig.counters().reserved_bytes) == 0);
  const std::vector<CUdeviceptr> blocks = kept_blocks(rig, stream, kPiece_bytes, 30);
  rig.pools().thread_ending();
  std::thread([&rig, stream, &blocks] {
    cuCtxSetCurrent(rig.context());
    std::size_t found = 0;
    for (int i = 0; i < 30; ++i)
      found += is_one_of(blocks, rig.pools().allocate_on(rig.context(), kPiece_bytes, name_of(stream), 1, "cuMemAllocAsync").value()) ? 1 : 0;
    rig.pools().thread_ending();
    if (found != 30) throw std::logic_error("what the thread kept is the stream's no more");
  }).join();
  CHECK(rig.pools().check() == "");
  rig.reset_device();
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(now(rig.counters().reserved_bytes) == 0);
  CHECK(rig.pools().mempool_figures(0, 1).used_bytes == 0);
}

TEST_CASE("stream magazines: large blocks of a device that is large enough are kept too, and more streams than a thread keeps for") {
  RigOptions options;
  options.memory = "64GiB";
  StreamRig rig(options);
  std::vector<CUstream> streams(device::Magazine::kStreams + 2);
  for (CUstream& stream : streams) stream = new_stream();
  for (int round = 0; round < 30; ++round) {
    for (const CUstream stream : streams) {
      const std::vector<CUdeviceptr> blocks = kept_blocks(rig, stream, round % 2 == 0 ? 2 * kMiB : kPiece_bytes, 3);
      REQUIRE(is_one_of(blocks, rig.on(stream, round % 2 == 0 ? 2 * kMiB : kPiece_bytes)));
    }
    REQUIRE(rig.pools().check() == "");
  }
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  const CUstream stream = new_stream();
  kept_blocks(rig, stream, 2 * kMiB, 4);
  const std::uint64_t before = untold_allocations(rig);
  for (int i = 0; i < 50; ++i) rig.free_on(rig.on(stream, 2 * kMiB), stream);
  CHECK(untold_allocations(rig) == before + 50);
  CHECK(now(rig.counters().reserved_bytes) <= 2 * reserved_bytes);
}

TEST_CASE("stream magazines: a stream keeps what it frees before long, also where the thread has had as many others as it keeps for") {
  StreamRig rig(device_of("64GiB"));
  rig.free(rig.allocate(256 * kMiB));  // no miss closes the magazine
  std::vector<CUstream> others(device::Magazine::kStreams);
  for (CUstream& stream : others) kept_blocks(rig, stream = new_stream(), kPiece_bytes, 3);
  const CUstream late = new_stream();
  kept_blocks(rig, late, kPiece_bytes, 20);
  for (const CUstream stream : {late, others.back()}) {
    const std::uint64_t before = untold_allocations(rig);
    for (int i = 0; i < 50; ++i) rig.free_on(rig.on(stream, kPiece_bytes), stream);
    CHECK(untold_allocations(rig) == before + 50);
  }
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stream magazines: streams that take turns keep what is theirs, also where one more of them is turned away") {
  StreamRig rig(device_of("64GiB"));
  const std::size_t extra = GENERATE(std::size_t{0}, std::size_t{1}, std::size_t{8});
  const std::size_t bytes = GENERATE(std::size_t{4096}, std::size_t{64 * kKiB});
  std::vector<CUstream> streams(device::Magazine::kStreams + extra);
  for (CUstream& stream : streams) stream = new_stream();
  std::size_t asked = 0;
  const auto take_turns = [&](int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (const CUstream stream : streams) {
        const std::uint64_t told = now(rig.counters().allocations);
        rig.free_on(rig.on(stream, bytes), stream);
        asked += now(rig.counters().allocations) != told ? 1 : 0;
      }
    }
  };
  take_turns(20);
  asked = 0;
  take_turns(40);
  CHECK(asked <= 40 * extra * 7 / 4);  // those that have none, and now and then those that made room for one
  CHECK(rig.pools().check() == "");
}

TEST_CASE("stream magazines: threads that share streams, pass blocks on and miss: no byte has two owners") {
  const bool paged = GENERATE(false, true);
  StreamRig rig(paged ? on_pages(limited_to("24MiB")) : limited_to("24MiB"));
  const std::vector<CUstream> streams = {new_stream(), new_stream(), new_stream()};
  std::atomic<int> failures{0};
  const auto work = [&](unsigned seed) {
    cuCtxSetCurrent(rig.context());
    std::mt19937 random(seed);
    std::vector<std::tuple<CUdeviceptr, CUstream, std::uint8_t>> live;
    for (int step = 0; step < 3000; ++step) {
      const CUstream stream = streams[random() % streams.size()];
      if (live.size() < 60 && random() % 2 == 0) {
        const std::size_t bytes = random() % 64 == 0 ? kMiB + random() % kMiB : 512 << random() % 6;
        const Result<CUdeviceptr> block =
            rig.pools().allocate_on(rig.context(), bytes, name_of(stream), random() % 8 == 0 ? std::uint8_t{2} : kDefaultPool, "cuMemAllocAsync");
        if (!block.ok()) continue;
        const auto value = static_cast<std::uint8_t>(random());
        cusim_launch_fill(stream, block.value(), 512, value, random() % 1000);
        live.emplace_back(block.value(), stream, value);
      } else if (!live.empty()) {
        const std::size_t at = random() % live.size();
        const auto [block, owner, value] = live[at];
        live[at] = live.back();
        live.pop_back();
        cusim_launch_check(owner, block, 512, value, random() % 1000);
        const bool is_plain = random() % 8 == 0;
        if (is_plain && cuStreamSynchronize(owner) != CUDA_SUCCESS) failures.fetch_add(1);  // that free does not wait
        const FreeResult freed = is_plain ? rig.pools().free(block) : rig.pools().free_on(block, rig.context(), name_of(owner));
        if (freed.outcome != FreeOutcome::freed) failures.fetch_add(1);
      }
      if (step % 32 == 0) cusim_advance_ns(20'000);
      if (step % 500 == 499) rig.pools().trim();
    }
    for (const auto& [block, owner, value] : live)
      if (rig.pools().free_on(block, rig.context(), name_of(owner)).outcome != FreeOutcome::freed) failures.fetch_add(1);
    rig.pools().thread_ending();
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 3; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(failures.load() == 0);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(now(rig.counters().allocations) == now(rig.counters().frees));
  for (const std::uint8_t mempool : {std::uint8_t{1}, std::uint8_t{2}}) CHECK(rig.pools().mempool_figures(0, mempool).used_bytes == 0);
  CHECK(rig.pools().check() == "");
}
