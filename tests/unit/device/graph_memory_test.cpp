// What the driver keeps for CUDA graphs: pool/device/graph_memory.cpp.
#include <catch2/catch.hpp>

#include <optional>
#include <string>

#include "pool/observe/ledger.hpp"
#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {
RigOptions under(config::Policy policy, config::Backing backing = config::Backing::pages) {
  RigOptions options;
  options.pool.policy = policy;
  options.pool.backing = backing;
  return options;
}

/// A graph that takes and frees memory of its own, as a capture leaves it. The pool has heard of it as by the shim.
class Graph {
 public:
  explicit Graph(Rig& rig, std::size_t bytes) : rig_(rig) {
    CUgraph graph = nullptr;
    CUdeviceptr address = 0;
    REQUIRE(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cuStreamBeginCapture_v2(stream_, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
    REQUIRE(cuMemAllocAsync(&address, bytes, stream_) == CUDA_SUCCESS);
    REQUIRE(cuMemFreeAsync(address, stream_) == CUDA_SUCCESS);
    REQUIRE(cuStreamEndCapture(stream_, &graph) == CUDA_SUCCESS);
    REQUIRE(cuGraphInstantiateWithFlags(&exec_, graph, 0) == CUDA_SUCCESS);
    rig.pools().expect_graph_memory();
  }
  CUresult launch() {
    const CUresult result = cuGraphLaunch(exec_, stream_);
    if (result == CUDA_SUCCESS) rig_.pools().graph_launched();
    static_cast<void>(cuStreamSynchronize(stream_));
    return result;
  }

 private:
  Rig& rig_;
  CUstream stream_ = nullptr;
  CUgraphExec exec_ = nullptr;
};

std::uint64_t kept(Rig& rig, int device = 0) { return rig.live(device).outside.graphs.load(); }
std::size_t driver_free() {
  std::size_t free_bytes = 0, total_bytes = 0;
  REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
  return free_bytes;
}
std::uint64_t trims() { return cusim_calls("cuDeviceGraphMemTrim"); }
std::uint64_t part(const observe::Ledger& ledger, const std::string& name) {
  for (const auto& one : ledger.parts)
    if (name == one.name) return one.bytes;
  FAIL("no part " << name);
  return 0;
}
}  // namespace

TEST_CASE("an allocation is served from what the driver keeps for graphs that do not run, under every policy but platform") {
  const auto [policy, backing] =
      GENERATE(values<std::pair<config::Policy, config::Backing>>({{config::Policy::grow, config::Backing::pages},
                                                                   {config::Policy::grow, config::Backing::segments},
                                                                   {config::Policy::async, config::Backing::segments},
                                                                   {config::Policy::platform, config::Backing::segments}}));
  Rig rig(under(policy, backing));
  Graph graph(rig, 512 * kMiB);
  rig.free(rig.allocate(kMiB));  // the device is in use
  REQUIRE(graph.launch() == CUDA_SUCCESS);
  CHECK(kept(rig) == 512 * kMiB);
  const Result<CUdeviceptr> block = rig.try_allocate(768 * kMiB);
  if (policy == config::Policy::platform) {
    CHECK(block.code() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(trims() == 0);
    CHECK(kept(rig) == 512 * kMiB);
    return;
  }
  REQUIRE(block.ok());
  CHECK(trims() == 1);
  CHECK(kept(rig) == 0);
  CHECK(now(rig.counters().rung_graphs) == 1);
  CHECK(rig.pools().check().empty());
  // The graph's next launch finds no memory, until the program frees some: a call outside the pool, for which the pool makes room.
  CHECK(graph.launch() == CUDA_ERROR_OUT_OF_MEMORY);
  rig.free(block.value());
  const std::uint64_t before = rig.pools().times_given_back();
  CHECK(rig.pools().make_room(before));
  CHECK(graph.launch() == CUDA_SUCCESS);
}

TEST_CASE("nothing is taken from a graph that lives: the allocation is refused as natively, and the next launch is served") {
  const auto [policy, backing] = GENERATE(values<std::pair<config::Policy, config::Backing>>({{config::Policy::grow, config::Backing::pages},
                                                                                              {config::Policy::grow, config::Backing::segments},
                                                                                              {config::Policy::async, config::Backing::segments}}));
  Rig rig(under(policy, backing));
  Graph graph(rig, 512 * kMiB);
  rig.pools().note_living_graphs(1U << 0, 1);
  rig.free(rig.allocate(kMiB));
  REQUIRE(graph.launch() == CUDA_SUCCESS);
  CHECK(rig.try_allocate(768 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK_FALSE(rig.pools().trim_graphs());
  CHECK(trims() == 0);
  CHECK(kept(rig) == 512 * kMiB);
  CHECK(graph.launch() == CUDA_SUCCESS);
  rig.pools().note_living_graphs(1U << 0, -1);
  rig.pools().note_living_graphs(1U << 1, 1);  // another device's is in nobody's way
  const Result<CUdeviceptr> block = rig.try_allocate(768 * kMiB);
  REQUIRE(block.ok());
  CHECK(kept(rig) == 0);
  rig.free(block.value());
}

TEST_CASE("nothing is taken from graphs where that would not do") {
  SECTION("the request is larger than all there is") {
    Rig rig(under(config::Policy::grow));
    Graph graph(rig, 256 * kMiB);
    const CUdeviceptr held = rig.allocate(512 * kMiB);
    REQUIRE(graph.launch() == CUDA_SUCCESS);
    CHECK(rig.try_allocate(600 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(trims() == 0);
    CHECK(kept(rig) == 256 * kMiB);
    rig.free(held);
  }
  SECTION("the limit is in the way") {
    RigOptions options = under(config::Policy::grow);
    options.pool.limit.all = config::parse_amount("512MiB");
    Rig rig(options);
    Graph graph(rig, 256 * kMiB);
    const CUdeviceptr held = rig.allocate(400 * kMiB);
    REQUIRE(graph.launch() == CUDA_SUCCESS);
    CHECK(rig.try_allocate(200 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(trims() == 0);
    rig.free(held);
  }
  SECTION("the pool's own memory does") {
    Rig rig(under(config::Policy::grow));
    Graph graph(rig, 128 * kMiB);
    rig.free(rig.allocate(700 * kMiB));
    REQUIRE(graph.launch() == CUDA_SUCCESS);
    rig.free(rig.allocate(800 * kMiB));
    CHECK(trims() == 0);
    CHECK(kept(rig) == 128 * kMiB);
  }
  SECTION("something captures") {
    Rig rig(under(config::Policy::grow));
    Graph graph(rig, 512 * kMiB);
    rig.free(rig.allocate(kMiB));
    REQUIRE(graph.launch() == CUDA_SUCCESS);
    CUstream stream = nullptr;
    CUgraph captured = nullptr;
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL); }) == CUDA_SUCCESS);
    CHECK(rig.try_allocate(768 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(trims() == 0);
    REQUIRE(rig.pools().end_capture(
                stream, [&] { return cuStreamEndCapture(stream, &captured); }, [] { return false; }) == CUDA_SUCCESS);
    rig.free(rig.allocate(768 * kMiB));
    CHECK(trims() == 1);
  }
  SECTION("the driver cannot say") {
    RigOptions options = under(config::Policy::grow);
    options.patch = [](DriverApi& api) { api.cuDeviceGetGraphMemAttribute = nullptr; };
    Rig rig(options);
    Graph graph(rig, 512 * kMiB);
    REQUIRE(graph.launch() == CUDA_SUCCESS);
    CHECK(rig.try_allocate(768 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    CHECK(trims() == 0);
    CHECK(kept(rig) == 0);
  }
}

TEST_CASE("a call outside the pool that was refused gets what the driver keeps for graphs") {
  const bool is_platform = GENERATE(false, true);
  Rig rig(under(is_platform ? config::Policy::platform : config::Policy::grow));
  Graph graph(rig, 512 * kMiB);
  const CUdeviceptr held = rig.allocate(256 * kMiB);
  REQUIRE(graph.launch() == CUDA_SUCCESS);
  const std::size_t before_bytes = driver_free();
  const std::uint64_t times = rig.pools().times_given_back();
  CHECK_FALSE(rig.pools().make_room(times));  // the pool has nothing to give
  CHECK(rig.pools().trim_graphs() == !is_platform);
  CHECK((rig.pools().times_given_back() != times) == !is_platform);  // who was refused meanwhile tries again
  CHECK(driver_free() >= before_bytes + (is_platform ? 0 : 512 * kMiB));
  CHECK_FALSE(rig.pools().trim_graphs());
  rig.free(held);
}

TEST_CASE("a trim that is asked for gives back what is kept for graphs too, one of a memory pool does not") {
  Rig rig(under(config::Policy::grow));
  Graph graph(rig, 128 * kMiB);
  rig.free(rig.allocate(64 * kMiB));
  REQUIRE(graph.launch() == CUDA_SUCCESS);
  CHECK(rig.pools().trim(0, 0) < 128 * kMiB);
  CHECK(kept(rig) == 128 * kMiB);
  CHECK(rig.pools().trim() == 128 * kMiB);
  CHECK(kept(rig) == 0);
}

TEST_CASE("the driver is asked about graphs after few of their launches, and never before there is one that takes memory") {
  Rig rig(under(config::Policy::grow));
  rig.free(rig.allocate(kMiB));
  for (int i = 0; i < 100; ++i) rig.pools().graph_launched();
  CHECK(rig.try_allocate(2 * kGiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cusim_calls("cuDeviceGetGraphMemAttribute") == 0);
  Graph graph(rig, 64 * kMiB);
  for (int i = 0; i < 256; ++i) REQUIRE(graph.launch() == CUDA_SUCCESS);
  CHECK(cusim_calls("cuDeviceGetGraphMemAttribute") == 10);  // 1, 2, 4 ... 64, 128, 192, 256
  CHECK(kept(rig) == 64 * kMiB);
  REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
  rig.pools().note_graph_memory();
  CHECK(kept(rig) == 0);
  rig.pools().graph_launched(true);  // one that is new
  CHECK(cusim_calls("cuDeviceGetGraphMemAttribute") == 12);
}

TEST_CASE("what the driver has given from what it kept for graphs is not told as kept, nor what it calls free since") {
  Rig rig(under(config::Policy::grow));
  rig.free(rig.allocate(kMiB));
  Graph graph(rig, 512 * kMiB);
  REQUIRE(graph.launch() == CUDA_SUCCESS);
  const auto figures = [&] {
    const observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
    const observe::Ledger ledger = observe::ledger_of(device);
    CHECK(device.outside.graphs == part(ledger, "outside_graphs"));
    CHECK_FALSE(ledger.clamped);
    CHECK_FALSE(ledger.driver_free_stale);
    return std::pair{part(ledger, "outside_graphs"), part(ledger, "driver_free")};
  };
  CHECK(figures().first == 512 * kMiB);
  SECTION("the program's own physical memory") {
    REQUIRE(rig.pools().reserve_outside(0, OutsideKind::program_vmm, 768 * kMiB, "cuMemCreate").ok());
    CUmemGenericAllocationHandle handle{};
    CUmemAllocationProp properties{};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);  // for graphs that are gone the driver does so itself
    REQUIRE(cuMemCreate(&handle, 768 * kMiB, &properties, 0) == CUDA_SUCCESS);
    rig.pools().commit_outside(0, OutsideKind::program_vmm, handle, 768 * kMiB);
    CHECK(figures() == std::pair{std::uint64_t{0}, std::uint64_t{driver_free()}});
    REQUIRE(cuMemRelease(handle) == CUDA_SUCCESS);
    CHECK(rig.pools().release_outside(OutsideKind::program_vmm, handle));
  }
  SECTION("a trim that nobody here has seen") {
    REQUIRE(cuDeviceGraphMemTrim(0) == CUDA_SUCCESS);
    std::size_t free_bytes = 0, total_bytes = 0;
    REQUIRE(cuMemGetInfo_v2(&free_bytes, &total_bytes) == CUDA_SUCCESS);
    const std::uint64_t said_bytes = free_bytes;
    rig.pools().adjust_mem_info(rig.context(), &free_bytes, &total_bytes);
    CHECK(figures().first <= total_bytes - said_bytes);
    CHECK(figures().second == said_bytes);
  }
}

TEST_CASE("the ledger tells what is kept for graphs apart from contexts and others, and an out of memory counts it as this process's own") {
  Rig rig(under(config::Policy::grow));
  rig.free(rig.allocate(kMiB));
  const observe::Ledger before = observe::ledger_of(rig.snapshot().devices.at(0));
  Graph graph(rig, 256 * kMiB);
  REQUIRE(graph.launch() == CUDA_SUCCESS);
  const observe::DeviceSnapshot device = rig.snapshot().devices.at(0);
  CHECK(device.outside.graphs == 256 * kMiB);
  const observe::Ledger ledger = observe::ledger_of(device);
  CHECK(part(ledger, "outside_graphs") == 256 * kMiB);
  CHECK(part(ledger, "unattributed") == part(before, "unattributed"));
  CHECK(part(ledger, "driver_free") == driver_free());
  CHECK_FALSE(ledger.clamped);

  const CUdeviceptr held = rig.allocate(512 * kMiB);
  CHECK(rig.try_allocate(600 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  const observe::OomEvidence evidence = rig.snapshot().ooms.at(0).evidence;
  CHECK(evidence.graph_bytes == 256 * kMiB);
  CHECK(evidence.own_outside_bytes == 256 * kMiB);
  CHECK(evidence.unattributed_bytes == part(before, "unattributed"));
  rig.free(held);
}

TEST_CASE("a capture that begins while the driver is asked, or trimmed, goes on") {
  Rig rig(under(config::Policy::grow));
  Graph graph(rig, 128 * kMiB);
  const CUdeviceptr block = rig.allocate(kMiB);
  CUstream stream = nullptr;
  CUgraph captured = nullptr;
  REQUIRE(graph.launch() == CUDA_SUCCESS);
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);  // nobody has told the pool yet
  rig.pools().note_graph_memory();
  CHECK(rig.pools().trim_graphs());
  CHECK(cuStreamEndCapture(stream, &captured) == CUDA_SUCCESS);
  rig.free(block);
}

TEST_CASE("a graph that runs keeps its memory") {
  Rig rig(under(config::Policy::grow));
  Graph graph(rig, 512 * kMiB);
  rig.free(rig.allocate(kMiB));
  REQUIRE(graph.launch() == CUDA_SUCCESS);
  CUstream stream = nullptr;
  CUgraph captured = nullptr;
  CUgraphExec exec = nullptr;
  CUdeviceptr address = 0;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  REQUIRE(cuMemAllocAsync(&address, 256 * kMiB, stream) == CUDA_SUCCESS);
  REQUIRE(cuStreamEndCapture(stream, &captured) == CUDA_SUCCESS);
  REQUIRE(cuGraphInstantiateWithFlags(&exec, captured, 0) == CUDA_SUCCESS);
  REQUIRE(cuGraphLaunch(exec, stream) == CUDA_SUCCESS);  // leaves its block live
  rig.pools().graph_launched();
  CHECK(kept(rig) == 768 * kMiB);
  const CUdeviceptr block = rig.allocate(640 * kMiB);
  CHECK(kept(rig) == 256 * kMiB);
  CHECK(cuMemsetD8Async(address, 1, 256 * kMiB, stream) == CUDA_SUCCESS);
  CHECK(rig.try_allocate(256 * kMiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuMemFreeAsync(address, stream) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  rig.free(block);
}
