// What streams keep from each other while their work is never over: no more than each has needed.
#include <catch2/catch.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/unit/device/stream_rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::size_t kCount = 16;
constexpr std::size_t kHole_bytes = 9 * kMiB;
constexpr std::size_t kBlock_bytes = 8 * kMiB;  // fits a hole tightly
constexpr std::size_t kPlace_bytes = kCount * kBlock_bytes;

RigOptions options_of(config::Backing backing) {
  RigOptions options;
  options.memory = "8GiB";
  options.pool.backing = backing;
  return options;
}

/// The work of one of two streams is endless once start() was called.
struct Endless : StreamRig {
  explicit Endless(config::Backing backing) : StreamRig(options_of(backing)) {}
  ~Endless() { told = 1; }
  void start() { REQUIRE(cusim_launch_wait_host(busy, &told) == CUDA_SUCCESS); }

  volatile std::uint32_t told = 0;
  CUstream busy = new_stream();
  CUstream other = new_stream();
};

/// Everybody has `kCount` holes, and the stream with endless work has nearly twice the place that it has ever needed.
struct Beside : Endless {
  explicit Beside(config::Backing backing) : Endless(backing) {
    std::vector<CUdeviceptr> freed(kCount);
    for (CUdeviceptr& block : freed) {
      block = allocate(kHole_bytes);
      allocate(2 * kMiB);
    }
    free_on(on(other, kMiB), other);
    free_on(on(busy, kMiB), busy);
    for (const CUdeviceptr block : freed) free(block);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    start();
    free_on(on(busy, kPlace_bytes), busy);
    allocate(2 * kMiB);
    free_on(on(busy, kPlace_bytes + 32 * kMiB), busy);  // more than lies there
  }

  /// Pages may have gone from everybody's holes into the place: the other stream asks for a part of them.
  void step() {
    std::vector<CUdeviceptr> blocks(kCount);
    for (CUdeviceptr& block : blocks) block = on(busy, kBlock_bytes);
    for (const CUdeviceptr block : blocks) free_on(block, busy);
    blocks.resize(kCount / 4);
    for (CUdeviceptr& block : blocks) block = on(other, kHole_bytes);
    for (const CUdeviceptr block : blocks) free_on(block, other);
  }
};

}  // namespace

TEST_CASE("a stream with room of its own leaves everybody's to the others, however well that would fit") {
  Beside rig(GENERATE(config::Backing::pages, config::Backing::segments));
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  rig.step();
  CHECK(now(rig.counters().reserved_bytes) == reserved_bytes);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a stream that frees what it has itself allocated feeds nobody from its second step on") {
  Endless rig(config::Backing::pages);
  rig.start();
  std::vector<CUdeviceptr> blocks(kCount);
  std::uint64_t drained = 0;
  for (int step = 0; step < 3; ++step) {
    for (CUdeviceptr& block : blocks) block = rig.on(rig.busy, kBlock_bytes);
    for (std::size_t i = 0; i < kCount; ++i) {
      rig.free_on(blocks[i], rig.busy);
      if (i % (kCount / 2) == kCount / 4 - 1) rig.on(rig.other, (i + 1) * kBlock_bytes);  // all that lies there
    }
    if (step == 0) drained = now(rig.counters().lanes_drained);
  }
  CHECK(now(rig.counters().lanes_drained) == drained);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a stream that frees what another allocates feeds that one within a few steps, whatever it holds itself and whatever it was refused") {
  const bool is_refused = GENERATE(false, true);
  Endless rig(config::Backing::pages);
  rig.free_on(rig.on(rig.busy, kMiB), rig.busy);
  rig.on(rig.busy, 4 * kPlace_bytes);
  rig.start();
  std::vector<CUdeviceptr> blocks(kCount);
  const auto step = [&] {
    for (CUdeviceptr& block : blocks) block = rig.on(rig.other, kBlock_bytes);
    for (const CUdeviceptr block : blocks) rig.free_on(block, rig.busy);
    rig.free_on(rig.on(rig.busy, kMiB), rig.busy);  // it does not only free
  };
  for (int i = 0; i < 2; ++i) step();
  if (is_refused) {
    CHECK(rig.try_on(rig.busy, 64 * kGiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 2048; ++i) rig.free_on(rig.on(rig.other, kMiB), rig.other);  // until what streams free has no events of its own any more
  }
  const std::uint64_t drained = now(rig.counters().lanes_drained);
  for (int i = 0; i < 4; ++i) step();
  CHECK(now(rig.counters().lanes_drained) > drained);
  CHECK(rig.pools().check() == "");
}
