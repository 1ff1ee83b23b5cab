// Contexts that go on with what earlier ones left: blocks of memory pools whose context was destroyed. pool/device/device_contexts.cpp, place_for.
#include <catch2/catch.hpp>

#include <vector>

#include "tests/unit/device/beside.hpp"

using namespace cupool;
using namespace cupool::test;

TEST_CASE("pages: contexts that follow each other leave their blocks in the same pages, and their bytes are safe there") {
  StreamRig rig(on_pages());
  std::vector<CUdeviceptr> kept;
  for (int round = 0; round < 50; ++round) {
    Beside beside(rig);
    std::vector<CUdeviceptr> others;
    for (std::size_t i = 0; i < 40; ++i) {
      others.push_back(rig.allocate(100'000 + i * 10'000));
      others.push_back(beside.on(50'000 + i * 20'000));
    }
    kept.push_back(others[31]);  // in stream order: 350,000 bytes
    REQUIRE(cuMemsetD8_v2(kept.back(), static_cast<unsigned char>(round), 350'000) == CUDA_SUCCESS);
    for (std::size_t i = 0; i < others.size(); ++i) {
      if (i % 2 != 0 && i != 31) rig.pools().free_on(others[i], beside.context, name_of(beside.stream));
    }
    beside.destroy();
    REQUIRE(now(rig.counters().live_blocks) == kept.size());
    REQUIRE(rig.pools().check() == "");
  }
  CHECK(cusim_used_bytes(0) <= 2 * 50 * 350'000);
  CHECK(now(rig.counters().reserved_bytes) == cusim_used_bytes(0));
  for (std::size_t round = 0; round < kept.size(); ++round) {
    CHECK(is_filled(kept[round], 350'000, static_cast<unsigned char>(round)));
    rig.free_on(kept[round], new_stream());
  }
  give_back_all(rig);
}

TEST_CASE("pages: the end of a context takes nothing that earlier ones left and that other work may still touch, nor does its loss") {
  const bool is_lost = GENERATE(false, true);
  StreamRig rig(on_pages());
  const CUstream busy = new_stream();
  Beside first(rig);
  const CUdeviceptr freed = first.on(8 * kMiB);
  const CUdeviceptr kept = first.on(kMiB);
  first.destroy();
  Beside second(rig);
  const CUdeviceptr own = second.on(kMiB);
  rig.use(0);
  volatile std::uint32_t released = 0;
  REQUIRE(cuMemsetD8_v2(kept, 5, kMiB) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_wait_host(busy, &released) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(busy, freed, 8 * kMiB, 1, 1000) == CUDA_SUCCESS);
  rig.free_on(freed, busy);
  const auto destroy = [&] { return cuCtxDestroy_v2(second.context); };
  const auto is_gone = [] { return true; };
  CHECK(rig.pools().end_context(second.context, destroy, is_gone, is_lost ? PoolBlocks::go : PoolBlocks::stay) == CUDA_SUCCESS);
  rig.use(0);
  CHECK(rig.pools().find(own, nullptr) == Ownership::live);
  CHECK(rig.pools().check() == "");
  released = 1;
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
  CHECK(is_filled(kept, kMiB, 5));
  rig.pools().after_wait(rig.context());
  rig.free_on(kept, busy);
  rig.free_on(own, busy);
  give_back_all(rig);
}

TEST_CASE("pages: what earlier contexts left is given back though its free had an event of its own when the next one ended") {
  const bool is_captured = GENERATE(false, true);
  RigOptions options = on_pages();
  if (!is_captured) options.driver_version = "11080";  // no event covers a context, so each free on a stream of another one has its own
  StreamRig rig(options);
  const CUstream stream = new_stream();
  Beside first(rig);
  const CUdeviceptr left = first.on(8 * kMiB);
  first.destroy();
  Beside second(rig);
  if (is_captured) {
    during_capture(rig, [&] { rig.pools().free_on(left, second.context, name_of(second.stream)); });
  } else {
    rig.use(0);
    rig.free_on(left, stream);
  }
  REQUIRE(now(rig.counters().deferred_bytes) == 8 * kMiB);
  second.destroy();
  CHECK(rig.pools().check() == "");
  give_back_all(rig);
}

TEST_CASE("pages: a primary context does not go on with what others left, since its reset takes its own blocks along") {
  StreamRig rig(on_pages());
  const auto reset = [&] {
    const auto call = [] { return CUDA_SUCCESS; };
    return rig.pools().end_context(
        rig.context(), call, [] { return true; }, PoolBlocks::go);
  };
  REQUIRE(reset() == CUDA_SUCCESS);
  Beside beside(rig);
  const CUdeviceptr kept = beside.on(kMiB);
  beside.destroy();
  REQUIRE(cuMemsetD8_v2(kept, 5, kMiB) == CUDA_SUCCESS);
  rig.pools().context_seen(rig.context(), 0);
  const CUdeviceptr own = rig.on(new_stream(), kMiB);
  REQUIRE(rig.pools().find(own, nullptr) == Ownership::live);
  REQUIRE(reset() == CUDA_SUCCESS);
  CHECK(rig.pools().find(own, nullptr) != Ownership::live);
  CHECK(rig.pools().find(kept, nullptr) == Ownership::live);
  CHECK(is_filled(kept, kMiB, 5));
  CHECK(rig.pools().check() == "");
}
