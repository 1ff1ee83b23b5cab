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

RigOptions options_of(config::Backing backing, const char* memory) {
  RigOptions options;
  options.memory = memory;
  options.pool.backing = backing;
  return options;
}

/// Everybody has `kCount` holes, and a stream with endless work has nearly twice the place that it has ever needed.
struct Beside : StreamRig {
  explicit Beside(const RigOptions& options) : StreamRig(options) {
    std::vector<CUdeviceptr> freed(kCount);
    for (CUdeviceptr& block : freed) {
      block = allocate(kHole_bytes);
      allocate(2 * kMiB);
    }
    free_on(on(other, kMiB), other);
    free_on(on(busy, kMiB), busy);
    for (const CUdeviceptr block : freed) free(block);
    REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
    REQUIRE(cusim_launch_wait_host(busy, &told) == CUDA_SUCCESS);
    free_on(on(busy, kPlace_bytes), busy);
    allocate(2 * kMiB);
    free_on(on(busy, kPlace_bytes + 32 * kMiB), busy);  // more than lies there
  }
  ~Beside() { told = 1; }

  /// Pages may have gone from everybody's holes into the place: the other stream asks for a part of them.
  void step() {
    std::vector<CUdeviceptr> blocks(kCount);
    for (CUdeviceptr& block : blocks) block = on(busy, kBlock_bytes);
    for (const CUdeviceptr block : blocks) free_on(block, busy);
    blocks.resize(kCount / 4);
    for (CUdeviceptr& block : blocks) block = on(other, kHole_bytes);
    for (const CUdeviceptr block : blocks) free_on(block, other);
  }

  volatile std::uint32_t told = 0;
  CUstream busy = new_stream();
  CUstream other = new_stream();
};

}  // namespace

TEST_CASE("a stream with room of its own leaves everybody's to the others, however well that would fit") {
  Beside rig(options_of(GENERATE(config::Backing::pages, config::Backing::segments), "8GiB"));
  const std::uint64_t reserved_bytes = now(rig.counters().reserved_bytes);
  rig.step();
  CHECK(now(rig.counters().reserved_bytes) == reserved_bytes);
  CHECK(rig.pools().check() == "");
}

TEST_CASE("a stream that frees what it has itself allocated feeds nobody from its second step on") {
  StreamRig rig(options_of(config::Backing::pages, "8GiB"));
  const CUstream busy = new_stream();
  const CUstream other = new_stream();
  volatile std::uint32_t told = 0;
  REQUIRE(cusim_launch_wait_host(busy, &told) == CUDA_SUCCESS);
  std::vector<CUdeviceptr> blocks(kCount);
  std::uint64_t drained = 0;
  for (int step = 0; step < 3; ++step) {
    for (CUdeviceptr& block : blocks) block = rig.on(busy, kBlock_bytes);
    for (std::size_t i = 0; i < kCount; ++i) {
      rig.free_on(blocks[i], busy);
      if (i % (kCount / 2) == kCount / 4 - 1) rig.on(other, (i + 1) * kBlock_bytes);  // all that lies there
    }
    if (step == 0) drained = now(rig.counters().lanes_drained);
  }
  CHECK(now(rig.counters().lanes_drained) == drained);
  CHECK(rig.pools().check() == "");
  told = 1;
}

TEST_CASE("a stream that frees what another allocates feeds that one within a few steps, whatever it holds itself and whatever it was refused") {
  const bool is_refused = GENERATE(false, true);
  StreamRig rig(options_of(config::Backing::pages, "8GiB"));
  const CUstream busy = new_stream();
  const CUstream other = new_stream();
  volatile std::uint32_t told = 0;
  rig.free_on(rig.on(busy, kMiB), busy);
  rig.on(busy, 4 * kPlace_bytes);
  REQUIRE(cusim_launch_wait_host(busy, &told) == CUDA_SUCCESS);
  std::vector<CUdeviceptr> blocks(kCount);
  const auto step = [&] {
    for (CUdeviceptr& block : blocks) block = rig.on(other, kBlock_bytes);
    for (const CUdeviceptr block : blocks) rig.free_on(block, busy);
    rig.free_on(rig.on(busy, kMiB), busy);  // it does not only free
  };
  for (int i = 0; i < 2; ++i) step();
  if (is_refused) {
    CHECK(rig.try_on(busy, 64 * kGiB).code() == CUDA_ERROR_OUT_OF_MEMORY);
    for (int i = 0; i < 2048; ++i) rig.free_on(rig.on(other, kMiB), other);  // until what streams free has no events of its own any more
  }
  const std::uint64_t drained = now(rig.counters().lanes_drained);
  for (int i = 0; i < 4; ++i) step();
  CHECK(now(rig.counters().lanes_drained) > drained);
  CHECK(rig.pools().check() == "");
  told = 1;
}
