// Stream-ordered calls: reuse on the same stream at once, on another behind the event of the free, for everybody when it is over.
// Over 400 lines because every way out of a lane is tried with the same small rig.
#include <catch2/catch.hpp>

#include <algorithm>
#include <map>
#include <random>
#include <thread>
#include <vector>

#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("a block freed on a stream is that stream's again at once, without an event, while its work is pending") {
  StreamRig rig;
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMiB);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(rig.on(stream, kMiB) == block);
  CHECK(cusim_calls("cuCtxRecordEvent") + cusim_calls("cuEventRecord") + cusim_calls("cuEventQuery") + cusim_calls("cuStreamWaitEvent") == 0);
}

TEST_CASE("what a stream freed is neither another stream's nor a plain allocation's while its work is pending") {
  StreamRig rig;
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, 2 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  CHECK(rig.on(new_stream(), 2 * kMiB) != block);
  CHECK(rig.allocate(2 * kMiB) != block);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("when memory is short what a stream keeps becomes everybody's once its work is over") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream stream = rig.lone_stream();
  const CUdeviceptr block = rig.on(stream, 40 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  rig.allocate(50 * kMiB);  // needs the region given back
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(now(rig.counters().lanes_drained) == 1);
}

TEST_CASE("while memory is short a free carries its event, behind which another stream may use the block at once") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  const CUdeviceptr block = rig.on(first, 40 * kMiB);
  CHECK(rig.try_on(second, 40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);  // from now on memory is short
  const std::uint64_t before_ns = cusim_now_ns();
  REQUIRE(cusim_launch_fill(first, block, 4096, 1, 5 * kMs) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(first, block, 4096, 1, 5 * kMs) == CUDA_SUCCESS);
  const std::uint64_t records = cusim_calls("cuEventRecord");
  rig.free_on(block, first);
  CHECK(cusim_calls("cuEventRecord") == records + 1);
  const CUdeviceptr next = rig.on(second, 40 * kMiB);
  CHECK(next == block);
  CHECK(cusim_now_ns() == before_ns);  // the host did not wait
  CHECK(cusim_calls("cuStreamWaitEvent") == 1);
  CHECK(now(rig.counters().rung_steal) == 1);
  REQUIRE(cusim_launch_fill(second, next, 4096, 2, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
}

TEST_CASE("a plain allocation gets a stamped block when its event is over, not before") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, 40 * kMiB);
  CHECK_FALSE(rig.try_allocate(40 * kMiB).ok());
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  const std::uint64_t before_ns = cusim_now_ns();
  rig.free_on(block, stream);
  CHECK(rig.allocate(40 * kMiB) == block);
  CHECK(cusim_now_ns() >= before_ns + 5 * kMs);
}

TEST_CASE("a late event never makes a stream wait: work submitted after the free may wait for what that stream does next") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream first = rig.lone_stream();
  const CUstream second = new_stream();
  const CUdeviceptr block = rig.on(first, 40 * kMiB);
  rig.free_on(block, first);  // no event: no other stream has asked for memory so far
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(first, &released) == CUDA_SUCCESS);
  CHECK(rig.try_on(second, 50 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);  // bounded, and no deadlock
  CHECK(cusim_calls("cuStreamWaitEvent") == 0);
  released = 1;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(rig.on(second, 50 * kMiB) != 0);
}

TEST_CASE("plain and stream-ordered calls mix in every combination") {
  StreamRig rig;
  const CUstream stream = new_stream();
  const CUdeviceptr ordered = rig.on(stream, kMiB);
  const CUdeviceptr plain = rig.allocate(kMiB);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(plain, stream);  // the stream's at once
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(rig.on(stream, kMiB) == plain);
  rig.free(ordered);  // everybody's at once: the caller says that nothing uses it
  CHECK(now(rig.counters().deferred_bytes) == 0);
  rig.free(rig.allocate(kMiB));  // waits in an epoch
  CHECK(now(rig.counters().deferred_bytes) == kMiB);
  CHECK(rig.pools().free_on(plain + 512, rig.context(), name_of(stream)).outcome == FreeOutcome::invalid);
  CHECK(rig.pools().free_on(ordered, rig.context(), name_of(stream)).outcome == FreeOutcome::invalid);
  CHECK(rig.pools().free_on(1 << 20, rig.context(), name_of(stream)).outcome == FreeOutcome::unknown);
}

TEST_CASE("plain blocks freed in stream order are plain calls' again, where nothing is allocated in stream order") {
  StreamRig rig;
  const CUstream stream = new_stream();
  constexpr int kPairs = 20'000;
  for (int i = 0; i < kPairs; ++i) {
    const CUdeviceptr block = rig.allocate(100'000);
    REQUIRE(cusim_launch_spin(stream, 1000) == CUDA_SUCCESS);
    rig.free_on(block, stream);
    if (i % 100 == 99) REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);  // 10 MB behind at most
  }
  CHECK(peak(rig.counters().reserved_bytes) <= 256 * kMiB);  // 2 GB went by
  CHECK(rig.pools().check() == "");
}

TEST_CASE("what one stream allocates and another frees goes round, however far that one is behind") {
  const std::uint64_t bytes = GENERATE(std::uint64_t{16'384}, std::uint64_t{100'000}, std::uint64_t{3'000'000});
  StreamRig rig;
  const CUstream producer = new_stream();
  const CUstream consumer = new_stream();
  const int behind = static_cast<int>(64 * kMiB / bytes);
  const int pairs = 24 * behind;  // 1.5 GiB go by
  for (int i = 0; i < pairs; ++i) {
    const CUdeviceptr block = rig.on(producer, bytes);
    REQUIRE(cusim_launch_spin(consumer, 1000) == CUDA_SUCCESS);
    rig.free_on(block, consumer);
    cusim_advance_ns(i < behind ? 0 : 1000);  // the consumer stays so far behind, and nobody waits for it
  }
  CHECK(peak(rig.counters().reserved_bytes) <= kGiB / 2);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("what a stream that ends had freed is not a new stream's with the same handle") {
  StreamRig rig;
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, 2 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  rig.pools().stream_ending(rig.context(), name_of(stream).identity);
  CHECK(now(rig.counters().deferred_bytes) == 2 * kMiB);
  CHECK(cusim_calls("cuEventRecord") == 1);
  CHECK(rig.on(stream, 2 * kMiB) != block);
  cusim_advance_ns(6 * kMs);
  rig.allocate(30 * kMiB);  // a miss retires
  CHECK(rig.allocate(2 * kMiB) == block);
}

TEST_CASE("a free during another stream's capture leaves its block where it is while there is other memory") {
  StreamRig rig;
  const CUstream stream = new_stream();
  const CUstream capturing = new_stream();
  const CUdeviceptr block = rig.on(stream, kMiB);
  REQUIRE(rig.pools().begin_capture(capturing, [&] { return cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_GLOBAL); }) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  CHECK(now(rig.counters().deferred_bytes) == kMiB);
  CHECK(rig.on(stream, kMiB) != block);
  CUgraph graph = nullptr;
  REQUIRE(rig.pools().end_capture(
              capturing, [&] { return cuStreamEndCapture(capturing, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  CHECK(graph != nullptr);
  CHECK(cusim_calls("cuCtxRecordEvent") == 0);
}

TEST_CASE("more streams than lanes: the one that was used longest ago gives its own up") {
  StreamRig rig;
  std::vector<CUstream> streams;
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 70; ++i) {
    streams.push_back(new_stream());
    blocks.push_back(rig.on(streams.back(), 4096));
  }
  for (std::size_t i = 0; i < streams.size(); ++i) rig.free_on(blocks[i], streams[i]);
  CHECK(now(rig.counters().lanes_drained) == 6);
  CHECK(now(rig.counters().deferred_bytes) == 6 * 4096);
  CHECK(rig.on(streams.back(), 4096) == blocks.back());
  CHECK(rig.pools().check() == "");
}

TEST_CASE("memory pools: used is what was served in their name") {
  StreamRig rig;
  const CUstream stream = new_stream();
  const CUdeviceptr first = rig.on(stream, kMiB, 1);
  const CUdeviceptr second = rig.on(stream, 100, 2);
  auto standard = rig.pools().mempool_figures(0, 1);
  auto own = rig.pools().mempool_figures(0, 2);
  CHECK(standard.used_bytes == kMiB);
  CHECK(own.used_bytes == 100);
  rig.free_on(first, stream);
  rig.free(second);
  CHECK(rig.pools().mempool_figures(0, 1).used_bytes == 0);
  CHECK(rig.pools().mempool_figures(0, 1).used_high_bytes == kMiB);
  CHECK(rig.pools().mempool_figures(0, 2).used_bytes == 0);
  rig.pools().reset_mempool_high(0, 1);
  CHECK(rig.pools().mempool_figures(0, 1).used_high_bytes == 0);
  BlockView view;
  REQUIRE(rig.pools().find(rig.on(stream, 512, 7), &view) == Ownership::live);
  CHECK(view.mempool == 7);
  REQUIRE(rig.pools().find(rig.allocate(512), &view) == Ownership::live);
  CHECK(view.mempool == 0);
}

TEST_CASE("a context that dies takes its lanes and stamped frees along") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream stream = new_stream();
  const CUdeviceptr kept = rig.on(stream, kMiB);
  rig.free_on(rig.on(stream, 2 * kMiB), stream);
  CHECK_FALSE(rig.try_on(stream, 80 * kMiB).ok());
  rig.free_on(kept, stream);  // stamped by now
  rig.reset_device();
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(now(rig.counters().reserved_bytes) == 0);
  CHECK(rig.pools().mempool_figures(0, 1).used_bytes == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("one stream alone uses what it frees again without an event, also while memory is short") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream stream = rig.lone_stream();
  const CUdeviceptr block = rig.on(stream, 40 * kMiB);
  CHECK(rig.try_on(stream, 40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  const std::uint64_t records = cusim_calls("cuEventRecord");
  rig.free_on(block, stream);
  CHECK(rig.on(stream, 40 * kMiB) == block);
  CHECK(cusim_calls("cuEventRecord") == records);
  CHECK(now(rig.counters().deferred_bytes) == 0);
}

TEST_CASE("a refusal takes nothing from the stream that asked: what it freed is its own at once, while its work is pending") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream stream = rig.lone_stream();
  const CUdeviceptr first = rig.on(stream, 28 * kMiB);
  const CUdeviceptr second = rig.on(stream, 26 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 60'000 * kMs) == CUDA_SUCCESS);
  rig.free_on(first, stream);
  rig.free_on(second, stream);
  CHECK(rig.try_on(stream, 60 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  const std::uint64_t before_ns = cusim_now_ns();
  CHECK(rig.try_on(stream, 28 * kMiB).code() == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == before_ns);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("what was drained for a refusal is not a new stream's with the same handle") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream stream = rig.lone_stream();
  const CUdeviceptr block = rig.on(stream, 40 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 60'000 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  CHECK(rig.try_on(stream, 60 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  rig.pools().stream_ending(GENERATE(false, true) ? nullptr : rig.context(), name_of(stream).identity);
  CHECK(rig.try_on(stream, 40 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);  // as far as the pool knows this is another one
  CHECK(rig.pools().check() == "");
}

TEST_CASE("streams that come and go with the GPU idle leave little that waits, and the call after them does not pay for all") {
  RigOptions options;
  options.memory = "64GiB";
  StreamRig rig(options);
  for (int i = 0; i < 2; ++i) rig.free(rig.allocate(8192 * kMiB));  // no allocation from here on is a miss, which would look
  const bool of_any_context = GENERATE(false, true);
  constexpr int kRounds = 1000;
  for (int round = 0; round < kRounds; ++round) {
    const CUstream stream = new_stream();
    rig.free_on(rig.on(stream, kMiB), stream);
    rig.pools().stream_ending(of_any_context ? nullptr : rig.context(), name_of(stream).identity);
    REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
  }
  CHECK(now(rig.counters().deferred_bytes) <= 40 * kMiB);
  CHECK(cusim_calls("cuEventQuery") <= 2 * kRounds);
  const std::uint64_t before = cusim_calls("cuEventQuery");
  rig.free(rig.allocate(8192 * kMiB));
  CHECK(cusim_calls("cuEventQuery") - before <= 64);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("while memory is short a stream's first call is served by what another freed, on the device's side") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream first = new_stream();
  const CUdeviceptr block = rig.on(first, 40 * kMiB);
  REQUIRE(cusim_launch_spin(first, kMs) == CUDA_SUCCESS);
  rig.free_on(block, first);
  const std::uint64_t waits = cusim_calls("cuStreamWaitEvent");
  const std::uint64_t began_ns = cusim_now_ns();
  CHECK(rig.on(new_stream(), 40 * kMiB) == block);
  CHECK(cusim_calls("cuStreamWaitEvent") == waits + 1);
  CHECK(cusim_now_ns() - began_ns < kMs / 2);  // nobody on the host waited for the work
}

TEST_CASE("where the pool has all that the limit allows, but much of it free, streams need no events") {
  RigOptions options = limited_to("64MiB");
  options.pool.preallocate = config::parse_amount("100%");
  StreamRig rig(options);
  const CUstream first = new_stream();
  const CUstream second = new_stream();
  rig.on(first, 512);
  REQUIRE(now(rig.counters().reserved_bytes) == 64 * kMiB);
  const auto events = [] { return cusim_calls("cuEventRecord") + cusim_calls("cuCtxRecordEvent") + cusim_calls("cuEventQuery"); };
  const std::uint64_t before = events();
  for (int step = 0; step < 50; ++step) {
    for (const CUstream stream : {first, second}) {
      const CUdeviceptr large = rig.on(stream, 4 * kMiB);
      const CUdeviceptr small = rig.on(stream, 4096);
      rig.free_on(large, stream);
      rig.free_on(small, stream);
    }
  }
  CHECK(events() == before);
  rig.allocate(50 * kMiB);  // little is left
  rig.free_on(rig.on(first, 4 * kMiB), first);
  CHECK(events() == before + 1);
}

TEST_CASE("an event that cannot be recorded at a free leaves the block to the epochs") {
  StreamRig rig(limited_to("64MiB"));
  rig.on(new_stream(), 512);
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, kMiB);
  CHECK_FALSE(rig.try_on(stream, 80 * kMiB).ok());
  cusim_fail("cuEventRecord", 1, CUDA_ERROR_OUT_OF_MEMORY, 1);
  rig.free_on(block, stream);
  CHECK(now(rig.counters().deferred_bytes) == kMiB);
  CHECK(rig.pools().check() == "");
  for (int i = 0; i < 64; ++i) rig.free(rig.allocate(512));
  CHECK(now(rig.counters().deferred_bytes) < kMiB);
}

TEST_CASE("threshold: what lies in lanes goes back too") {
  RigOptions options;
  options.pool.release_threshold_bytes = 0;
  StreamRig rig(options);
  const CUstream stream = new_stream();
  rig.free_on(rig.on(stream, 64 * kMiB), stream);
  for (int i = 0; i < 128; ++i) rig.free_on(rig.on(stream, 512), stream);
  CHECK(cusim_used_bytes(0) <= 4 * kMiB);
}

TEST_CASE("random stream-ordered work over four streams: no byte has two owners, at any pressure") {
  const char* limit = GENERATE("24MiB", "200MiB");
  StreamRig rig(limited_to(limit));
  std::mt19937 random(7);
  std::vector<CUstream> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(new_stream());
  struct Block {
    CUdeviceptr address;
    std::size_t bytes;
    CUstream stream;
    std::uint8_t value;
    bool is_plain;
  };
  std::vector<Block> live;
  std::uint8_t value = 0;
  std::size_t refused = 0;
  for (int step = 0; step < 10'000; ++step) {
    if (random() % 50 == 0) cusim_advance_ns(random() % (3 * kMs));
    if (live.size() < 8 || random() % 2 == 0) {
      const std::size_t bytes = 512 * (1 + random() % (random() % 6 == 0 ? 4000 : 64));
      const CUstream stream = streams[random() % streams.size()];
      const bool plain = random() % 5 == 0;
      const Result<CUdeviceptr> block = plain ? rig.try_allocate(bytes) : rig.try_on(stream, bytes);
      if (!block.ok()) {
        ++refused;
        REQUIRE(block.code() == CUDA_ERROR_OUT_OF_MEMORY);
        while (live.size() > 4) {
          rig.free_on(live.back().address, live.back().stream);
          live.pop_back();
        }
        continue;
      }
      live.push_back({block.value(), std::min<std::size_t>(bytes, 16 * kKiB), stream, ++value, plain});
      REQUIRE(cusim_launch_fill(stream, block.value(), live.back().bytes, value, random() % kMs) == CUDA_SUCCESS);
    } else {
      const std::size_t at = random() % live.size();
      const Block block = live[at];
      live[at] = live.back();
      live.pop_back();
      REQUIRE(cusim_launch_check(block.stream, block.address, block.bytes, block.value, random() % kMs) == CUDA_SUCCESS);
      const bool is_freed_plainly = random() % 5 == 0;
      if (is_freed_plainly && !block.is_plain) REQUIRE(cuStreamSynchronize(block.stream) == CUDA_SUCCESS);
      if (is_freed_plainly) rig.free(block.address);
      else rig.free_on(block.address, block.stream);
    }
    if (step % 500 == 0) REQUIRE(rig.pools().check() == "");
  }
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 0);
  INFO(limit << ": refused " << refused << ", stolen " << now(rig.counters().rung_steal) << ", lanes " << now(rig.counters().lanes_drained));
  if (std::string(limit) == "24MiB") CHECK(now(rig.counters().rung_steal) > 0);
}

TEST_CASE("a lane that nobody uses any more does not keep its memory for ever") {
  StreamRig rig;
  const CUstream gone = new_stream();
  const CUstream working = new_stream();
  const CUdeviceptr block = rig.on(gone, 8 * kMiB);
  REQUIRE(cusim_launch_spin(gone, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, gone);
  for (int i = 0; i < 600; ++i) rig.free_on(rig.on(working, 512), working);
  CHECK(now(rig.counters().lanes_drained) == 0);
  CHECK(rig.on(working, 16 * kMiB) != block);  // a miss: behind an event of its stream from now on
  CHECK(now(rig.counters().lanes_drained) == 1);
  cusim_advance_ns(5 * kMs);
  CHECK(rig.on(working, 8 * kMiB) == block);
  CHECK(now(rig.counters().lanes_drained) == 1);
}

namespace {
constexpr std::size_t kBlock_bytes = 64 * 1024;
StreamRig* g_rig = nullptr;
std::vector<CUstream> g_others;
std::vector<CUdeviceptr> g_held;

/// The driver is slow: meanwhile seventy other streams free, and lanes change hands.
CUresult CUDAAPI alloc_while_others_free(CUdeviceptr* out, std::size_t bytes) {
  if (!g_held.empty()) {
    std::vector<CUdeviceptr> held;
    held.swap(g_held);
    std::thread([&held] {
      cuCtxSetCurrent(g_rig->context());
      for (std::size_t i = 0; i < held.size(); ++i) g_rig->pools().free_on(held[i], g_rig->context(), name_of(g_others[i]));
    }).join();
  }
  return cuMemAlloc_v2(out, bytes);
}
}  // namespace

TEST_CASE("a lane that another stream got while the driver was asked for memory is not taken from") {
  RigOptions options;
  options.patch = [](DriverApi& api) { api.cuMemAlloc_v2 = alloc_while_others_free; };
  StreamRig rig(options);
  g_rig = &rig;
  const CUstream stream = new_stream();
  rig.free_on(rig.on(stream, kBlock_bytes), stream);  // it has a lane
  std::vector<CUdeviceptr> held;
  for (int i = 0; i < 70; ++i) {
    g_others.push_back(new_stream());
    held.push_back(rig.on(g_others.back(), kBlock_bytes));
    REQUIRE(cusim_launch_fill(g_others.back(), held.back(), 64, 1, 5 * kMs) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_check(g_others.back(), held.back(), 64, 1, 5 * kMs) == CUDA_SUCCESS);
  }
  const std::vector<CUdeviceptr> theirs = held;
  g_held.swap(held);
  while (!g_held.empty()) {
    const CUdeviceptr block = rig.on(stream, kBlock_bytes);
    CHECK(std::find(theirs.begin(), theirs.end(), block) == theirs.end());
  }
  CHECK(rig.pools().check() == "");
  g_others.clear();
}

TEST_CASE("no allocation waits without end for a free in stream order, wherever that came from") {
  StreamRig rig(limited_to("256MiB"));
  const CUstream stream = new_stream();
  const CUdeviceptr block = rig.on(stream, 200 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 60'000 * kMs) == CUDA_SUCCESS);                     // it might as well wait for the host
  const FreeResult freed = rig.pools().free_on(block, nullptr, name_of(new_stream()));  // a stream of another context
  CHECK(freed.outcome == FreeOutcome::freed);
  CHECK(rig.try_allocate(200 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_now_ns() < 6'000 * kMs);
}

TEST_CASE("a stream that needs what it freed in one piece waits for its own work, if not without end") {
  const config::Backing backing = GENERATE(config::Backing::segments, config::Backing::pages);
  const std::uint64_t duration_ms = GENERATE(3'000, 60'000);
  RigOptions options;
  options.memory = "1GiB";
  options.pool.backing = backing;
  StreamRig rig(options);
  const CUstream stream = new_stream();
  std::vector<CUdeviceptr> blocks;
  for (int i = 0; i < 9; ++i) blocks.push_back(rig.on(stream, 100 * kMiB));
  REQUIRE(cusim_launch_spin(stream, duration_ms * kMs) == CUDA_SUCCESS);
  for (std::size_t i = 0; i < 8; ++i) rig.free_on(blocks[i], stream);
  const Result<CUdeviceptr> block = rig.try_on(stream, 790 * kMiB);
  CHECK(block.ok() == (duration_ms == 3'000 || backing == config::Backing::pages));  // pages are one range, and nothing need be waited for
  CHECK(cusim_now_ns() < 6'000 * kMs);
}

TEST_CASE("threshold: a free in stream order gives nothing back while that could block the host") {
  RigOptions options;
  options.pool.release_threshold_bytes = 0;
  StreamRig rig(options);
  const CUstream stream = new_stream();
  const CUstream busy = new_stream();
  rig.allocate(512);  // its region serves the small ones
  const CUdeviceptr block = rig.allocate(128 * kMiB);
  REQUIRE(cusim_launch_spin(stream, kMs) == CUDA_SUCCESS);
  rig.free(block);
  cusim_advance_ns(2 * kMs);
  REQUIRE(cusim_launch_spin(busy, 60'000 * kMs) == CUDA_SUCCESS);
  for (int i = 0; i < 130; ++i) rig.free_on(rig.on(stream, 512), stream);
  CHECK(cusim_now_ns() < 10'000 * kMs);
  cusim_advance_ns(60'000 * kMs);
  for (int i = 0; i < 130; ++i) rig.free_on(rig.on(stream, 512), stream);
  CHECK(cusim_used_bytes(0) <= 4 * kMiB);
}

TEST_CASE("what an idle stream keeps is not held up by the work of another") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream idle = new_stream();
  const CUdeviceptr block = rig.on(idle, 40 * kMiB);
  REQUIRE(cusim_launch_spin(new_stream(), 60000 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, idle);
  CHECK(rig.allocate(40 * kMiB) == block);
  CHECK(cusim_now_ns() < 1000 * kMs);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("the work of a stream that has been destroyed is waited for, and no other") {
  StreamRig rig(limited_to("64MiB"));
  const CUstream stream = rig.lone_stream();
  const CUdeviceptr block = rig.on(stream, 40 * kMiB);
  REQUIRE(cusim_launch_fill(stream, block, 4096, 1, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  rig.pools().stream_ending(rig.context(), name_of(stream).identity);
  REQUIRE(cuStreamDestroy(stream) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(new_stream(), 60000 * kMs) == CUDA_SUCCESS);
  CHECK(rig.try_on(new_stream(), 40 * kMiB).ok());
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(cusim_now_ns() < 1000 * kMs);
}

TEST_CASE("on a driver without events that cover a context a stream still gets what others keep, behind events of theirs") {
  RigOptions options = limited_to("64MiB");
  options.driver_version = "12040";
  StreamRig rig(options);
  const CUstream stream = rig.lone_stream();
  const CUdeviceptr block = rig.on(stream, 40 * kMiB);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  rig.free_on(block, stream);
  CHECK(rig.on(new_stream(), 40 * kMiB) == block);
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(cusim_calls("cuCtxSynchronize") + cusim_calls("cuStreamSynchronize") == 0);
}
