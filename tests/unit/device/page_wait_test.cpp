// A miss on pages, once half of the device is taken: what this thread freed is waited for, as natively its free had waited, before memory is taken.
#include <catch2/catch.hpp>

#include <thread>
#include <vector>

#include "tests/conformance/rig.hpp"

using namespace cupool;
using namespace cupool::test;

namespace {

constexpr std::uint64_t kS = 1'000'000'000;
constexpr std::size_t kBlock_bytes = 64 * kMiB;

/// `taken_bytes` stay live; a block is freed by `free`, while work of a second runs.
template <class F> void free_behind_work(Rig& rig, std::size_t taken_bytes, F&& free) {
  if (taken_bytes != 0) rig.allocate(taken_bytes);
  const CUdeviceptr block = rig.allocate(kBlock_bytes);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(stream, kS) == CUDA_SUCCESS);
  const std::uint64_t closed = now(rig.counters().epochs_closed);
  free(block);
  REQUIRE(now(rig.counters().epochs_closed) == closed + 1);
  REQUIRE(cusim_now_ns() < kS);
}

}  // namespace

TEST_CASE("pages: with half of the device taken a miss waits for what would do, and takes nothing") {
  Rig rig(on_pages());
  free_behind_work(rig, 600 * kMiB, [&](CUdeviceptr block) { rig.free(block); });
  const std::uint64_t created = cusim_calls("cuMemCreate");
  rig.allocate(kBlock_bytes);
  CHECK(cusim_now_ns() >= kS);
  CHECK(cusim_calls("cuMemCreate") == created);
  CHECK(now(rig.counters().rung_poll) == 1);
}

TEST_CASE("pages: what is over in every context comes back also while another one's work keeps what was freed last") {
  RigOptions options = on_pages();
  options.devices = 2;
  Rig rig(options);
  rig.use(1);
  rig.free(rig.allocate(4096));
  rig.use(0);
  const CUdeviceptr last = rig.allocate(40 * kMiB);
  free_behind_work(rig, 600 * kMiB, [&](CUdeviceptr block) { rig.free(block); });
  rig.use(1);
  volatile std::uint32_t released = 0;
  REQUIRE(cusim_launch_wait_host(new_stream(), &released) == CUDA_SUCCESS);
  rig.use(0);
  rig.free(last);
  CHECK(cusim_now_ns() < kS);
  CHECK(now(rig.counters().deferred_bytes) == kBlock_bytes + 40 * kMiB);
  const std::uint64_t created = cusim_calls("cuMemCreate");
  rig.allocate(kBlock_bytes);
  CHECK(cusim_now_ns() >= kS);
  CHECK(cusim_calls("cuMemCreate") == created);
  released = 1;
}

TEST_CASE("pages: with half of the device taken a miss does not wait for too little") {
  Rig rig(on_pages());
  free_behind_work(rig, 600 * kMiB, [&](CUdeviceptr block) { rig.free(block); });
  rig.allocate(kBlock_bytes + kMiB);
  CHECK(cusim_now_ns() < kS);
  CHECK(now(rig.counters().rung_grow) == 3);
}

TEST_CASE("pages: a miss does not wait while what waits is a trifle beside what is left, and what grows so stays one") {
  constexpr std::size_t kPart_bytes = 40 * kMiB;  // an epoch
  Rig rig(on_pages());
  rig.allocate(520 * kMiB);
  CUdeviceptr block = rig.allocate(kPart_bytes);
  rig.allocate(now(rig.counters().reserved_bytes) - now(rig.counters().live_bytes));  // nothing is free
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  const std::uint64_t begun_bytes = now(rig.counters().reserved_bytes);
  const std::uint64_t room_bytes = kGiB - begun_bytes;
  REQUIRE(cusim_launch_spin(stream, kS) == CUDA_SUCCESS);
  rig.free(block);
  block = rig.allocate(kPart_bytes);
  CHECK(cusim_now_ns() < kS);
  CHECK(cusim_calls("cuEventSynchronize") == 0);
  for (int round = 0; round < 20; ++round) {  // all of it waits for the same work
    rig.free(block);
    block = rig.allocate(kPart_bytes);
  }
  CHECK(cusim_now_ns() >= kS);  // what waited had become more than a trifle
  CHECK(now(rig.counters().reserved_bytes) <= begun_bytes + room_bytes / 8 + 2 * kPart_bytes);
}

TEST_CASE("pages: a job that repeats itself waits in its steps only where growing would leave too little") {
  const bool is_tight = GENERATE(false, true);
  Rig rig(on_pages());
  rig.allocate((is_tight ? 640 : 480) * kMiB);
  CUdeviceptr block = rig.allocate(kBlock_bytes);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::uint64_t waits = 0;
  for (int step = 0; step < 30; ++step) {  // the GPU is two blocks behind
    REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
    rig.free(block);
    block = rig.allocate(kBlock_bytes);
    if (step >= 2) cusim_advance_ns(10 * kMs);
    if (step == 10) waits = cusim_calls("cuEventSynchronize");
  }
  CHECK(waits > 0);  // before the job is known
  if (is_tight) CHECK(cusim_calls("cuEventSynchronize") > waits);
  else CHECK(cusim_calls("cuEventSynchronize") == waits);
}

TEST_CASE("pages: once two more steps have come to the same peak the next ones wait only where less than an eighth of it would be left") {
  constexpr std::size_t kPart_bytes = 20 * kMiB;
  constexpr std::uint64_t kBehind = 8;
  const bool is_tight = GENERATE(false, true);
  Rig rig(on_pages());
  rig.allocate((is_tight ? 700 : 480) * kMiB);
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  std::uint64_t waits = 0;
  std::uint64_t frees = 0;
  for (int step = 0; step < 12; ++step) {
    std::vector<CUdeviceptr> parts;
    for (int i = 0; i < 10; ++i) parts.push_back(rig.allocate(kPart_bytes));
    for (const CUdeviceptr part : parts) {
      REQUIRE(cusim_launch_spin(stream, 10 * kMs) == CUDA_SUCCESS);
      rig.free(part);
      if (++frees > cusim_now_ns() / (10 * kMs) + kBehind) cusim_advance_ns(10 * kMs);  // so far behind also after a wait
    }
    if (step == 3) waits = cusim_calls("cuEventSynchronize");
  }
  CHECK(waits > 0);  // before the job is known
  if (is_tight) CHECK(cusim_calls("cuEventSynchronize") > waits);
  else CHECK(cusim_calls("cuEventSynchronize") == waits);
}

TEST_CASE("pages: with plenty left a miss waits for nobody") {
  Rig rig(on_pages());
  free_behind_work(rig, 0, [&](CUdeviceptr block) { rig.free(block); });
  rig.allocate(kBlock_bytes);
  CHECK(cusim_now_ns() < kS);
  CHECK(now(rig.counters().rung_grow) == 2);
}

TEST_CASE("pages: a miss does not wait for what another thread freed, whose work may be waiting for this one") {
  Rig rig(on_pages());
  free_behind_work(rig, 600 * kMiB, [&](CUdeviceptr block) {
    CUresult code = CUDA_ERROR_UNKNOWN;
    std::thread([&] {
      rig.use(0);
      code = rig.pools().free(block).error.code;
    }).join();
    REQUIRE(code == CUDA_SUCCESS);
  });
  rig.allocate(kBlock_bytes);
  CHECK(cusim_now_ns() < kS);
  CHECK(now(rig.counters().rung_grow) == 3);
}

TEST_CASE("pages: a request in stream order does not wait for a plain free") {
  Rig rig(on_pages());
  free_behind_work(rig, 600 * kMiB, [&](CUdeviceptr block) { rig.free(block); });
  CUstream stream = nullptr;
  REQUIRE(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  REQUIRE(rig.pools().allocate_on(rig.context(), kBlock_bytes, {stream, reinterpret_cast<std::uintptr_t>(stream)}, 1, "cuMemAllocAsync").ok());
  CHECK(cusim_now_ns() < kS);
}
