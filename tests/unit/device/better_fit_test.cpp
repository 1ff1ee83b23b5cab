// Once next to nothing is left, an allocation waits for what its thread freed and fits it, instead of cutting it from a larger hole; and on pages, once all
// but a quarter of everything was needed, for a place beside blocks that stay, instead of keeping an empty page from others.
#include <catch2/catch.hpp>

#include <thread>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kS = 1'000'000'000;
constexpr std::size_t kHole_bytes = 64 * kMiB;
constexpr std::size_t kFitting_bytes = 16 * kMiB;

struct Setting {
  config::Backing backing = config::Backing::pages;
  std::size_t left_bytes = 8 * kMiB;  ///< never allocated
  std::size_t fitting_bytes = kFitting_bytes;
  const char* preallocated = nullptr;
};

/// A device of 1 GiB with a hole of 64 MiB, all else taken but for `left_bytes`; and a block of `fitting_bytes`, which is freed behind work of a second.
struct Full {
  explicit Full(const Setting& setting = {}) : rig(options(setting)) {
    const CUdeviceptr hole = rig.allocate(kHole_bytes);
    rig.allocate(kMiB);
    fitting = rig.allocate(setting.fitting_bytes);
    rig.allocate(kMiB);
    for (const std::size_t bytes : {32 * kMiB, kMiB})
      while (now(rig.counters().live_bytes) + setting.left_bytes + bytes <= kGiB) last = rig.allocate(bytes);
    rig.free(hole);
    REQUIRE(now(rig.counters().deferred_bytes) == 0);
  }
  static RigOptions options(const Setting& setting) {
    RigOptions options;
    options.pool.backing = setting.backing;
    if (setting.preallocated != nullptr) options.pool.preallocate = config::parse_amount(setting.preallocated);
    return options;
  }
  void begin_work() {
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_spin(stream, kS) == CUDA_SUCCESS);
    end_ns = cusim_now_ns() + kS;
  }
  void free_fitting() {
    if (stream == nullptr) begin_work();
    const std::uint64_t closed = now(rig.counters().epochs_closed);
    rig.free(fitting);
    REQUIRE(now(rig.counters().epochs_closed) == closed + 1);
    REQUIRE_FALSE(has_waited());
  }
  bool has_waited() const { return cusim_now_ns() >= end_ns; }

  Rig rig;
  CUdeviceptr fitting = 0;
  CUdeviceptr last = 0;  ///< of 1 MiB, far from it
  CUstream stream = nullptr;
  std::uint64_t end_ns = 0;
};

constexpr std::size_t kQuarterPage_bytes = 512 * kKiB;

/// A device of 1 GiB, all but `left_bytes` of it needed before, with a page of four blocks and a hole of 64 MiB, all of it empty pages.
struct SmallBeside {
  explicit SmallBeside(std::size_t left_bytes = 200 * kMiB, bool has_place = false, std::size_t native_bytes = 0) : rig(Full::options({})) {
    for (CUdeviceptr& block : small) block = rig.allocate(kQuarterPage_bytes);
    const CUdeviceptr hole = rig.allocate(kHole_bytes);
    while (now(rig.counters().live_bytes) + left_bytes + 32 * kMiB <= kGiB) last = rig.allocate(32 * kMiB);
    if (native_bytes != 0) {
      cusim_fail("cuMemCreate", 1, CUDA_ERROR_OUT_OF_MEMORY, 1'000);
      native = rig.allocate(native_bytes);
      REQUIRE(now(rig.counters().native_fallbacks) == 1);
    }
    if (has_place) rig.free(small[3]);
    rig.free(hole);
    REQUIRE(now(rig.counters().deferred_bytes) == 0);
    REQUIRE(small[3] == small[0] + 3 * kQuarterPage_bytes);
    REQUIRE(small[0] % (4 * kQuarterPage_bytes) == 0);
    REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_spin(stream, kS) == CUDA_SUCCESS);
    end_ns = cusim_now_ns() + kS;
  }
  /// And a large block, which closes their epoch.
  void free_behind_work(const std::vector<CUdeviceptr>& blocks) {
    const std::uint64_t closed = now(rig.counters().epochs_closed);
    for (const CUdeviceptr block : blocks) rig.free(block);
    rig.free(last);
    REQUIRE(now(rig.counters().epochs_closed) == closed + 1);
    REQUIRE_FALSE(has_waited());
  }
  bool has_waited() const { return cusim_now_ns() >= end_ns; }

  Rig rig;
  CUdeviceptr small[4]{};
  CUdeviceptr last = 0;
  CUdeviceptr native = 0;
  CUstream stream = nullptr;
  std::uint64_t end_ns = 0;
};

}  // namespace

TEST_CASE("empty pages: a small block waits for a place beside blocks that stay, once all but a quarter was needed") {
  const bool is_more = GENERATE(false, true);
  SmallBeside beside(is_more ? 290 * kMiB : 200 * kMiB);
  beside.free_behind_work({beside.small[1]});
  CHECK((beside.rig.allocate(kQuarterPage_bytes) == beside.small[1]) == !is_more);
  CHECK(beside.has_waited() == !is_more);
  CHECK(now(beside.rig.counters().rung_poll) == (is_more ? 0 : 1));
  CHECK(beside.rig.pools().check() == "");
}

TEST_CASE("empty pages: nobody waits for a place that were an empty page, too, nor for one that is too small") {
  SmallBeside beside;
  SECTION("an empty page") {
    beside.free_behind_work({beside.small[0], beside.small[1], beside.small[2], beside.small[3]});
    beside.rig.allocate(kQuarterPage_bytes);
  }
  SECTION("too small") {
    beside.free_behind_work({beside.small[1]});
    beside.rig.allocate(kQuarterPage_bytes + 512);
  }
  CHECK_FALSE(beside.has_waited());
}

TEST_CASE("empty pages: a block that fills its pages waits for no place") {
  SmallBeside beside;
  beside.free_behind_work({});
  const CUdeviceptr block = beside.rig.allocate(2 * kMiB);
  CHECK(block % (2 * kMiB) == 0);
  CHECK_FALSE(beside.has_waited());
}

TEST_CASE("empty pages: while a hole beside blocks that stay will do nobody waits") {
  SmallBeside beside(200 * kMiB, true);
  beside.free_behind_work({beside.small[1]});
  CHECK(beside.rig.allocate(kQuarterPage_bytes) == beside.small[3]);
  CHECK_FALSE(beside.has_waited());
}

TEST_CASE("empty pages: nobody waits for a block of the driver's own, which leaves no hole") {
  SmallBeside beside(200 * kMiB, false, 90 * kMiB);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(beside.rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL); }) ==
          CUDA_SUCCESS);
  beside.rig.free(beside.native);
  CUgraph graph = nullptr;
  REQUIRE(beside.rig.pools().end_capture(
              stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
  beside.free_behind_work({});
  REQUIRE(beside.rig.pools().find(beside.native, nullptr) != Ownership::unknown);  // it waits with them
  beside.rig.allocate(kQuarterPage_bytes);
  CHECK_FALSE(beside.has_waited());
}

TEST_CASE("full: a block waits for the place that fits it, and leaves the larger hole whole") {
  Full full({.backing = GENERATE(config::Backing::pages, config::Backing::segments)});
  full.free_fitting();
  CHECK(full.rig.allocate(kFitting_bytes) == full.fitting);
  CHECK(full.has_waited());
  CHECK(now(full.rig.counters().rung_poll) == 1);
  const std::uint64_t holes = now(full.rig.counters().rung_hole);
  full.rig.allocate(kHole_bytes);
  CHECK(now(full.rig.counters().rung_hole) == holes + 1);
}

TEST_CASE("full: a block waits for no place that is too small for it") {
  Full full({.left_bytes = 24 * kMiB});
  full.begin_work();
  full.rig.free(full.last);  // shares the event of the next one
  full.free_fitting();
  full.rig.allocate(kFitting_bytes + 512);  // less than what waits in all
  CHECK_FALSE(full.has_waited());
}

TEST_CASE("full: a block waits for a place of three quarters of the hole, and for no larger one") {
  const std::size_t more_bytes = GENERATE(0, 512);
  Full full({.fitting_bytes = kHole_bytes / 4 * 3 + more_bytes});
  full.free_fitting();
  full.rig.allocate(kFitting_bytes);
  CHECK(full.has_waited() == (more_bytes == 0));
}

TEST_CASE("full: on segments small blocks wait for no place") {
  Full full({.backing = config::Backing::segments, .fitting_bytes = kMiB});
  full.free_fitting();
  full.rig.allocate(512 * kKiB - 512);
  CHECK_FALSE(full.has_waited());
  full.rig.allocate(512 * kKiB);
  CHECK(full.has_waited());
}

TEST_CASE("full: while the driver has a thirty-second of everything, nobody waits for a better place") {
  Full full({.backing = config::Backing::segments, .left_bytes = 72 * kMiB});
  REQUIRE(kGiB - now(full.rig.counters().reserved_bytes) >= kGiB / 32);
  full.free_fitting();
  full.rig.allocate(kFitting_bytes);
  CHECK_FALSE(full.has_waited());
}

TEST_CASE("full: while a quarter of everything was never needed at once, on pages a twentieth, nobody waits for a better place") {
  const bool is_more = GENERATE(false, true);
  const bool is_paged = GENERATE(false, true);
  const std::size_t left_bytes = is_paged ? (is_more ? 56 * kMiB : 48 * kMiB) : (is_more ? 288 * kMiB : 224 * kMiB);
  Full full({.backing = is_paged ? config::Backing::pages : config::Backing::segments,
             .left_bytes = left_bytes,
             .fitting_bytes = 32 * kMiB,
             .preallocated = "100%"});
  REQUIRE(kGiB - now(full.rig.counters().reserved_bytes) < kGiB / 32);
  full.free_fitting();
  full.rig.allocate(kFitting_bytes);
  CHECK(full.has_waited() == !is_more);
}

TEST_CASE("full: on pages that had to be moved lately a block waits for a better place until a quarter was never needed") {
  const bool has_moved = GENERATE(false, true);
  Rig rig(Full::options({.preallocated = "100%"}));
  const CUdeviceptr fitting = rig.allocate(48 * kMiB);
  std::vector<CUdeviceptr> blocks;
  while (blocks.size() < 26) blocks.push_back(rig.allocate(32 * kMiB));  // 880 MiB with it: an eighth of 1 GiB was never needed
  if (has_moved) {
    for (std::size_t i = 0; i < 16; i += 2) rig.free(blocks[i]);
    rig.free(rig.allocate(200 * kMiB));
    REQUIRE(now(rig.counters().rung_remap) == 1);
  }
  REQUIRE(now(rig.counters().deferred_bytes) == 0);
  REQUIRE(peak(rig.counters().live_bytes) < 900 * kMiB);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(stream, kS) == CUDA_SUCCESS);
  rig.free(fitting);
  rig.allocate(40 * kMiB);
  CHECK((cusim_now_ns() >= kS) == has_moved);
}

TEST_CASE("full: nobody waits for what another thread freed, whose work may be waiting for this one") {
  Full full;
  std::thread([&] {
    full.rig.use(0);
    full.free_fitting();
  }).join();
  full.rig.allocate(kFitting_bytes);
  CHECK_FALSE(full.has_waited());
}

TEST_CASE("full: nobody waits for a place in another context's memory") {
  Full full({.left_bytes = 40 * kMiB});
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  const auto in_other = [&](std::size_t bytes) {
    const Result<CUdeviceptr> block = full.rig.pools().allocate(other, bytes, "cuMemAlloc_v2");
    REQUIRE(block.ok());
    return block.value();
  };
  full.rig.free(in_other(32 * kMiB));
  REQUIRE(now(full.rig.counters().deferred_bytes) == 0);  // a hole, tighter than all of the first context's
  full.rig.use(0);
  full.free_fitting();
  REQUIRE(cuCtxSetCurrent(other) == CUDA_SUCCESS);
  in_other(kMiB);
  CHECK_FALSE(full.has_waited());
}

TEST_CASE("full: a request in stream order waits for no place") {
  Full full;
  full.free_fitting();
  const StreamName stream{full.stream, reinterpret_cast<std::uintptr_t>(full.stream)};
  REQUIRE(full.rig.pools().allocate_on(full.rig.context(), kFitting_bytes, stream, 1, "cuMemAllocAsync").ok());
  CHECK_FALSE(full.has_waited());
}

TEST_CASE("full: a block looks at 256 freed ones for a better place, however many there are") {
  const std::size_t others = GENERATE(255, 256);
  Full full({.left_bytes = 4 * kMiB, .fitting_bytes = kMiB});
  std::vector<CUdeviceptr> small(others);
  for (CUdeviceptr& block : small) block = full.rig.allocate(512);
  full.begin_work();
  for (const CUdeviceptr block : small) full.rig.free(block);
  full.free_fitting();
  full.rig.allocate(kMiB);
  CHECK(full.has_waited() == (others == 255));
}

TEST_CASE("full: while something captures nobody waits for a better place") {
  Full full;
  full.free_fitting();
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(full.rig.pools().begin_capture(stream, [&] { return cuStreamBeginCapture_v2(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL); }) ==
          CUDA_SUCCESS);
  full.rig.allocate(kFitting_bytes);
  CHECK_FALSE(full.has_waited());
  CUgraph graph = nullptr;
  CHECK(full.rig.pools().end_capture(
            stream, [&] { return cuStreamEndCapture(stream, &graph); }, [] { return false; }) == CUDA_SUCCESS);
}

TEST_CASE("full: an error of the work that is waited for is the allocation's, as it had been the free's") {
  Full full;
  full.free_fitting();
  cusim_fail("cuEventSynchronize", 1, CUDA_ERROR_ILLEGAL_ADDRESS, 1);
  CHECK(full.rig.try_allocate(kFitting_bytes).code() == CUDA_ERROR_ILLEGAL_ADDRESS);
}
