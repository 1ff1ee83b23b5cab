// Streams, events and the clock: what completes when, and what waits for what.
#include <atomic>
#include <catch2/catch.hpp>
#include <thread>

#include "sim_fixture.hpp"

using sim_test::kMiB;
using sim_test::Simulated;

TEST_CASE("a query never completes work; the clock and waits do") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUevent event = Simulated::event();
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);  // never recorded
  REQUIRE(cusim_launch_spin(stream, 1000) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, stream) == CUDA_SUCCESS);
  for (int i = 0; i < 100; ++i) CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  CHECK(cusim_now_ns() == 0);
  SECTION("the clock, when it passes the end") {
    cusim_advance_ns(999);
    CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
    cusim_advance_ns(1);
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
  }
  SECTION("a wait for the event") {
    CHECK(cuEventSynchronize(event) == CUDA_SUCCESS);
    CHECK(cuEventQuery(event) == CUDA_SUCCESS);
    CHECK(cusim_now_ns() == 1000);
  }
  SECTION("a wait for the stream, and for the context") {
    CHECK(cuStreamSynchronize(stream) == CUDA_SUCCESS);
    REQUIRE(cusim_launch_spin(stream, 50) == CUDA_SUCCESS);
    CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
    CHECK(cusim_now_ns() == 1050);
  }
}

TEST_CASE("an event of an idle stream is complete at once") {
  const Simulated sim;
  const CUevent event = Simulated::event();
  REQUIRE(cuEventRecord(event, Simulated::stream()) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
}

TEST_CASE("work touches memory when it completes, so early reuse corrupts data") {
  const Simulated sim;
  const CUstream slow = Simulated::stream();
  const CUstream fast = Simulated::stream();
  const CUdeviceptr address = Simulated::allocate(4096);
  REQUIRE(cusim_launch_fill(slow, address, 4096, 1, 1000) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(fast, address, 4096, 2, 10) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(fast) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_check(fast, address, 4096, 2, 5000) == CUDA_SUCCESS);
  REQUIRE(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_mismatched_bytes() == 4096);
}

TEST_CASE("a free waits for the work of its context") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUdeviceptr address = Simulated::allocate(4096);
  REQUIRE(cusim_launch_fill(stream, address, 4096, 1, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 1000);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_violation_count() == 0);
}

TEST_CASE("a free waits for the work of the context that owns the memory, and for no other's") {
  const Simulated sim;
  const CUdeviceptr address = Simulated::allocate(4096);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(nullptr, 1000) == CUDA_SUCCESS);
  REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 0);
}

TEST_CASE("a kernel on freed memory breaks every context of its device, and those to come") {
  const Simulated sim{{"DEVICES", "2"}};
  CUcontext beside = nullptr, elsewhere = nullptr;
  REQUIRE(cuCtxCreate_v2(&elsewhere, 0, 1) == CUDA_SUCCESS);
  REQUIRE(cuCtxCreate_v2(&beside, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cuCtxSetCurrent(sim.context) == CUDA_SUCCESS);
  const CUdeviceptr address = Simulated::allocate(4096);
  REQUIRE(cuMemFree_v2(address) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_fill(nullptr, address, 1, 1, 10) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cusim_violation_count() == 1);
  CUdeviceptr other = 0;
  CHECK(cuMemAlloc_v2(&other, 1) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(cuCtxSetCurrent(beside) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&other, 1) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CUevent event = nullptr;
  CHECK(cuEventCreate(&event, 0) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuCtxDestroy_v2(beside) == CUDA_SUCCESS);
  CHECK(cuCtxCreate_v2(&beside, 0, 0) == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuDevicePrimaryCtxReset_v2(0) == CUDA_SUCCESS);
  CHECK(cuDevicePrimaryCtxRetain(&beside, 0) == CUDA_ERROR_ILLEGAL_ADDRESS);
  REQUIRE(cuCtxSetCurrent(elsewhere) == CUDA_SUCCESS);
  CHECK(cuMemAlloc_v2(&other, 1) == CUDA_SUCCESS);
}

TEST_CASE("streams run in order and beside each other, and wait for events") {
  const Simulated sim;
  const CUstream one = Simulated::stream();
  const CUstream two = Simulated::stream();
  const CUevent event = Simulated::event();
  REQUIRE(cusim_launch_spin(one, 100) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, one) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(one, 100) == CUDA_SUCCESS);
  REQUIRE(cuStreamWaitEvent(two, event, 0) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(two, 30) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(two) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 130);
  CHECK(cuStreamQuery(one) == CUDA_ERROR_NOT_READY);
  REQUIRE(cuStreamSynchronize(one) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 200);
}

TEST_CASE("the legacy stream orders itself with blocking streams only") {
  const Simulated sim;
  const CUstream blocking = Simulated::stream(CU_STREAM_DEFAULT);
  const CUstream free_running = Simulated::stream(CU_STREAM_NON_BLOCKING);
  REQUIRE(cusim_launch_spin(blocking, 100) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(free_running, 1000) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(nullptr, 10) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(blocking, 1) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(blocking) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 111);
  CHECK(cuStreamQuery(nullptr) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(free_running) == CUDA_ERROR_NOT_READY);
}

TEST_CASE("the per-thread default stream is another one in each thread") {
  const Simulated sim;
  unsigned long long legacy = 0;
  unsigned long long mine = 0;
  unsigned long long theirs = 0;
  REQUIRE(cuStreamGetId(nullptr, &legacy) == CUDA_SUCCESS);
  REQUIRE(cuStreamGetId_ptsz(nullptr, &mine) == CUDA_SUCCESS);
  std::thread([&] {
    cuCtxSetCurrent(sim.context);
    cuStreamGetId(CU_STREAM_PER_THREAD, &theirs);
  }).join();
  CHECK(legacy != mine);
  CHECK(mine != theirs);
  const CUevent event = Simulated::event();
  REQUIRE(cusim_launch_spin(CU_STREAM_PER_THREAD, 100) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord_ptsz(event, nullptr) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  CHECK(cuStreamSynchronize_ptsz(nullptr) == CUDA_SUCCESS);
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
}

TEST_CASE("a context event covers every stream of its context, and no other context") {
  const Simulated sim;
  const CUevent event = Simulated::event();
  const CUstream gone = Simulated::stream();
  REQUIRE(cusim_launch_spin(Simulated::stream(), 100) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(CU_STREAM_PER_THREAD, 200) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(gone, 300) == CUDA_SUCCESS);
  REQUIRE(cuStreamDestroy_v2(gone) == CUDA_SUCCESS);
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(nullptr, 9000) == CUDA_SUCCESS);
  CHECK(cuCtxRecordEvent(other, event) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuCtxRecordEvent(sim.context, event) == CUDA_SUCCESS);
  cusim_advance_ns(299);
  CHECK(cuEventQuery(event) == CUDA_ERROR_NOT_READY);
  cusim_advance_ns(1);
  CHECK(cuEventQuery(event) == CUDA_SUCCESS);
}

TEST_CASE("a context that waits for an event holds back all its later work") {
  const Simulated sim;
  const CUevent event = Simulated::event();
  const CUstream one = Simulated::stream();
  const CUstream two = Simulated::stream();
  REQUIRE(cusim_launch_spin(one, 500) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(event, one) == CUDA_SUCCESS);
  REQUIRE(cuCtxWaitEvent(sim.context, event) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(two, 1) == CUDA_SUCCESS);
  REQUIRE(cuStreamSynchronize(two) == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 501);
}

TEST_CASE("work that waits for the host really waits") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  std::uint32_t flag = 0;
  std::atomic<bool> returned{false};
  REQUIRE(cusim_launch_wait_host(stream, &flag) == CUDA_SUCCESS);
  cusim_advance_ns(1'000'000);
  CHECK(cuStreamQuery(stream) == CUDA_ERROR_NOT_READY);
  std::thread waiter([&] {
    cuCtxSetCurrent(sim.context);
    cuStreamSynchronize(stream);
    returned = true;
  });
  // Other work and other calls go on meanwhile.
  REQUIRE(cusim_launch_spin(Simulated::stream(), 10) == CUDA_SUCCESS);
  CHECK(Simulated::allocate(4096) != 0);
  CHECK_FALSE(returned);
  __atomic_store_n(&flag, 1U, __ATOMIC_RELEASE);
  waiter.join();
  CHECK(returned);
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
}

TEST_CASE("host functions run at completion, in order, and may not call the driver") {
  const Simulated sim;
  struct Seen {
    int runs = 0;
    CUresult inner = CUDA_SUCCESS;
  } seen;
  const CUstream stream = Simulated::stream();
  REQUIRE(cusim_launch_spin(stream, 100) == CUDA_SUCCESS);
  REQUIRE(cuLaunchHostFunc(
              stream,
              [](void* data) {
                auto* state = static_cast<Seen*>(data);
                ++state->runs;
                CUdeviceptr address = 0;
                state->inner = cuMemAlloc_v2(&address, 1);
              },
              &seen) == CUDA_SUCCESS);
  CHECK(seen.runs == 0);
  REQUIRE(cuStreamSynchronize(stream) == CUDA_SUCCESS);
  CHECK(seen.runs == 1);
  CHECK(seen.inner == CUDA_ERROR_NOT_PERMITTED);
  CHECK(cusim_violation_count() == 1);
}

TEST_CASE("events measure the virtual time between them") {
  const Simulated sim;
  const CUevent start = Simulated::event(CU_EVENT_DEFAULT);
  const CUevent end = Simulated::event(CU_EVENT_DEFAULT);
  float milliseconds = 0;
  CHECK(cuEventElapsedTime(&milliseconds, start, end) == CUDA_ERROR_INVALID_HANDLE);
  REQUIRE(cuEventRecord(start, nullptr) == CUDA_SUCCESS);
  REQUIRE(cusim_launch_spin(nullptr, 2'500'000) == CUDA_SUCCESS);
  REQUIRE(cuEventRecord(end, nullptr) == CUDA_SUCCESS);
  CHECK(cuEventElapsedTime(&milliseconds, start, end) == CUDA_ERROR_NOT_READY);
  REQUIRE(cuEventSynchronize(end) == CUDA_SUCCESS);
  CHECK(cuEventElapsedTime(&milliseconds, start, end) == CUDA_SUCCESS);
  CHECK(milliseconds == Approx(2.5f));
}

TEST_CASE("destroyed handles are refused and are violations") {
  const Simulated sim;
  const CUstream stream = Simulated::stream();
  const CUevent event = Simulated::event();
  REQUIRE(cuStreamDestroy_v2(stream) == CUDA_SUCCESS);
  REQUIRE(cuEventDestroy_v2(event) == CUDA_SUCCESS);
  CHECK(cuStreamSynchronize(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuStreamDestroy_v2(stream) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventDestroy_v2(event) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventRecord(event, nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cusim_violation_count() == 4);
  CHECK(cuStreamDestroy_v2(nullptr) == CUDA_ERROR_INVALID_HANDLE);
  CUstream bad = nullptr;
  CHECK(cuStreamCreate(&bad, 77) == CUDA_ERROR_INVALID_VALUE);
}

TEST_CASE("an event is recorded only in streams of its own context") {
  const Simulated sim;
  const CUevent event = Simulated::event();
  CUcontext other = nullptr;
  REQUIRE(cuCtxCreate_v2(&other, 0, 0) == CUDA_SUCCESS);
  CHECK(cuEventRecord(event, Simulated::stream()) == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuEventRecord(event, nullptr) == CUDA_ERROR_INVALID_HANDLE);
}

TEST_CASE("threads share the driver without losing work") {
  const Simulated sim;
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      cuCtxSetCurrent(sim.context);
      const CUstream stream = Simulated::stream();
      for (int i = 0; i < 300; ++i) {
        const CUdeviceptr address = Simulated::allocate(1000);
        cusim_launch_fill(stream, address, 1000, static_cast<std::uint8_t>(t + 1), 100);
        cusim_launch_check(stream, address, 1000, static_cast<std::uint8_t>(t + 1), 100);
        if (i % 3 == 0) cuStreamSynchronize(stream);
        if (cuMemFree_v2(address) != CUDA_SUCCESS) ++failures;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(failures == 0);
  CHECK(cusim_mismatched_bytes() == 0);
  CHECK(cusim_violation_count() == 0);
  CHECK(cusim_used_bytes(0) == 0);
}

TEST_CASE("on the real clock work completes by itself") {
  const Simulated sim{{"CLOCK", "real"}};
  const CUstream stream = Simulated::stream();
  REQUIRE(cusim_launch_spin(stream, 1'000'000) == CUDA_SUCCESS);
  while (cuStreamQuery(stream) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
  CHECK(cuStreamQuery(stream) == CUDA_SUCCESS);
}

TEST_CASE("where handles return, the next stream, event and context have those of the last, and none of their work") {
  const Simulated sim{{"REUSE_HANDLES", "1"}};
  const CUstream first = Simulated::stream();
  REQUIRE(cusim_launch_spin(first, 1000) == CUDA_SUCCESS);
  REQUIRE(cuStreamDestroy_v2(first) == CUDA_SUCCESS);
  const CUstream second = Simulated::stream();
  CHECK(second == first);
  unsigned long long ids[2] = {};
  REQUIRE(cuStreamGetId(second, &ids[0]) == CUDA_SUCCESS);
  CHECK(cuStreamQuery(second) == CUDA_SUCCESS);
  CHECK(cuCtxSynchronize() == CUDA_SUCCESS);
  CHECK(cusim_now_ns() == 1000);
  const CUevent event = Simulated::event();
  REQUIRE(cuEventDestroy_v2(event) == CUDA_SUCCESS);
  CHECK(Simulated::event() == event);
  CUcontext made[2] = {};
  for (CUcontext& context : made) {
    REQUIRE(cuCtxCreate_v2(&context, 0, 0) == CUDA_SUCCESS);
    CHECK(Simulated::allocate(1000) != 0);
    CHECK(cuStreamGetId(Simulated::stream(), &ids[1]) == CUDA_SUCCESS);
    REQUIRE(cuCtxDestroy_v2(context) == CUDA_SUCCESS);
  }
  CHECK(made[0] == made[1]);
  CHECK(ids[0] != ids[1]);
  CHECK(cusim_allocation_count(0) == 0);
  CHECK(cusim_violation_count() == 0);
}
