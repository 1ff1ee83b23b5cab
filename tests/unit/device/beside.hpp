// What tests of blocks that outlive their context share: a context beside the primary, and what must be left in the end.
#pragma once

#include <catch2/catch.hpp>

#include <vector>

#include "tests/unit/device/ending.hpp"
#include "tests/unit/device/stream_rig.hpp"

namespace cupool::test {

/// A context beside the primary, with a stream.
struct Beside {
  explicit Beside(Rig& with) : rig(with), context(create(with, 0)), stream(new_stream()) {}
  CUdeviceptr on(std::size_t bytes, std::uint8_t mempool = kDefaultPool) {
    const Result<CUdeviceptr> block = rig.pools().allocate_on(context, bytes, name_of(stream), mempool, "cuMemAllocAsync", BlockLife::pool);
    REQUIRE(block.code() == CUDA_SUCCESS);
    return block.value();
  }
  /// The primary is current then.
  void destroy() {
    CHECK(rig.pools().end_context(
              context, [this] { return cuCtxDestroy_v2(context); }, [] { return true; }) == CUDA_SUCCESS);
    rig.use(0);
  }
  Rig& rig;
  CUcontext context;
  CUstream stream;
};

/// `call` while another stream captures.
template <class F> void during_capture(Rig& rig, F&& call) {
  const CUstream capturing = new_stream();
  const auto begin = [&] { return cuStreamBeginCapture_v2(capturing, CU_STREAM_CAPTURE_MODE_RELAXED); };
  REQUIRE(rig.pools().begin_capture(capturing, begin, CU_STREAM_CAPTURE_MODE_RELAXED) == CUDA_SUCCESS);
  call();
  CUgraph graph = nullptr;
  const auto end = [&] { return cuStreamEndCapture(capturing, &graph); };
  REQUIRE(rig.pools().end_capture(capturing, end, [] { return false; }) == CUDA_SUCCESS);
  REQUIRE(cuGraphDestroy(graph) == CUDA_SUCCESS);
}

inline bool is_filled(CUdeviceptr address, std::size_t bytes, unsigned char value) {
  std::vector<unsigned char> found(bytes);
  REQUIRE(cuMemcpyDtoH_v2(found.data(), address, bytes) == CUDA_SUCCESS);
  return found == std::vector<unsigned char>(bytes, value);
}

inline void give_back_all(Rig& rig) {
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  rig.pools().trim();
  CHECK(now(rig.counters().live_bytes) == 0);
  CHECK(now(rig.counters().deferred_bytes) == 0);
  CHECK(now(rig.counters().reserved_bytes) == 0);
  CHECK(cusim_used_bytes(0) == 0);
  CHECK(rig.pools().check() == "");
}

}  // namespace cupool::test
