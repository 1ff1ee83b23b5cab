// StreamRig: a Rig with allocations and frees on streams, as the shim makes them. For the thread of the test: Catch is for one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <catch2/catch.hpp>

#include "pool/device/magazine.hpp"
#include "pool/device/stream_lanes.hpp"
#include "tests/conformance/rig.hpp"

namespace cupool::test {

inline constexpr std::uint8_t kDefaultPool = 1;

inline StreamName name_of(CUstream stream) { return {stream, reinterpret_cast<std::uintptr_t>(stream)}; }

struct StreamRig : Rig {
  using Rig::Rig;
  Result<CUdeviceptr> try_on(CUstream stream, std::size_t bytes, std::uint8_t mempool = kDefaultPool) {
    return pools().allocate_on(context(), bytes, name_of(stream), mempool, "cuMemAllocAsync");
  }
  CUdeviceptr on(CUstream stream, std::size_t bytes, std::uint8_t mempool = kDefaultPool) {
    const Result<CUdeviceptr> block = try_on(stream, bytes, mempool);
    REQUIRE(block.code() == CUDA_SUCCESS);
    return block.value();
  }
  void free_on(CUdeviceptr address, CUstream stream) {
    const FreeResult result = pools().free_on(address, context(), name_of(stream));
    REQUIRE(result.error.code == CUDA_SUCCESS);
    REQUIRE(result.outcome == FreeOutcome::freed);
  }
  /// A program of one stream: what that frees goes into its lane without an event, also while memory is short.
  CUstream lone_stream() {
    const CUstream stream = new_stream();
    for (std::uint32_t i = 0; i < device::StreamLanes::kLoneFrees; ++i) free_on(on(stream, 512), stream);
    return stream;
  }
};

/// A stream whose blocks of one size, which comes and goes, the thread keeps by now; all of them are free.
inline std::vector<CUdeviceptr> kept_blocks(StreamRig& rig, CUstream stream, std::size_t bytes, std::size_t count) {
  std::vector<CUdeviceptr> blocks(count);
  for (int round = 0; round < 3; ++round) {
    for (CUdeviceptr& block : blocks) block = rig.on(stream, bytes);
    for (const CUdeviceptr block : blocks) rig.free_on(block, stream);
    for (std::uint32_t i = 0; i <= device::Magazine::kHot && round == 0; ++i) rig.free_on(rig.on(stream, bytes), stream);
  }
  return blocks;
}
}  // namespace cupool::test
