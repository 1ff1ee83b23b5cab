// While something captures: what takes no part in it gives its memory all the same. Contexts beside are told by events, streams by theirs; and no
// block keeps more from others than its own bytes.
#include <catch2/catch.hpp>

#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kOthers_ns = 200 * kMs;  ///< so long other contexts' work has where memory is out
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

StreamName name_of(CUstream stream) { return {stream, reinterpret_cast<std::uintptr_t>(stream)}; }

CUevent new_event() {
  CUevent event = nullptr;
  REQUIRE(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS);
  return event;
}

/// A relaxed capture of the calling thread's, on a stream of device 0.
class CapturingStream {
 public:
  explicit CapturingStream(Rig& rig) : rig_(rig), stream_(new_stream()) {
    REQUIRE(rig.pools().begin_capture(
                stream_, [&] { return cuStreamBeginCapture_v2(stream_, kRelaxed); }, kRelaxed) == CUDA_SUCCESS);
  }
  CUstream stream() const { return stream_; }
  /// What the driver says of it.
  CUresult end() {
    CUgraph graph = nullptr;
    return rig_.pools().end_capture(
        stream_, [&] { return cuStreamEndCapture(stream_, &graph); }, [] { return false; });
  }

 private:
  Rig& rig_;
  CUstream stream_;
};

RigOptions with_memory(const char* memory, config::Backing backing, int devices = 1) {
  RigOptions options;
  options.memory = memory;
  options.devices = devices;
  options.pool.backing = backing;
  return options;
}

/// As the program's cuStreamWaitEvent comes through the shim.
void wait_on(Rig& rig, CUstream stream, CUevent event) {
  const PoolSet::EventWait wait = rig.pools().stream_will_wait(stream);
  REQUIRE(cuStreamWaitEvent(stream, event, 0) == CUDA_SUCCESS);
  rig.pools().stream_has_waited(wait);
}

void free_on(Rig& rig, CUdeviceptr block, CUstream stream) {
  REQUIRE(rig.pools().free_on(block, rig.context(), name_of(stream)).outcome == FreeOutcome::freed);
}

Result<CUdeviceptr> try_on(Rig& rig, CUstream stream, std::size_t bytes) {
  return rig.pools().allocate_on(rig.context(), bytes, name_of(stream), 1, "cuMemAllocAsync");
}

}  // namespace

TEST_CASE("what is freed while something captures can be had, after their work, also when contexts live that take no part in it") {
  for (const config::Backing backing : {config::Backing::segments, config::Backing::pages}) {
    Rig rig(with_memory("64MiB", backing, 2));
    rig.use(1);
    rig.free(rig.allocate(4096));
    REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
    rig.use(0);
    const CUdeviceptr block = rig.allocate(40 * kMiB);
    CapturingStream capture(rig);
    rig.free(block);
    CHECK(cusim_now_ns() < 5 * kMs);  // nobody waits for the other device
    rig.allocate(60 * kMiB);
    CHECK(cusim_now_ns() >= 5 * kMs);
    CHECK(capture.end() == CUDA_SUCCESS);
  }
}

TEST_CASE("where a stream of another context may have come into the capture nothing is recorded, and what is freed waits for the end or for want") {
  Rig rig(with_memory("64MiB", config::Backing::segments, 2));
  rig.use(1);
  rig.free(rig.allocate(4096));
  const CUstream beside = new_stream();
  const CUevent join = new_event();
  rig.use(0);
  const CUevent fork = new_event();
  rig.free(rig.allocate(4096));
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  CapturingStream capture(rig);
  REQUIRE(cuEventRecord(fork, capture.stream()) == CUDA_SUCCESS);
  wait_on(rig, beside, fork);
  const std::uint64_t events = cusim_calls("cuCtxRecordEvent");
  rig.free(block);
  const std::uint64_t freed_ns = cusim_now_ns();
  CHECK(rig.allocate(40 * kMiB) == block);  // natively the free had waited for the block's context, and for no other
  CHECK(cusim_now_ns() >= freed_ns + kOthers_ns);
  rig.free(block);
  CHECK(cusim_calls("cuCtxRecordEvent") == events);
  rig.use(1);
  REQUIRE(cuEventRecord(join, beside) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.use(0);
  wait_on(rig, capture.stream(), join);
  CHECK(capture.end() == CUDA_SUCCESS);
  const std::uint64_t ended_ns = cusim_now_ns();
  rig.allocate(64 * kKiB);
  CHECK(cusim_calls("cuCtxRecordEvent") > events);
  CHECK(rig.allocate(40 * kMiB) == block);
  CHECK(cusim_now_ns() >= ended_ns + 5 * kMs);  // from the end on there are events, behind the other context's work, too
  CHECK(cusim_now_ns() < ended_ns + kOthers_ns);
  // The next capture has nothing to do with that context any more.
  CapturingStream other(rig);
  rig.free(block);
  CHECK(rig.allocate(40 * kMiB) == block);
  CHECK(other.end() == CUDA_SUCCESS);
}

TEST_CASE("what is freed waits for the work of its own context wherever the capture has spread, and nothing else is had with it") {
  const bool is_linked = GENERATE(false, true);
  Rig rig(with_memory("64MiB", config::Backing::segments));
  if (is_linked) rig.pools().link_devices();
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  const CUdeviceptr others_block = rig.allocate(4096);
  rig.allocate(4096);
  const CUstream beside = new_stream();
  rig.use(0);
  const CUdeviceptr block = rig.allocate(40 * kMiB);
  const CUevent fork = new_event();
  CapturingStream capture(rig);
  REQUIRE(cuEventRecord(fork, capture.stream()) == CUDA_SUCCESS);
  wait_on(rig, beside, fork);
  rig.free(others_block);  // too small for a wait
  const std::uint64_t waiting_bytes = now(rig.counters().deferred_bytes);
  REQUIRE(cusim_launch_spin(new_stream(), 5 * kMs) == CUDA_SUCCESS);
  rig.free(block);
  CHECK(cusim_now_ns() >= 5 * kMs);
  CHECK(rig.allocate(40 * kMiB) == block);
  CHECK(cusim_now_ns() >= 5 * kMs + kOthers_ns);
  CHECK(now(rig.counters().deferred_bytes) == waiting_bytes);
  rig.free(block);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("before CUDA 12.5 it is so beside any other context, and the first free after the capture sees to the rest") {
  RigOptions options = with_memory("64MiB", config::Backing::segments, 2);
  options.driver_version = "12040";
  Rig rig(options);
  rig.use(1);
  rig.free(rig.allocate(4096));
  REQUIRE(cusim_launch_spin(new_stream(), 300 * kMs) == CUDA_SUCCESS);
  rig.use(0);
  const CUdeviceptr first = rig.allocate(20 * kMiB);
  const CUdeviceptr second = rig.allocate(20 * kMiB);
  const CUdeviceptr small = rig.allocate(4096);
  CapturingStream capture(rig);
  rig.free(first);
  CHECK(rig.allocate(30 * kMiB) != 0);
  CHECK(cusim_now_ns() < 300 * kMs);
  rig.free(second);
  CHECK(now(rig.counters().deferred_bytes) == 20 * kMiB);
  CHECK(capture.end() == CUDA_SUCCESS);
  rig.free(small);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("memory that was preallocated for another context comes from there while something captures") {
  RigOptions options = with_memory("2GiB", config::Backing::pages);
  options.pool.policy = config::Policy::preallocate;
  options.pool.preallocate = config::parse_amount("75%");
  Rig rig(options);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  REQUIRE(rig.pools().allocate(other, kMiB, "cuMemAlloc_v2").ok());  // it gets the 1.5 GiB
  rig.use(0);
  const CUdeviceptr block = rig.allocate(50 * kMiB);
  CapturingStream capture(rig);
  rig.free(block);
  rig.allocate(1990 * kMiB);
  CHECK(capture.end() == CUDA_SUCCESS);
}

TEST_CASE("pages: a small block that is freed while something captures keeps no large handle from others") {
  RigOptions options = with_memory("2GiB", config::Backing::pages);
  options.pool.preallocate = config::parse_amount("1920MiB");
  Rig rig(options);
  std::vector<CUdeviceptr> small;
  std::vector<CUdeviceptr> large;
  for (int i = 0; i < 30; ++i) {
    small.push_back(rig.allocate(60 * kKiB));  // of no magazine: each behind a large one
    large.push_back(rig.allocate(60 * kMiB));
  }
  for (const CUdeviceptr block : large) rig.free(block);
  CapturingStream capture(rig);
  for (const CUdeviceptr block : small) rig.free(block);
  rig.allocate(1950 * kMiB);
  CHECK(capture.end() == CUDA_SUCCESS);
}

TEST_CASE("a small block that is freed while something captures keeps no holes apart, and no region from another context") {
  Rig rig(with_memory("64MiB", config::Backing::segments));
  rig.ask_for_odd_sizes();
  const CUdeviceptr whole = rig.allocate(60 * kMiB);
  rig.free(whole);
  const CUdeviceptr before = rig.allocate(28 * kMiB);
  const CUdeviceptr small = rig.allocate(512);
  rig.free(before);
  rig.free(rig.allocate(10 * kMiB));
  {
    CapturingStream capture(rig);
    rig.free(small);
    CHECK(rig.allocate(60 * kMiB) == whole);
    CHECK(capture.end() == CUDA_SUCCESS);
  }
  rig.free(whole);
  const CUdeviceptr last = rig.allocate(512);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  const Result<CUdeviceptr> theirs = rig.pools().allocate(other, 512, "cuMemAlloc_v2");
  REQUIRE(theirs.ok());
  rig.use(0);
  CapturingStream capture(rig);
  rig.free(last);
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  CHECK(rig.pools().allocate(other, 58 * kMiB, "cuMemAlloc_v2").ok());
  rig.use(0);
  CHECK(capture.end() == CUDA_SUCCESS);
}

TEST_CASE("many small frees while something captures wait once for many as long as they keep little from others") {
  for (const config::Backing backing : {config::Backing::segments, config::Backing::pages}) {
    Rig rig(with_memory("1GiB", backing));
    std::vector<CUdeviceptr> blocks;
    for (int i = 0; i < 512; ++i) blocks.push_back(rig.allocate(4096));
    CapturingStream capture(rig);
    const std::uint64_t before = cusim_calls("cuMemFree_v2");
    for (std::size_t i = 0; i < blocks.size(); i += 2) rig.free(blocks[i]);
    CHECK(cusim_calls("cuMemFree_v2") - before == 4);
    CHECK(capture.end() == CUDA_SUCCESS);
  }
}

TEST_CASE("what a stream frees while another captures is that stream's again, and others' behind its event") {
  for (const config::Backing backing : {config::Backing::segments, config::Backing::pages}) {
    Rig rig(with_memory("64MiB", backing));
    const CUstream stream = new_stream();
    const CUstream second = new_stream();
    CapturingStream capture(rig);
    CUdeviceptr block = try_on(rig, stream, 40 * kMiB).value();
    REQUIRE(block != 0);
    REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
    free_on(rig, block, stream);
    block = try_on(rig, stream, 40 * kMiB).value();
    CHECK(block != 0);
    CHECK(cusim_now_ns() < 5 * kMs);
    free_on(rig, block, stream);
    block = try_on(rig, second, 40 * kMiB).value();
    CHECK(block != 0);
    CHECK(cusim_now_ns() < 5 * kMs);
    REQUIRE(cusim_launch_spin(second, 5 * kMs) == CUDA_SUCCESS);
    free_on(rig, block, second);
    CHECK(rig.allocate(40 * kMiB) != 0);
    CHECK(cusim_now_ns() >= 10 * kMs);
    CHECK(capture.end() == CUDA_SUCCESS);
  }
}

TEST_CASE("so it is of a stream that was made to wait meanwhile, and takes no part in the capture for all that") {
  for (const char* driver_version : {static_cast<const char*>(nullptr), "12040"}) {
    RigOptions options = with_memory("64MiB", GENERATE(config::Backing::segments, config::Backing::pages));
    options.driver_version = driver_version;
    Rig rig(options);
    const CUstream stream = new_stream();
    const CUevent event = new_event();
    REQUIRE(cuEventRecord(event, nullptr) == CUDA_SUCCESS);
    CapturingStream capture(rig);
    const CUdeviceptr block = try_on(rig, stream, 40 * kMiB).value();
    REQUIRE(block != 0);
    for (int i = 0; i < 3; ++i) wait_on(rig, stream, event);
    REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
    free_on(rig, block, stream);
    CHECK(try_on(rig, new_stream(), 40 * kMiB).ok());
    CHECK(capture.end() == CUDA_SUCCESS);
  }
}

TEST_CASE("but not while a thread is making it wait, nor where more streams wait than are told apart") {
  Rig rig(with_memory("64MiB", config::Backing::segments));
  const CUstream stream = new_stream();
  CapturingStream capture(rig);
  const CUdeviceptr block = try_on(rig, stream, 40 * kMiB).value();
  REQUIRE(block != 0);
  REQUIRE(cusim_launch_spin(stream, 5 * kMs) == CUDA_SUCCESS);
  std::vector<PoolSet::EventWait> waits;
  const bool are_many = GENERATE(false, true);
  if (are_many)
    for (int i = 0; i < 33; ++i) waits.push_back(rig.pools().stream_will_wait(new_stream()));
  else
    for (int i = 0; i < 2; ++i) waits.push_back(rig.pools().stream_will_wait(stream));
  if (!are_many) rig.pools().stream_has_waited(waits[0]);  // of two threads one is done
  free_on(rig, block, stream);
  CHECK_FALSE(try_on(rig, new_stream(), 40 * kMiB).ok());
  CHECK(capture.end() == CUDA_SUCCESS);
  CHECK(try_on(rig, new_stream(), 40 * kMiB).ok());
}

TEST_CASE("a wait that is submitted when another capture goes on is none of those that are under way there") {
  Rig rig(with_memory("64MiB", config::Backing::segments));
  const CUstream stream = new_stream();
  PoolSet::EventWait earlier;
  {
    CapturingStream capture(rig);
    earlier = rig.pools().stream_will_wait(stream);
    CHECK(capture.end() == CUDA_SUCCESS);
  }
  CapturingStream capture(rig);
  rig.pools().stream_will_wait(stream);
  rig.pools().stream_has_waited(earlier);
  const CUdeviceptr block = try_on(rig, stream, 40 * kMiB).value();
  REQUIRE(block != 0);
  free_on(rig, block, stream);
  CHECK_FALSE(try_on(rig, new_stream(), 40 * kMiB).ok());
  CHECK(capture.end() == CUDA_SUCCESS);
}

TEST_CASE("what a stream freed before a capture is others' while that lasts, unless the stream itself captures") {
  Rig rig(with_memory("64MiB", config::Backing::segments));
  const CUstream stream = new_stream();
  const CUdeviceptr block = try_on(rig, stream, 40 * kMiB).value();
  REQUIRE(block != 0);
  free_on(rig, block, stream);
  {
    CapturingStream capture(rig);
    CHECK(rig.allocate(40 * kMiB) == block);
    CHECK(capture.end() == CUDA_SUCCESS);
  }
  CapturingStream capture(rig);
  REQUIRE(rig.pools().free_on(block, rig.context(), name_of(capture.stream())).outcome == FreeOutcome::freed);
  CHECK_FALSE(rig.try_allocate(40 * kMiB).ok());
  CHECK(capture.end() == CUDA_SUCCESS);
  CHECK(rig.allocate(40 * kMiB) == block);
}

TEST_CASE("a driver that cannot record waits everywhere for what was freed while something captured") {
  RigOptions options;
  options.devices = 2;
  options.driver_version = "12040";
  Rig rig(options);
  const CUdeviceptr first = rig.allocate(kMiB);
  const CUdeviceptr second = rig.allocate(kMiB);
  rig.use(1);
  REQUIRE(cusim_launch_spin(new_stream(), 7 * kMs) == CUDA_SUCCESS);
  rig.use(0);
  CapturingStream capturing(rig);
  rig.free(first);
  CHECK(now(rig.counters().deferred_bytes) == kMiB);
  REQUIRE(capturing.end() == CUDA_SUCCESS);
  rig.free(second);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(cusim_now_ns() >= 7 * kMs);
}
